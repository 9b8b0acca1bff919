"""Plans as a table for a terminal, and as rows for a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from bench.plan import GIB, Plan
from bench.spec import Cell

WIDTH = 180  # characters that the table needs
Planned = tuple[Cell, Plan]
COLUMNS = (
    "model", "method", "dataset", "tokens", "target", "strategy", "micro", "reserved",
    "driver", "generate", "host", "fits", "tokens/s", "hours", "$",
)  # fmt: skip


def table(planned: Sequence[Planned]) -> Table:
    """Memory in GiB per GPU (host: per node); cells that differ only in seed share a row.

    tokens: of an example, on average and at most.
    """
    title = "GiB per GPU, host GiB per node; predicted, nothing ran"
    made = Table(title=title, title_justify="left")
    for column in COLUMNS:
        made.add_column(column, overflow="fold")
    for shown in _rows(planned):
        made.add_row(*_row(shown.cell, shown.plan, shown.seeds))
    return made


def remarks(planned: Sequence[Planned]) -> Iterator[str]:
    """Below the table: what breaks and by how much, what would fit, and what is uncertain."""
    yield from _assumed(planned)
    for shown in _rows(planned):
        cell, plan = shown.cell, shown.plan
        name = f"{cell.model.name} {cell.method.name} {cell.dataset.name} {cell.target.name}"
        for limit in plan.limits:
            if limit.missing_bytes:
                yield (
                    f"{name}: {limit.name} memory in {limit.phase}: "
                    f"{limit.missing_bytes / GIB:.1f} GiB too little"
                )
        for change in plan.changes:
            yield f"{name}: would fit: {change['change']} ({_change(change)})"
        for note in plan.notes:
            yield f"{name}: {note}"


def _assumed(planned: Sequence[Planned]) -> Iterator[str]:
    """Where the lengths of a dataset are from, unless they were counted on its rows."""
    sources = {(c.dataset.name, p.data.source) for c, p in planned if p.data is not None}
    for name, source in sorted(sources):
        if source == "stated":
            yield f"{name}: tokens as its file states them: `lengths`"
        elif source == "assumed":
            yield (
                f"{name}: every example is taken to be max_length long: neither its rows with the "
                "tokenizer are here nor does its file state `lengths`"
            )


def as_json(planned: Sequence[Planned]) -> list[dict[str, Any]]:
    """One object a cell: its point of the matrix and its plan."""
    hidden = {
        "memory": {"micro_costs", "update_costs"},
        "generation": {"prompt_costs", "token_costs"},
    }
    return [
        {
            "cell": cell.id,
            "model": cell.model.name,
            "method": cell.method.name,
            "dataset": cell.dataset.name,
            "target": cell.target.name,
            "seed": cell.seed,
            "plan": plan.model_dump(mode="json", exclude=hidden),
        }
        for cell, plan in planned
    ]


@dataclass
class _Shown:
    """Cells of one row."""

    cell: Cell
    plan: Plan
    seeds: int = 0


def _rows(planned: Sequence[Planned]) -> list[_Shown]:
    found: dict[tuple[Any, ...], _Shown] = {}
    for cell, plan in planned:
        names = (cell.model, cell.method, cell.dataset, cell.target)
        key = (*(part.name for part in names), plan.strategy, plan.device_bytes)
        found.setdefault(key, _Shown(cell, plan)).seeds += 1
    return list(found.values())


def _row(cell: Cell, plan: Plan, seeds: int) -> list[str]:
    memory, time = plan.memory, plan.time
    seconds = [s for s in (plan.train_s, plan.generate_s) if s is not None]
    fits = {True: "yes", False: "no", None: "?"}[plan.fits]
    if plan.fits and any(note.startswith("narrow") for note in plan.notes):
        fits = "narrow"
    return [
        cell.model.name,
        cell.method.name,
        cell.dataset.name,
        _tokens(plan),
        cell.target.name,
        plan.strategy,
        str(plan.micro_batch) if memory else "",
        _reserved(plan),
        _gib(plan.device_bytes),
        _gib(plan.generation_bytes),
        _gib(memory.host_bytes) if memory else "",
        fits,
        f"{time.tokens / time.step_s:,.0f}" if time else "",
        f"{sum(seconds) / 3600:.1f}" if seconds else "",
        _dollars(plan, seeds),
    ]


def _dollars(plan: Plan, seeds: int) -> str:
    """Of all seeds of the row."""
    if plan.usd is None or plan.usd_low is None or plan.usd_high is None:
        return ""
    point, low, high = (seeds * value for value in (plan.usd, plan.usd_low, plan.usd_high))
    times = f", {seeds} seeds" if seeds > 1 else ""
    return f"{point:,.0f} ({low:,.0f}–{high:,.0f}{times})"


def _tokens(plan: Plan) -> str:
    data = plan.data
    return "" if data is None else f"{data.mean:.0f} / {data.longest}"


def _reserved(plan: Plan) -> str:
    """With what varying lengths add, where that was traced."""
    if plan.memory is None:
        return ""
    fixed = plan.memory.reserved_bytes
    high = fixed + (plan.growth.high_bytes if plan.growth else 0)
    return "–".join(dict.fromkeys((_gib(fixed), _gib(high))))


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / GIB:.1f}"


def _change(change: dict[str, Any]) -> str:
    parts = [f"{change['strategy']}", f"{_gib(change['device_bytes'])} GiB"]
    if change.get("host_bytes"):
        parts.append(f"host {_gib(change['host_bytes'])} GiB")
    if change.get("step_s"):
        parts.append(f"{change['step_s']:.1f} s a step")
    return ", ".join(parts)
