"""What a sceptic should know before believing the report: read from the data, not from a template.

Each function returns the sentences that apply, none if nothing does.  A new threat is one function
and its name in CHECKS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from bench.record import Environment
from bench.report import apis, show
from bench.report.compare import Entry, Panel, sign
from bench.report.rows import Row
from bench.spec import scale

SMALL = 500  # test rows; at 500 a share near one half is known to about ±4.4 points
WIDE = 0.1  # of a metric's scale: a margin above it calls nearly everything equal

Panels = Sequence[Panel]


def threats(panels: Panels) -> list[str]:
    return list(dict.fromkeys(sentence for check in CHECKS for sentence in check(panels)))


def _rows(panels: Panels) -> list[Row]:
    """Each once: what an API answered stands in several panels."""
    return list({row.id: row for panel in panels for row in panel.rows}.values())


def _entries(panels: Panels) -> list[Entry]:
    return list({id(entry): entry for panel in panels for entry in panel.entries}.values())


def _environments(panels: Panels) -> list[Environment]:
    return [env for row in _rows(panels) for env in row.environments]


def one_seed(panels: Panels) -> list[str]:
    trained = [e for e in _entries(panels) if e.cell.method.trains and e.good]
    single = [entry for entry in trained if len(entry.good) == 1]
    if not single:
        return []
    how_many = "Each" if len(single) == len(trained) else f"{len(single)} of {len(trained)}"
    return [
        f"{how_many} trained combination has one seed: how much another seed would differ is "
        "unknown, and the intervals don't include it."
        if how_many == "Each"
        else f"{how_many} trained combinations have one seed: how much another seed would differ "
        "is unknown there, and their intervals don't include it."
    ]


def small_tests(panels: Panels) -> list[str]:
    found = []
    for name in dict.fromkeys(panel.dataset for panel in panels):
        rows = [row for row in _rows(panels) if row.cell.dataset.name == name and row.quality]
        sizes = sorted({row.quality.n for row in rows if row.quality})
        if sizes and sizes[0] < SMALL:
            points = 98 / sizes[0] ** 0.5
            found.append(
                f"{show.markdown(name)}: {_range(sizes)} test {_were(sizes)} scored. With "
                f"{show.many(sizes[0], 'row')} a share near one half is known to about "
                f"±{show.number(points, 2)} points."
            )
        if len(sizes) > 1:
            found.append(
                f"{show.markdown(name)}: cells answered different numbers of test rows "
                f"({_range(sizes)}), so their scores rest on different rows."
            )
    return found


def nothing_right(panels: Panels) -> list[str]:
    """The first of several scores of 0 is no choice."""
    found = []
    for panel in panels:
        scores = [entry.quality(panel.metric) for entry in panel.entries]
        known = [score.value for score in scores if score and score.value is not None]
        if known and not any(known) and sign(panel.metric) > 0:
            found.append(
                f"{show.markdown(panel.dataset)} on {show.markdown(panel.target)}: nothing scores "
                f"above 0 by {show.markdown(panel.metric)}, so cost alone decides here."
            )
    return found


def wide_margin(panels: Panels) -> list[str]:
    deltas = {(p.metric, p.comparison.delta(p.metric)) for p in panels}
    return [
        f"The margin of {show.markdown(metric)} is {delta:g}: methods that lose up to that much "
        "are called equal."
        for metric, delta in sorted(deltas, key=str)
        if delta is not None and delta > WIDE * scale(metric)
    ]


def changed_data(panels: Panels) -> list[str]:
    """A dataset's file may be edited between two cells: their names can't show it, its rows do."""
    seen: dict[tuple[str, str, int | None], set[str]] = {}
    for row in _rows(panels):
        budget = row.cell.budget
        limits = budget.max_train_rows, budget.max_test_rows
        for split, limit, rows in zip(("train", "test"), limits, row.fingerprints, strict=True):
            if rows is not None:
                seen.setdefault((row.cell.dataset.name, split, limit), set()).add(rows)
    return [
        f"{show.markdown(name)}: its {split} rows changed between cells ({len(found)} versions), "
        "so they don't compare. `bench run SUITE --fresh` runs all of them on today's rows."
        for (name, split, _), found in sorted(seen.items(), key=str)
        if len(found) > 1
    ]


def samples(panels: Panels) -> list[str]:
    pairs = {
        (row.cell.dataset.name, *row.answered)
        for row in _rows(panels)
        if row.answered[0] is not None and row.answered[1] is not None
    }
    return [
        f"{show.markdown(name)}: {done} of {total} test rows were answered, a sample."
        for name, done, total in sorted(pairs)
        if (done or 0) < (total or 0)
    ]


def trivial(panels: Panels) -> list[str]:
    """Entries that aren't shown to beat an answer given without looking, or the prompt copied."""
    found = []
    for panel in panels:
        floors = [e for e in panel.entries if not e.cell.method.needs_model]
        for entry in (e for e in panel.entries if e.cell.method.needs_model):
            own = [floor for floor in floors if floor.model == entry.model]
            names = [floor.method for floor in own if _beats(panel, entry, floor) is False]
            if names:
                found.append(
                    f"{show.markdown(entry.label)} isn't shown to be better than "
                    f"{show.listed(names, 'or')} by {show.markdown(panel.metric)}: that score may "
                    "owe nothing to the model."
                )
    return found


