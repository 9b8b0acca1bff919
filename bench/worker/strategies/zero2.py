"""DeepSpeed ZeRO-2: gradients and optimizer state are sharded, every rank holds the whole model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from bench.spec import Cell
from bench.worker.strategies import _zero
from bench.worker.strategies._common import check, own_device, shard

__all__ = ["arguments", "check", "loading", "placement", "problems", "shard", "supports"]

placement = own_device


def supports(cell: Cell) -> str | None:
    if cell.strategy.offload_params:
        return "zero2 keeps parameters on each device: offload the optimizer only, or use zero3"
    return _zero.supports(cell)


def loading(cell: Cell) -> AbstractContextManager[None]:
    _zero.join(cell)
    return nullcontext()


def arguments(cell: Cell) -> dict[str, Any]:
    return _zero.arguments(cell, stage=2)


def problems(model: Any, wrapped: Any) -> list[str]:
    return _zero.problems(wrapped, stage=2)
