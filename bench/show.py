"""`bench show`: one cell, with the files that every figure comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import store
from bench.errors import UserError, nearest
from bench.record import PhaseRecord
from bench.spec import Cell


def find(results: Path, name: str) -> store.CellResult:
    """The one cell whose id contains `name`.  Raises UserError for none or several."""
    folders = [path.parent for path in sorted(results.glob("*/*/cell.json"))]
    found = [folder for folder in folders if name in folder.name]
    if not found:
        known = [folder.name for folder in folders]
        raise UserError(f"no cell {name!r} in {results}. {nearest(name, known)}")
    if len(found) > 1:
        names = ", ".join(folder.name for folder in found)
        raise UserError(f"{name!r} fits {len(found)} cells: {names}")
    cell = store.read_record(Cell, found[0] / "cell.json")
    assert cell is not None
    return store.CellResult(cell, found[0])


def as_json(found: store.CellResult) -> dict[str, Any]:
    attempts = [
        {
            "path": str(attempt.path),
            "audit": attempt.audit.model_dump(mode="json") if attempt.audit else None,
            **{record.phase: record.model_dump(mode="json") for record in attempt.every_phase},
        }
        for attempt in found.attempts
    ]
    return {"id": found.cell.id, "cell": found.cell.model_dump(mode="json"), "attempts": attempts}


def render(found: store.CellResult, console: Console) -> None:
    """Tables of phases, steps and proof for a terminal."""
    console.print(found.cell.id, markup=False, style="bold")
    for attempt in found.attempts:
        console.print(f"{attempt.path}", markup=False, soft_wrap=True)
        table = Table("phase", "status", "wall s", "peak host GiB", "peak reserved GiB", "stages")
        for record in attempt.every_phase:
            table.add_row(*_phase_row(record))
        console.print(table)
        if attempt.steps:
            losses = [e.loss for e in attempt.evaluations if e.loss is not None]
            path = " → ".join(f"{loss:.3f}" for loss in losses)
            console.print(f"{len(attempt.steps)} steps; validation loss {path}", markup=False)
        if attempt.resumed_from_step is not None:
            again = f"{len(attempt.repeated_steps)} steps ran twice"
            console.print(f"resumed from step {attempt.resumed_from_step}: {again}", markup=False)
        if attempt.audit:
            _render_audit(attempt, console)


def _phase_row(record: PhaseRecord) -> list[str]:
    memory = record.memory.values()
    host = max((m.host_bytes or 0 for m in memory), default=0)
    reserved = max((m.reserved_bytes or 0 for m in memory), default=0)
    stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in record.stage_s.items())
    status = f"{record.status}" + (f": {record.reason}" if record.reason else "")
    return [
        record.phase,
        status,
        f"{record.wall_s:.1f}",
        f"{host / 2**30:.2f}" if host else "–",
        f"{reserved / 2**30:.2f}" if reserved else "–",
        stages,
    ]


def _mib(by_dtype: dict[str, int]) -> str:
    return ", ".join(f"{size / 2**20:.1f} MiB {name}" for name, size in by_dtype.items())


def _render_audit(attempt: store.Attempt, console: Console) -> None:
    audit = attempt.audit
    assert audit is not None
    share = audit.trainable_params / audit.total_params
    held = _mib(audit.bytes_by_dtype)
    adapted = ", ".join(f"{name} × {count}" for name, count in audit.adapted_modules.items())
    lines = [
        f"trainable {audit.trainable_params:,} of {audit.total_params:,} ({share:.2%})",
        f"held: {held}",
        *(f"  {part}: {_mib(by_dtype)}" for part, by_dtype in audit.bytes_by_part.items()),
        f"adapted: {adapted or 'none'}; layers recomputed in step 1: {audit.recomputed_layers}",
        *(f"PROBLEM: {problem}" for problem in audit.problems),
        *(f"warning: {warning}" for warning in audit.warnings),
    ]
    for line in lines:
        console.print(line, markup=False)