def _beats(panel: Panel, entry: Entry, floor: Entry) -> bool | None:
    """Whether a paired test calls the entry better; None where none was made."""
    pair = panel.pair(entry, floor, panel.metric)
    if pair is None or pair.verdict is None:
        return None
    return pair.verdict.outcome == ("better" if pair.a is entry else "worse")


def synthetic(panels: Panels) -> list[str]:
    names = sorted({p.dataset for p in panels if p.cell.dataset.synthetic})
    if not names:
        return []
    return [
        f"Synthetic data: {show.markdown(show.listed(names))}. It shows that methods learn and "
        "what they cost; it doesn't rank them for your data."
    ]


def random_weights(panels: Panels) -> list[str]:
    weights = {e.model: e.cell.model.weights for e in _entries(panels)}
    kinds = {(model, held.kind) for model, held in weights.items() if held}
    names = sorted(model for model, kind in kinds if kind == "random")
    tiny = sorted(model for model, kind in kinds if kind == "tiny")
    found = []
    if names:
        found.append(f"Random weights: {show.listed(names)}. Quality means nothing there.")
    if tiny:
        found.append(f"Models made here for testing: {show.listed(tiny)}; no real one is so small.")
    return found


def machines(panels: Panels) -> list[str]:
    found = []
    for panel in panels:
        names = {machine(env) + env.hostname_hash for row in panel.rows for env in row.environments}
        if len(names) > 1:
            found.append(
                f"{show.markdown(panel.dataset)} on {show.markdown(panel.target)}: cells ran on "
                f"{len(names)} different machines, so times don't compare exactly."
            )
    return found


def machine(env: Environment) -> str:
    gpus = ", ".join(f"{env.gpus.count(name)} × {name}" for name in dict.fromkeys(env.gpus))
    ram = f"{show.gib(env.ram_bytes)} GiB RAM"
    return ", ".join(filter(None, [gpus, env.cpu, f"{env.cpu_cores} cores", ram, env.os]))


def other_than_target(panels: Panels) -> list[str]:
    found = []
    for panel in panels:
        target = panel.cell.target
        for name in sorted({n for row in panel.rows for env in row.environments for n in env.gpus}):
            if target.match and not re.search(target.match, name):
                found.append(
                    f"Cells for {show.markdown(target.name)} ran on {show.markdown(name)}, which "
                    "isn't that target: its times and costs are not the target's."
                )
        if target.device == "cuda" and any(
            not env.gpus for row in panel.rows for env in row.environments
        ):
            found.append(f"Cells for {show.markdown(target.name)} ran without a GPU.")
    return found


def load(panels: Panels) -> list[str]:
    busy = [
        row
        for row in _rows(panels)
        if any((env.load_average or 0) > env.cpu_cores for env in row.environments)
    ]
    if not busy:
        return []
    return [
        f"The machine was busy: its load was above its number of cores when {len(busy)} of "
        f"{show.many(len(_rows(panels)), 'cell')} started, so their times are too long."
    ]


def unstable(panels: Panels) -> list[str]:
    found = []
    for panel in panels:
        for entry in panel.entries:
            if entry.unstable:
                found.append(
                    f"Unstable speed: {show.markdown(entry.label)} on "
                    f"{show.markdown(panel.target)} ({show.markdown('; '.join(entry.unstable))})."
                )
    return found


