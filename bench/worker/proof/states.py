"""The optimizer's tensors: how many bytes, in which dtypes, on which devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from bench.worker.proof.weights import dtype_name, tensor_bytes
from bench.worker.shards import local


def unwrapped(optimizer: Any) -> Any:
    """accelerate and DeepSpeed wrap optimizers."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def by_dtype(optimizer: Any) -> dict[str, int]:
    """This rank's bytes."""
    held: Counter[str] = Counter()
    for tensor in _tensors(optimizer):
        held[dtype_name(tensor.dtype)] += tensor_bytes(local(tensor))
    return dict(sorted(held.items()))


def by_device(optimizer: Any) -> dict[str, int]:
    """This rank's bytes by device type; paged state is on `cuda`, wherever its pages are."""
    held: Counter[str] = Counter()
    for tensor in _tensors(optimizer):
        held[tensor.device.type] += tensor_bytes(local(tensor))
    return dict(sorted(held.items()))


def _tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    for state in unwrapped(optimizer).state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))
