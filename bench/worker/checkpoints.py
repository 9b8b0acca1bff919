"""Checkpoints in mid-training, so that an interrupted one goes on (`budget.checkpoint_every`).

The trainer keeps schedule, random states and its place in the data.  Of the model only what trains
is written, tensor by tensor as it is, so that what goes on is what was interrupted:

    single, ddp    rank 0 writes the weights, the trainer its optimizer
    fsdp           each rank writes its own shards of both, so the next run has as many ranks
    zero2, zero3   DeepSpeed's own checkpoint, each rank its partitions

They lie in the cache folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map
from transformers.trainer_utils import SaveStrategy

from bench import cache, store
from bench.spec import Cell
from bench.worker import ranks, shards

TRAINED = "model.safetensors"  # the trainer looks for a file of this name
KEPT = 2  # the last whole one, and the one that is being written


def every(cell: Cell) -> int | None:
    """Steps between checkpoints; None where there are none."""
    return None if cell.budget.probe else cell.budget.checkpoint_every


def arguments(cell: Cell) -> dict[str, Any]:
    """What the trainer's configuration gets."""
    steps = every(cell)
    if steps is None:
        return {}
    return {"save_strategy": SaveStrategy.STEPS, "save_steps": steps, "save_total_limit": KEPT}


def last(cell: Cell, attempt: Path) -> tuple[int, Path] | None:
    """(step, folder) of the checkpoint to go on from."""
    return store.checkpoint(attempt, cache.checkpoints(attempt)) if every(cell) else None


# ---------------------------------------------------------------- weights


def save(model: Any, folder: Path) -> None:
    """Write what trains: from rank 0 where each rank has all of it, else each rank's shards."""
    trained = _trained(model)
    if ranks.rank() == 0 or _in_shards(trained):
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: _held(p).cpu().contiguous() for name, p in trained.items()}
        save_file(tensors, folder / _file(trained), metadata={"format": "pt"})


@torch.no_grad()
def restore(model: Any, folder: Path) -> None:
    """Raises RuntimeError where the checkpoint holds other tensors than the model trains."""
    held = _trained(model)
    saved = load_file(folder / _file(held))
    if saved.keys() != held.keys():
        odd = sorted(saved.keys() ^ held.keys())
        raise RuntimeError(f"{folder.name}: {len(odd)} tensors don't match, e.g. {odd[0]}")
    for name, parameter in held.items():
        _held(parameter).copy_(saved[name])


def _trained(model: Any) -> dict[str, Any]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _in_shards(trained: dict[str, Any]) -> bool:
    return any(map(shards.is_dtensor, trained.values()))


def _held(parameter: Any) -> Any:
    return shards.local(parameter).detach()


def _file(trained: dict[str, Any]) -> str:
    return f"rank{ranks.rank()}.{TRAINED}" if _in_shards(trained) else TRAINED


# ---------------------------------------------------------------- a sharded optimizer


def is_sharded(optimizer: Any) -> bool:
    """Whether its state is of FSDP2's shards, which the trainer would write from rank 0 alone."""
    return any(map(shards.is_dtensor, _parameters(optimizer)))


def save_optimizer(optimizer: Any, folder: Path) -> None:
    state = tree_map(lambda leaf: _held(leaf) if shards.is_dtensor(leaf) else leaf,
                     optimizer.state_dict())  # fmt: skip
    torch.save(state, folder / _optimizer_file())


def restore_optimizer(optimizer: Any, folder: Path) -> None:
    """Into an optimizer of the same parameters, each sharded as it was."""
    saved = torch.load(folder / _optimizer_file(), map_location="cpu", weights_only=True)
    for index, parameter in enumerate(_parameters(optimizer)):
        state = saved["state"].get(index, {})
        saved["state"][index] = tree_map(_as_shard_of(parameter), state)
    optimizer.load_state_dict(saved)


def _parameters(optimizer: Any) -> list[Any]:
    """In the order in which a state_dict numbers them."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _as_shard_of(parameter: Any) -> Callable[[Any], Any]:
    """A state as large as the parameter's shard is one, too; a step counter isn't."""
    shard = _held(parameter)

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.shape != shard.shape:
            return leaf
        return DTensor.from_local(
            leaf.to(shard.device),
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    return placed if shards.is_dtensor(parameter) else lambda leaf: leaf


def _optimizer_file() -> str:
    return f"rank{ranks.rank()}.optimizer.pt"
