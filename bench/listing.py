"""What `bench list` shows: the suites, or the cells of one and how each stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from bench import suite as suites
from bench.run.runner import finished
from bench.spec import Cell, Suite


def suites_here() -> list[dict[str, Any]]:
    """The suites of ./suites.  Raises UserError where one can't be read."""
    found = [suites.load(path) for path in sorted(Path("suites").glob("*.yaml"))]
    return [{"suite": s.name, "cells": len(s.cells), "title": s.title} for s in found]


def row(cell: Cell, results: Path) -> dict[str, Any]:
    """A cell's id, its place in the matrix, and how it stands."""
    return {
        "id": cell.id,
        "model": cell.model.name,
        "method": cell.method.name,
        "dataset": cell.dataset.name,
        "target": cell.target.name,
        "seed": cell.seed,
        "status": _status(cell, results),
    }


def _status(cell: Cell, results: Path) -> str:
    """`serve:` may have been added to a suite after its cells were finished."""
    if state := finished(cell, results, retry=False):
        return str(state.status)
    unserved = finished(cell.model_copy(update={"serve": None}), results, retry=False)
    return f"{unserved.status}, not served" if unserved else "not run"


def table(rows: Sequence[Mapping[Any, Any]]) -> Table:
    """Rows of equal keys; the keys are the header."""
    made = Table(*(map(str, rows[0]) if rows else ()))
    for line in rows:
        made.add_row(*map(str, line.values()))
    return made


def cells_table(suite: Suite, cells: Sequence[Cell], results: Path) -> Table:
    """The matrix and how it stands; ids by their last eight characters."""
    made = Table(title=f"{suite.name}: {len(cells)} cells", title_justify="left")
    several = len({cell.budget.micro_batch for cell in cells if cell.method.trains}) > 1
    micro = ["micro-batch"] if several else []
    for column in ("model", "method", "dataset", "target", "seed", *micro, "status", "id"):
        made.add_column(column, overflow="fold")
    for cell in cells:
        point = row(cell, results)
        name, status = point.pop("id"), point.pop("status")
        size = [str(cell.budget.micro_batch)] if several else []
        made.add_row(*map(str, point.values()), *size, status, name[-8:])
    return made
