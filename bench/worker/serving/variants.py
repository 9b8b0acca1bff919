"""The ways in which a cell's weights are served, each as a cell that loads like any other."""

from __future__ import annotations

from pathlib import Path

from bench import cache
from bench.spec import Cell, MethodSpec

PLAIN, MERGED = "plain", "merged"


def names(cell: Cell) -> list[str]:
    """`plain` serves what was evaluated; `merged` only where there is an adapter to merge."""
    if cell.serve is None or cell.method.adapter is None:
        return [PLAIN]
    return [MERGED if merged else PLAIN for merged in cell.serve.merged]


def merged_folder(attempt: Path) -> Path:
    """Inside the trained weights' folder, so that it goes when they go."""
    return cache.trained(attempt) / "merged"


def trained_folder(cell: Cell, attempt: Path, variant: str) -> Path | None:
    if not cell.method.trains:
        return None
    return merged_folder(attempt) if variant == MERGED else cache.trained(attempt)


def unquantized(cell: Cell) -> Cell:
    """The cell whose adapter stands on an unquantised base: what merging needs.

    Adding to 4-bit weights would round the adapter away; so the merged model isn't quite the
    trained one where the base was quantised.
    """
    return _with(cell, {"kind": "lora", "quantization": None})


def as_served(cell: Cell, variant: str) -> Cell:
    """The cell as which `load.model` loads the variant: merged weights load like full ones."""
    if variant == PLAIN:
        return cell
    return _with(cell, {"kind": "full", "adapter": None, "quantization": None})


def _with(cell: Cell, changes: dict[str, object]) -> Cell:
    method = MethodSpec.model_validate({**cell.method.model_dump(), **changes})
    return cell.model_copy(update={"method": method})
