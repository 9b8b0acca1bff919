"""Two suites (or two states of one) cell by cell: what changed, and whether that is beyond noise.

Cells are held against each other where model, method, dataset and target have the same names; where
the targets differ, on the other target.  Scores are tested in pairs on the rows that both answered,
Holm-corrected over all of them; speeds only where machine, threads, versions and protocol agree.

    bench compare quick ../other/results/quick
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from bench.errors import UserError
from bench.report import compare, environments, pairs, show, speeds
from bench.report.compare import Entry, Panel
from bench.report.external import externals
from bench.report.frames import frame
from bench.report.rows import Row, rows
from bench.report.threats import machine
from bench.score.significance import Difference
from bench.score.significance import compare as difference
from bench.score.verdicts import Verdict, judge
from bench.store import read_suite

Name = tuple[str, str, str]


@dataclass(frozen=True)
class Change:
    """One entry of B against the same of A."""

    a: Entry
    b: Entry
    panel: Panel  # of B
    metric: str
    found: Difference | None = None
    verdict: Verdict | None = None
    reason: str = ""  # why scores weren't compared


@dataclass(frozen=True)
class Comparison:
    """`obstacles`: why the two may not be compared as they stand; empty: they may."""

    changes: tuple[Change, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    obstacles: tuple[str, ...]


def load(name: str, results: Path) -> list[Panel]:
    """A suite by name, or by the folder results/<suite> of any project."""
    path = Path(name)
    folder, suite = (path.parent, path.name) if path.is_dir() else (results, name)
    found = read_suite(folder, suite)
    extra = externals((r.cell.dataset for r in found), project=folder.resolve().parent)
    return compare.panels(rows(found, extra))


def changes(one: Sequence[Panel], two: Sequence[Panel]) -> Comparison:
    """B (`two`) against A (`one`).  Raises UserError where they share nothing."""
    a, b = _entries(one), _entries(two)
    matched = [(name, _match(name, a)) for name in b]
    both = [(a[old][1], *b[new]) for new, old in matched if old is not None]
    if not both:
        raise UserError("the two have no model × method × dataset in common: nothing to compare")
    asked = [_tested(old, new, panel) for old, panel, new in both]
    verdicts = iter(judge([change.found for change in asked if change.found]))
    found = [replace(c, verdict=next(verdicts)) if c.found else c for c in asked]
    used = {old for _, old in matched if old is not None}
    return Comparison(
        changes=tuple(found),
        only_a=tuple(a[name][1].label for name in a if name not in used),
        only_b=tuple(b[new][1].label for new, old in matched if old is None),
        obstacles=tuple(_obstacles(found)),
    )


def _entries(panels: Sequence[Panel]) -> dict[tuple[str, ...], tuple[Panel, Entry]]:
    """Of several settings under one name, the last."""
    return {
        (panel.dataset, entry.model, entry.cell.method.name, entry.cell.target.name): (panel, entry)
        for panel in panels
        for entry in panel.entries
    }


def _match(
    name: tuple[str, ...], others: dict[tuple[str, ...], tuple[Panel, Entry]]
) -> tuple[str, ...] | None:
    """The same names; else the only one of another target."""
    if name in others:
        return name
    near = [other for other in others if other[:3] == name[:3]]
    return near[0] if len(near) == 1 else None


def _tested(a: Entry, b: Entry, panel: Panel) -> Change:
    change = Change(a, b, panel, panel.metric)
    if not a.good or not b.good:
        return replace(change, reason=f"A {a.status}, B {b.status}")
    shared = pairs.common_rows([b, a], panel.metric)
    if isinstance(shared, str):
        return replace(change, reason=shared)
    asked = pairs.question(panel, panel.metric, ())
    ours, theirs = (pairs.side(entry, panel.metric, shared) for entry in (b, a))
    found = difference(ours, theirs, replace(asked, clusters=None))
    return replace(change, found=found, reason="" if found else "undefined on these rows")


# ---------------------------------------------------------------- may they be compared


def _obstacles(found: Sequence[Change]) -> Iterator[str]:
    a = [row for change in found for row in change.a.good]
    b = [row for change in found for row in change.b.good]
    yield from _differs("machines", _machines(a), _machines(b), "times and costs")
    yield from _differs("timing protocols", _protocols(a), _protocols(b), "speeds")
    yield from _differs("training rows", _train_rows(a), _train_rows(b), "scores")
    yield from _differs("test rows", _test_rows(a), _test_rows(b), "scores over all rows")
    yield from _environments(a, b)
    for change in found:
        if change.a.rows[0].question != change.b.rows[0].question:
            yield f"{change.b.label}: settings differ: {', '.join(_settings(change))}"


def _differs(what: str, a: set[str], b: set[str], then: str) -> Iterator[str]:
    if a and b and a != b:
        yield f"different {what}: {_some(a)} against {_some(b)}, so {then} may differ for it"


def _some(values: set[str]) -> str:
    return " / ".join(sorted(values)[:3])


def _machines(found: Sequence[Row]) -> set[str]:
    return {machine(env) for row in found for env in row.environments}


def _protocols(found: Sequence[Row]) -> set[str]:
    return {str(row.training.timing_protocol) for row in found if row.training}


def _train_rows(found: Sequence[Row]) -> set[str]:
    return {row.fingerprints[0] for row in found if row.fingerprints[0]}


def _test_rows(found: Sequence[Row]) -> set[str]:
    return {row.fingerprints[1] for row in found if row.fingerprints[1]}


def _environments(a: Sequence[Row], b: Sequence[Row]) -> Iterator[str]:
    """Driver, versions, commit; machines have a line of their own."""
    sides = ([env for row in side for env in row.environments] for side in (a, b))
    found = [
        one for one in environments.differences(*sides) if not one.startswith(("machine", "host"))
    ]
    if found:
        yield f"different environments: {'; '.join(found)}"


def _settings(change: Change) -> list[str]:
    """Which parts of the question differ; of the budget, which fields."""
    a, b = change.a.cell.identity(), change.b.cell.identity()
    found = []
    for key in a:
        if key == "seed" or a[key] == b.get(key):
            continue
        old, new = a[key], b.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += [f"{key}.{part}" for part in old if old[part] != new.get(part)]
        else:
            found.append(key)
    return found


# ---------------------------------------------------------------- told


def table(found: Comparison) -> pd.DataFrame:
    return frame(_line(change) for change in found.changes)


def _line(change: Change) -> dict[str, str]:
    targets = dict.fromkeys([change.a.cell.target.name, change.b.cell.target.name])
    return {
        "dataset": change.panel.dataset,
        "target": " → ".join(targets),
        "model": change.b.model,
        "method": change.b.method,
        "metric": change.metric,
        "score": f"{_score(change.a, change.metric)} → {_score(change.b, change.metric)}",
        "difference": _difference(change),
        "beyond noise": _verdict(change),
        "tokens/s": _speed(change),
        "cost, USD": f"{_cost(change.a)} → {_cost(change.b)}",
        "status": " → ".join(dict.fromkeys([change.a.status, change.b.status])),
    }


def _score(entry: Entry, metric: str) -> str:
    found = entry.quality(metric)
    return show.score(found.value if found else None)


def _difference(change: Change) -> str:
    if change.found is None:
        return show.NONE
    bounds = show.between(change.found.low, change.found.high, show.difference)
    return show.difference(change.found.value) + (f" ({bounds})" if bounds else "")


def _verdict(change: Change) -> str:
    if change.verdict is None:
        return f"not compared: {change.reason}"
    p = f"p {show.p_value(change.verdict.p)}"
    words = {
        "not resolved": "no: within the noise of these rows",
        "equivalent": f"no: {change.verdict.words}",
    }.get(change.verdict.outcome, f"yes: {change.verdict.words}")
    return f"{words} ({p})"


def _speed(change: Change) -> str:
    found = speeds.compared(change.b, change.a)
    if isinstance(found, list):
        return f"not compared: {'; '.join(found)}"
    bounds = show.between(found.low, found.high)
    return f"×{show.number(found.value)}" + (f" ({bounds})" if bounds else "")


def _cost(entry: Entry) -> str:
    return show.number(entry.cost.value if entry.cost else None)
