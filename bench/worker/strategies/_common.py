"""What several strategies say alike."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from bench.spec import Cell


def too_few(cell: Cell) -> str | None:
    if cell.data_parallel < 2:
        return (
            f"strategy {cell.strategy.name} needs two devices: target {cell.target.name} has "
            "one (on a CPU, `devices` is the number of processes)"
        )
    return None


def own_device(cell: Cell) -> dict[str, Any]:
    """The whole model on this rank's own device, tensor by tensor: none is ever whole on the host,
    and quantised weights are quantised as they come."""
    from bench.worker import ranks

    return {} if cell.target.device == "cpu" else {"device_map": {"": ranks.local_rank()}}


def loading(cell: Cell) -> AbstractContextManager[None]:
    return nullcontext()


def keep_no_casts() -> None:
    """Switch off autocast's cache: it holds a 16-bit copy of each weight until the forward ends.

    Where each layer is gathered in its turn and given up again, that is the whole model at last.
    torch.autocast, and so accelerate's and DeepSpeed's, starts from this switch.
    """
    import torch

    torch.set_autocast_cache_enabled(False)


def shard(model: Any, cell: Cell) -> None:
    """Nothing to spread."""


def check(model: Any) -> None:
    """Nothing to check before training."""


def gloo(cell: Cell) -> dict[str, Any]:
    """The trainer's name for the process group that is there already."""
    return {"ddp_backend": "gloo" if cell.target.device == "cpu" else "nccl"}


def trained_dtype(cell: Cell) -> str:
    adapter = cell.method.adapter
    return adapter.dtype if adapter else cell.method.dtype
