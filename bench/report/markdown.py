"""report.md: headline, tables, charts, failures, how it was measured, and where it came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import pandas as pd

from bench.record import Environment
from bench.report import datasets, differences, show, speeds, tables
from bench.report.charts import CHARTS, Drawn
from bench.report.compare import Panel
from bench.report.headline import headline
from bench.report.rows import Row
from bench.report.threats import machine, threats
from bench.score.hygiene import Hygiene
from bench.spec import TargetSpec


def report(
    suite: str,
    panels: Sequence[Panel],
    charts: Sequence[Drawn],
    checked: Mapping[str, Hygiene] | None = None,
) -> str:
    """The whole page.  `checked`: what is known of each dataset's rows."""
    found = checked or {}
    rows = [row for panel in panels for row in panel.rows]

    def chart(kind: str) -> str:
        return _charts(kind, charts)

    parts = [
        f"# {show.markdown(suite)}: what was measured",
        headline(panels),
        "## Summary",
        chart("cost-quality"),
        _each(panels, tables.entries),
        _legend(panels),
        "## Quality",
        chart("quality"),
        _each(panels, tables.quality),
        "Answers that could not count:",
        _each(panels, tables.rates),
        *_differences(panels, chart("forest")),
        *_groups(panels, chart("groups")),
        "## Memory",
        chart("memory"),
        _each(panels, tables.memory),
        "## Time and cost",
        chart("loss"),
        chart("speed"),
        _each(panels, tables.time),
        _speeds(panels),
        "## What did not work, and why",
        _table(tables.failures(rows), "Every cell worked."),
        "## What ran",
        "Counted on the model itself, not copied from the settings.",
        _table(tables.weights(rows), "No cell left an audit."),
        *(["## Data", tables.markdown(datasets.table(found))] if found else []),
        "## How it was measured",
        _list(protocol(panels)),
        "## Threats to validity",
        _list([*datasets.warnings(panels, found), *threats(panels)]),
        "## Where the numbers come from",
        "Everything above can be recomputed from these files; "
        "[summary.csv](summary.csv) has one row a cell.",
        _table(tables.sources(rows), ""),
        "---",
        _list(footer(rows)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


# ---------------------------------------------------------------- parts


def _each(panels: Sequence[Panel], make: Callable[[Panel], pd.DataFrame]) -> str:
    """A table for each panel, under its name where there are several."""
    parts = []
    for panel in panels:
        if len(panels) > 1:
            parts.append(f"**{show.markdown(panel.dataset)} on {show.markdown(panel.target)}**")
        parts.append(_table(make(panel), "Nothing was recorded."))
    return "\n\n".join(parts)


def _table(frame: pd.DataFrame, empty: str) -> str:
    return tables.markdown(frame) if len(frame) else empty


def _charts(kind: str, charts: Sequence[Drawn]) -> str:
    """The charts of a kind; where there is none, why."""
    found = [chart for chart in charts if chart.kind == kind]
    if not found:
        return f"*No chart “{CHARTS[kind][0]}”: no cell has the numbers for it.*"
    return "\n\n".join(
        f"![{chart.title}: {chart.dataset}](charts/{chart.stem}.png)\n\n"
        f"[as SVG](charts/{chart.stem}.svg)"
        for chart in found
    )


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _legend(panels: Sequence[Panel]) -> str:
    metrics = show.listed(list(dict.fromkeys(show.markdown(panel.metric) for panel in panels)))
    text = (
        f"All measured. {metrics}: the dataset's first metric, mean over seeds; its interval is "
        "the widest of any seed's. Cost: all phases of one run × devices × the target's price; the "
        "range is the price's. Peak: the counter that decides whether it fits (see Memory). "
        "Pareto: nothing measured is both better and cheaper. –: not known."
    )
    if any(entry.unstable for panel in panels for entry in panel.entries):
        text += " ~: unstable, see Threats to validity."
    return text


def _speeds(panels: Sequence[Panel]) -> str:
    """Ratios and epochs; empty where nothing trained."""
    timed = [panel for panel in panels if len(speeds.table(panel))]
    if not timed:
        return ""
    return f"{SPEEDS}\n\n{_each(timed, speeds.table)}"


SPEEDS = (
    "Speed ÷ reference's: ratio of the medians of tokens/s, with a 95 % interval over blocks of "
    "steps, only where machine, threads, versions and timing protocol agree. Epoch: step seconds "
    "for every row of the train split, predicted from the counted steps; evaluation, loading and "
    "saving come on top."
)


def _differences(panels: Sequence[Panel], chart: str) -> list[str]:
    """Paired tests; empty where nothing was tested."""
    tested = [panel for panel in panels if panel.pairs]
    if not tested:
        return []
    parts = ["## Differences", chart, _differences_legend(tested)]
    for panel in tested:
        for metric in differences.first_metrics(panel):
            frame = differences.table(panel, metric)
            if len(frame):
                parts += [_titled(panel, metric, panels), tables.markdown(frame)]
    frames = [differences.noise(panel) for panel in tested]
    if any(len(frame) for frame in frames):
        parts.append(
            "How far a score moves (one standard deviation) with other test rows, all seeds kept, "
            "and with another training seed, noise of rows taken out:"
        )
        parts += [tables.markdown(frame) for frame in frames if len(frame)]
    return parts


def _titled(panel: Panel, metric: str, panels: Sequence[Panel]) -> str:
    where = f" ({show.markdown(panel.dataset)} on {show.markdown(panel.target)})"
    return f"**{show.markdown(metric)}**" + (where if len(panels) > 1 else "")


def _differences_legend(panels: Sequence[Panel]) -> str:
    margins = {panel.comparison.delta(panel.metric) for panel in panels}
    known = sorted(margin for margin in margins if margin is not None)
    delta = show.listed([f"{margin:g}" for margin in known], "or") if known else ""
    text = (
        "A minus B on the test rows that both answered. Interval: paired bootstrap; where both "
        "sides have several seeds (a method that trains nothing needs one), ± t × the errors of "
        "rows and seeds together. p: approximate randomisation, Holm-corrected over all pairs of "
        "this metric. *not resolved* isn't *equal*: it says that these rows can't tell. "
        "~: the answers differ on fewer than 10 rows, so the interval is too narrow: go by p. "
    )
    if delta:
        return text + (
            f"*no difference larger than δ*: shown by two one-sided tests, δ = {delta} for the "
            "first metric. Rows needed: test rows with which a method as good as the other would "
            "be shown to be so in 4 of 5 cases, if rows vary as here. All pairs and metrics: "
            "[differences.csv](differences.csv)."
        )
    return text + (
        "The suite sets no margin (`comparison: {margin: …}`), so nothing is called equal, and "
        "rows needed are unknown. All pairs and metrics: [differences.csv](differences.csv)."
    )


def _groups(panels: Sequence[Panel], chart: str) -> list[str]:
    """The section on groups; empty where no dataset has any."""
    grouped = [panel for panel in panels if panel.groups]
    if not grouped:
        return []
    parts = ["## Groups", chart, "In brackets: gain over the untuned model."]
    for panel in grouped:
        for metric in panel.metrics:
            parts.append(_titled(panel, metric, panels))
            parts.append(tables.markdown(tables.groups(panel, metric)))
            gains = differences.gains(panel, metric)
            if metric in differences.first_metrics(panel) and len(gains):
                parts += [GAINS, tables.markdown(gains)]
    return parts


GAINS = (
    "Gain over the untuned model on the same rows, with its 95 % interval (of each group alone, "
    "not corrected for their number). Spread: highest minus lowest gain; p: Cochran's Q, whether "
    "the groups' gains differ by more than their rows' noise."
)


def protocol(panels: Sequence[Panel]) -> list[str]:
    """How each kind of number was taken, with the settings that were in effect."""
    budgets = [row.cell.budget for panel in panels for row in panel.rows]
    warmup = _values(str(budget.timing_warmup_steps) for budget in budgets)
    every = _values(str(budget.evaluate_every) for budget in budgets)
    lengths = _values(str(budget.max_new_tokens) for budget in budgets)
    devices = {panel.cell.target.device for panel in panels}
    lines = [
        "Quality: every stored answer in predictions.jsonl is read and scored anew for each "
        f"report; answers had up to {lengths} new tokens. Interval: 95 % percentile bootstrap over "
        "test rows, 1,000 resamples, fixed seed.",
        "Speed: non-padding input tokens ÷ synchronised seconds of each optimizer step; median "
        f"after {warmup} warm-up steps, which are recorded but not counted. Interval: 95 % "
        "bootstrap of that median.",
        f"Loss: nats per answer token; validation every {every} steps, off the clock. Time to "
        "target: training seconds at the first evaluation that meets it, so it can't be finer "
        "than that.",
        "Cost: wall seconds of every phase's process, loading and evaluation included, ÷ 3600 × "
        "devices × nodes × price. “of it steps” leaves loading and evaluation out.",
        "Each phase ran in a process of its own; peaks are the highest reading of each stage.",
    ]
    if "cuda" in devices:
        lines.append(
            "GPU memory: reserved and allocated from torch's counters, device from the driver for "
            "the process; the worst rank. Reserved decides whether a run fits."
        )
    if "cpu" in devices:
        lines.append(
            "CPU memory: host RSS above baseline, that is the resident set of the process tree "
            "minus what it was after imports and before the model. It stands in for GPU memory "
            "and doesn't predict it."
        )
    lines.append(
        "Each figure's n, interval and protocol, and its recomputation with pandas: "
        "`docs/numbers.md`."
    )
    lines.append(
        "A cell that is not ok, or whose audit found a problem, is shown but enters no "
        "comparison, mean or Pareto set."
    )
    return lines


def _values(values: Iterable[str]) -> str:
    return show.listed(sorted(set(values), key=lambda v: (len(v), v)), "or")


# ---------------------------------------------------------------- footer


def footer(rows: Sequence[Row]) -> list[str]:
    """Prices, machines, versions, commits."""
    targets = {row.cell.target.name: row.cell.target for row in rows}
    lines = [price(targets[name]) for name in sorted(targets)]
    environments = [env for row in rows for env in row.environments]
    if not environments:
        return [*lines, "No cell recorded its machine or versions."]
    lines += [f"Machine: {show.markdown(m)}" for m in sorted({machine(e) for e in environments})]
    drivers = sorted({f"{e.driver}, CUDA {e.cuda}" for e in environments if e.driver})
    lines += [f"Driver: {show.markdown(driver)}" for driver in drivers]
    threads = {str(count) for row in rows for count in row.threads}
    if threads:
        lines.append(f"Threads of a process: {_values(threads)}")
    lines.append(f"Versions: {show.markdown(_versions(environments))}")
    lines += sorted({_commit(env) for env in environments})
    return lines


def price(target: TargetSpec) -> str:
    found = target.price
    source = show.plain(found.source)
    url = re.fullmatch(r"https?://[^\s<>|]+", source)
    return (
        f"Price of {show.markdown(target.name)}: {show.usd(found.usd_per_device_hour)} per "
        f"device-hour ({show.usd(found.low_usd)} to {show.usd(found.high_usd)}) × "
        f"{target.devices * target.nodes}, {show.markdown(found.provider)}, "
        f"{show.markdown(found.date)}, {f'<{source}>' if url else show.markdown(source)}"
    )


def _versions(environments: Sequence[Environment]) -> str:
    packages: dict[str, set[str]] = {}
    for env in environments:
        packages.setdefault("Python", set()).add(env.python)
        for name, version in env.packages.items():
            packages.setdefault(name, set()).add(version)
    return ", ".join(f"{name} {' / '.join(sorted(packages[name]))}" for name in sorted(packages))


def _commit(env: Environment) -> str:
    if env.git_commit is None:
        return "Commit: not recorded"
    state = {True: ", with uncommitted changes", False: "", None: ", clean or not is unknown"}
    return f"Commit: {env.git_commit[:12]}{state[env.git_dirty]}"
