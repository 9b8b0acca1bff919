"""CUDA's autocast on meta tensors, where torch.autocast does not exist.

Published runs through the Trainer with bf16=True are under autocast, and it changes memory: linear
layers cast fp32 inputs and weights down (weight casts are cached until the forward ends), softmax,
norms' rsqrt and the loss cast up.  The lists are those of torch's documentation, "CUDA Ops that can
autocast to float16/float32".
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_LOWER = {
    F.linear,
    F.bilinear,
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.mm,
    torch.Tensor.mm,
    torch.bmm,
    torch.Tensor.bmm,
    torch.addmm,
    torch.addbmm,
    torch.baddbmm,
    torch.einsum,
    torch.conv1d,
    torch.conv2d,
}
_UPPER = {
    F.softmax,
    F.log_softmax,
    F.cross_entropy,
    F.nll_loss,
    F.layer_norm,
    F.group_norm,
    F.softplus,
    F.normalize,
    torch.softmax,
    torch.Tensor.softmax,
    torch.log_softmax,
    torch.Tensor.log_softmax,
    torch.layer_norm,
    torch.pow,
    torch.Tensor.pow,
    torch.Tensor.__pow__,
    torch.rsqrt,
    torch.Tensor.rsqrt,
    torch.exp,
    torch.Tensor.exp,
    torch.log,
    torch.Tensor.log,
    torch.sum,
    torch.Tensor.sum,
    torch.prod,
    torch.cumsum,
    torch.Tensor.cumsum,
    torch.norm,
}


_active: list[Autocast] = []


def lowered(tensor: torch.Tensor) -> torch.Tensor:
    """What a kernel that autocast runs in 16 bit receives; unchanged without autocast.

    For functions that stand in for torch's own, which the mode can't see.
    """
    found: torch.Tensor = _active[-1]._down(tensor) if _active else tensor
    return found


class Autocast(TorchFunctionMode):
    """`with Autocast(torch.bfloat16):` around a forward pass.

    Without `cached`, weights are cast anew at each use, as they must be where they are gathered
    layer by layer: the cache would keep a 16-bit copy of the whole model until the forward ends.
    """

    def __init__(self, dtype: torch.dtype, cached: bool = True) -> None:
        super().__init__()
        self.dtype = dtype
        self.cached = cached
        self.cache: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def __enter__(self) -> Autocast:
        _active.append(self)
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        _active.remove(self)
        self.cache.clear()
        super().__exit__(*exception)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LOWER:
            args, kwargs = tree_map(self._down, (args, kwargs))
        elif func in _UPPER:
            args, kwargs = tree_map(self._up, (args, kwargs))
        return func(*args, **kwargs)

    def _down(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if value.dtype == self.dtype:
            return value
        # torch's own rule (aten/src/ATen/autocast_mode.cpp, cached_cast)
        trained = value.is_leaf and value.requires_grad and not value._is_view()
        if not (self.cached and trained and value.dtype == torch.float32):
            return value.to(self.dtype)
        known, cast = self.cache.get(id(value), (None, None))
        if known is None or known() is not value:  # else a dead tensor's, which had the same id
            cast = value.to(self.dtype)
            self.cache[id(value)] = weakref.ref(value), cast
        return cast

    @staticmethod
    def _up(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
            return value.float()
        return value
