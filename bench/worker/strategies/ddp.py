"""Data parallel: every rank holds the whole model, gradients are averaged (torch's DDP)."""

from __future__ import annotations

from typing import Any

from bench.spec import Cell
from bench.worker import shards
from bench.worker.strategies._common import check, gloo, loading, own_device, shard, too_few

__all__ = ["arguments", "check", "loading", "placement", "problems", "shard", "supports"]

placement = own_device


def supports(cell: Cell) -> str | None:
    if cell.strategy.offload_params or cell.strategy.offload_optimizer:
        return "ddp keeps everything on each device: for offload use zero2, zero3 or fsdp"
    return too_few(cell)


def arguments(cell: Cell) -> dict[str, Any]:
    # Searching the graph for unused parameters each step is for models that skip some; fused
    # experts without a token get a gradient of zeros, not none.
    return {**gloo(cell), "ddp_find_unused_parameters": False}


def problems(model: Any, wrapped: Any) -> list[str]:
    from torch.nn.parallel import DistributedDataParallel

    found = []
    if not isinstance(wrapped, DistributedDataParallel):
        found.append(f"not ddp: the trainer ran a {type(wrapped).__name__}")
    if any(shards.is_sharded(parameter) for parameter in model.parameters()):
        found.append("not ddp: parameters are sharded")
    return found
