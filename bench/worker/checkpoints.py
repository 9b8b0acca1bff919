"""Checkpoints in mid-training, so that an interrupted one goes on (`budget.checkpoint_every`).

The trainer keeps optimizer, schedule, random states and its place in the data; of the model only
what trains is written, tensor by tensor as it is, so that what goes on is what was interrupted.
They lie in the cache folder.  Sharded strategies write none: an interruption starts them anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from bench import cache, store
from bench.spec import Cell
from bench.worker import ranks

STRATEGIES = ("single", "auto", "ddp")  # auto without a plan is single
TRAINED = "model.safetensors"  # the trainer looks for a file of this name
KEPT = 2  # the last whole one, and the one that is being written


def every(cell: Cell) -> int | None:
    """Steps between checkpoints; None where there are none."""
    possible = cell.strategy.name in STRATEGIES and not cell.budget.probe
    return cell.budget.checkpoint_every if possible else None


def arguments(cell: Cell) -> dict[str, Any]:
    """What the trainer's configuration gets."""
    steps = every(cell)
    if steps is None:
        return {"save_strategy": "no"}
    return {"save_strategy": "steps", "save_steps": steps, "save_total_limit": KEPT}


def last(cell: Cell, attempt: Path) -> tuple[int, Path] | None:
    """(step, folder) of the checkpoint to go on from."""
    return store.checkpoint(attempt, cache.checkpoints(attempt)) if every(cell) else None


def save(model: Any, folder: Path) -> None:
    """Write what trains, from rank 0."""
    if ranks.rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: p.detach().cpu().contiguous() for name, p in _trained(model).items()}
        save_file(tensors, folder / TRAINED, metadata={"format": "pt"})


@torch.no_grad()
def restore(model: Any, folder: Path) -> None:
    """Raises RuntimeError where the checkpoint holds other tensors than the model trains."""
    saved, held = load_file(folder / TRAINED), _trained(model)
    if saved.keys() != held.keys():
        odd = sorted(saved.keys() ^ held.keys())
        raise RuntimeError(f"{folder.name}: {len(odd)} tensors don't match, e.g. {odd[0]}")
    for name, parameter in held.items():
        parameter.copy_(saved[name])


def _trained(model: Any) -> dict[str, Any]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
