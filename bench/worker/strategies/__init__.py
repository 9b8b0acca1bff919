"""How work is placed: one file a strategy.  The contract of each file:

supports(cell) -> str | None        why it can't serve the cell, or None
placement(cell) -> dict             what from_pretrained gets: where the weights go
check(model) -> None                raises where the weights are not where the strategy puts them
"""

from __future__ import annotations

import importlib
from typing import Any

from bench.spec import Cell


def module(cell: Cell) -> Any:
    """The cell's strategy.  `auto` is `single` until there are others to choose from."""
    name = "single" if cell.strategy.name == "auto" else cell.strategy.name
    return importlib.import_module(f"bench.worker.strategies.{name}")
