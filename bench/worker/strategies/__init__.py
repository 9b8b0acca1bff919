"""How work is placed: one file a strategy.  The contract of each file:

supports(cell) -> str | None        why it can't serve the cell, or None
placement(cell) -> dict             what from_pretrained gets: where the weights go
loading(cell) -> context manager    what must be in force while model and adapters are made
shard(model, cell) -> None          spread what was loaded whole over the ranks
arguments(cell) -> dict             what the trainer's configuration gets
check(model) -> None                raises where the weights are not where the strategy puts them
problems(model, wrapped) -> list[str]   why what trained is not what the strategy's name says

`wrapped` is the model as the trainer runs it.  docs/strategies.md says what works with what.
"""

from __future__ import annotations

import importlib
from typing import Any

from bench.spec import Cell


class Unsupported(Exception):
    """The strategy can't serve the cell: a reason, not a failure."""


def module(cell: Cell) -> Any:
    """The cell's strategy.  `auto` without a plan is `single`."""
    name = "single" if cell.strategy.name == "auto" else cell.strategy.name
    return importlib.import_module(f"bench.worker.strategies.{name}")


def require(cell: Cell) -> None:
    """Raises Unsupported, with the strategy's own reason."""
    if cell.method.trains and (reason := refusal(cell)):
        raise Unsupported(reason)


def refusal(cell: Cell) -> str | None:
    """Why the cell can't be trained so, or None."""
    reason: str | None = module(cell).supports(cell)
    return reason
