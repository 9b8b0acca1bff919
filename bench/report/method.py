"""How it was measured: protocol, prices, machines, versions, commits.  Inline Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.record import Environment
from bench.report import apis, details, show
from bench.report.compare import Panel
from bench.report.rows import Row
from bench.report.threats import machine
from bench.spec import TargetSpec

API_COST = (
    "Cost of an API's cell: the tokens that the server itself reports for each answer × their "
    "price. Nothing is trained, so it is the price of answering the test rows alone; wall seconds "
    "depend on how many requests were made at a time, and its speed is compared with nothing."
)


def protocol(panels: Sequence[Panel]) -> list[str]:
    """How each kind of number was taken, with the settings that were in effect."""
    budgets = [row.cell.budget for panel in panels for row in panel.rows]
    warmup = _values(str(budget.timing_warmup_steps) for budget in budgets)
    every = _values(str(budget.evaluate_every) for budget in budgets)
    lengths = _values(str(budget.max_new_tokens) for budget in budgets)
    devices = {panel.cell.target.device for panel in panels}
    places = {row.cell.target.device for panel in panels for row in panel.rows}
    metrics = details.signatures(panels)
    lines = [
        "Quality: every stored answer in predictions.jsonl is read and scored anew for each "
        f"report; answers had up to {lengths} new tokens. Interval: 95 % percentile bootstrap over "
        "test rows, 1,000 resamples, fixed seed.",
        *([f"Metrics: {'; '.join(metrics)}."] if metrics else []),
        "Speed: non-padding input tokens ÷ synchronised seconds of each optimizer step; median "
        f"after {warmup} warm-up steps, which are recorded but not counted. Interval: 95 % "
        "bootstrap of that median.",
        f"Loss: nats per answer token; validation every {every} steps, off the clock. Time to "
        "target: training seconds, interpolated on a straight line between the evaluations before "
        "and at which it is met; those two stand beside it. Runs that miss it stay in the means.",
        "Cost: wall seconds of every phase's process, loading and evaluation included, ÷ 3600 × "
        "devices × nodes × price. “of it steps” leaves loading and evaluation out.",
        *([API_COST] if "none" in places else []),
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
    lines = [price(targets[name]) for name in sorted(targets) if targets[name].device != "none"]
    models = {row.cell.model.name: row.cell.model for row in rows}
    lines += filter(None, (apis.price(models[name]) for name in sorted(models)))
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
    return (
        f"Price of {show.markdown(target.name)}: {show.usd(found.usd_per_device_hour)} per "
        f"device-hour ({show.usd(found.low_usd)} to {show.usd(found.high_usd)}) × "
        f"{target.devices * target.nodes}, {show.markdown(found.provider)}, "
        f"{show.markdown(found.date)}, {show.source(found.source)}"
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
