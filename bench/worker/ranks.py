"""This process among the ranks of a phase: who it is, and sums over all of them.

The runner starts each rank with torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_*).
Without them there is one rank, and every function here does nothing.  Functions, not constants:
workers are forked from a process that has imported this already.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

# A collective that waits longer has lost a rank.  The runner sees deaths at once; this is for what
# it can't see.  Loading 70B from a slow disk takes minutes, with ranks at different speeds.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
# What torch and its backends say when another rank is gone: the consequence, never the cause.
LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "remote process exited",
    "communicator was aborted",
    "timed out waiting",
    "failed to recv",
    "application timeout caused pair closure",
    "distnetworkerror",
)


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def begin(device: str) -> None:
    """Join the others.  Before any model is loaded: FSDP and DeepSpeed have to know our number."""
    if world() == 1:
        return
    import torch

    if device == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        torch.set_num_threads(max(1, (cores or 1) // world()))
        torch.distributed.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
        return
    torch.cuda.set_device(local_rank())
    torch.distributed.init_process_group(
        "nccl", timeout=COLLECTIVE_TIMEOUT, device_id=torch.device("cuda", local_rank())
    )


def barrier() -> None:
    if world() > 1:
        total([0.0])


def total(values: Sequence[float]) -> list[float]:
    """Each value summed over the ranks."""
    return _reduced(values, "SUM")


def largest(values: Sequence[float]) -> list[float]:
    """Each value's maximum over the ranks."""
    return _reduced(values, "MAX")


def _reduced(values: Sequence[float], operation: str) -> list[float]:
    if world() == 1 or not values:
        return list(values)
    import torch
    from torch import distributed

    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    distributed.all_reduce(tensor, getattr(distributed.ReduceOp, operation))
    return [float(value) for value in tensor]


def gathered(value: Any) -> list[Any]:
    """The value of every rank, on every rank."""
    if world() == 1:
        return [value]
    from torch import distributed

    values: list[Any] = [None] * world()
    distributed.all_gather_object(values, value)
    return values


def lost_peer(error: BaseException) -> bool:
    """Whether an error only says that another rank is gone."""
    text = f"{type(error).__name__}: {error}".lower()
    return world() > 1 and any(words in text for words in LOST_PEER)