def versions(panels: Panels) -> list[str]:
    """Drivers and packages that differ between cells, commits, a dirty tree."""
    found: dict[str, set[str]] = {}
    commits = set()
    dirty = False
    for env in _environments(panels):
        dirty = dirty or bool(env.git_dirty)
        commits.add(env.git_commit)
        facts = {"driver": env.driver, "CUDA": env.cuda, "Python": env.python, **env.packages}
        for name, version in facts.items():
            found.setdefault(name, set()).add(str(version))
    mixed = [
        f"{name} ({' / '.join(sorted(values))})"
        for name, values in sorted(found.items())
        if len(values) > 1
    ]
    told = []
    if mixed:
        told.append(f"Cells ran with different versions of {show.markdown(show.listed(mixed))}.")
    if len(commits) > 1:
        told.append(f"Cells ran from {len(commits)} different commits of this project.")
    if dirty:
        told.append("Some cells ran from a working copy with uncommitted changes.")
    return told


def chance(panels: Panels) -> list[str]:
    """Operations that torch calls non-deterministic: by those, the same cell may end elsewhere."""
    named: dict[str, list[str]] = {}
    for entry in _entries(panels):
        audits = [row.audit for row in entry.good if row.audit]
        for op in sorted({op for audit in audits for op in audit.nondeterministic_ops or ()}):
            named.setdefault(op, []).append(entry.label)
    return [
        f"Not deterministic, by torch's own account: {show.markdown(op)} "
        f"({show.markdown(show.listed(list(dict.fromkeys(labels))))}). The same cell run again may "
        "give other losses: `bench rerun CELL --compare` says how far."
        for op, labels in sorted(named.items())
    ]


def settings(panels: Panels) -> list[str]:
    tagged = [e for e in _entries(panels) if e.tag == e.rows[0].question]
    suites = sorted({row.cell.suite_version for row in _rows(panels)})
    told = []
    if tagged:
        told.append(
            "The same names stand for different settings (budget, strategy or another field "
            "changed between runs); the 8 digits behind a method tell them apart, and cell.json "
            "says what differs."
        )
    if len(suites) > 1:
        told.append(f"Cells of suite versions {_range(suites)} stand beside each other.")
    return told


def repeats(panels: Panels) -> list[str]:
    again = [row for row in _rows(panels) if row.attempts > 1]
    broken = [row for row in _rows(panels) if row.interruptions]
    told = []
    if again:
        told.append(
            f"{show.many(len(again), 'cell')} took more than one attempt; the last one is "
            "reported, and costs leave the earlier ones out."
        )
    if broken:
        told.append(
            f"{show.many(len(broken), 'cell')} went on after an interruption: wall seconds and "
            "cost hold the interrupted processes too."
        )
    for row in _rows(panels):
        if (train := row.resumed) is not None:
            told.append(
                f"The training of {row.id} was interrupted and resumed from step "
                f"{train.resumed_from_step}: {show.many(train.repeated_steps, 'step')} "
                f"({train.repeated_s:.1f} s, {train.repeated_tokens:,} tokens) ran twice. Curves, "
                "speeds and times to a target count each step once."
            )
    return told


def cut_rows(panels: Panels) -> list[str]:
    cut = [r for r in _rows(panels) if r.training and (r.training.truncated_rows or 0) > 0]
    dropped = [r for r in _rows(panels) if r.training and (r.training.dropped_rows or 0) > 0]
    told = []
    if cut:
        told.append(f"Training rows were cut at max_length in {show.many(len(cut), 'cell')}.")
    if dropped:
        told.append(
            f"Training rows were dropped in {show.many(len(dropped), 'cell')}: nothing was left to "
            "learn after the cut."
        )
    return told


def answered_by_apis(panels: Panels) -> list[str]:
    found = list(apis.warnings(_rows(panels)))
    for panel in panels:
        own = [e.cost.value for e in panel.entries if e.cost and not e.is_api]
        if own and not any(own) and any(e.is_api and e.cost for e in panel.entries):
            found.append(
                f"No price is named for {show.markdown(panel.target)}: its runs look free beside "
                "what an API costs."
            )
    return found


def always(panels: Panels) -> list[str]:
    return [
        "Intervals of scores are per cell: two that overlap may still differ. Only the paired "
        "tests under Differences speak of differences."
    ]


CHECKS: tuple[Callable[[Panels], list[str]], ...] = (
    one_seed,
    nothing_right,
    small_tests,
    wide_margin,
    changed_data,
    samples,
    trivial,
    synthetic,
    random_weights,
    machines,
    other_than_target,
    load,
    unstable,
    versions,
    chance,
    settings,
    repeats,
    cut_rows,
    answered_by_apis,
    always,
)


def _were(sizes: Sequence[int]) -> str:
    return "row was" if sizes == [1] else "rows were"


def _range(values: Sequence[int]) -> str:
    return show.count(values[0]) if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}"
