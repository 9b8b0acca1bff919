"""Branches that ask for a tensor's value, which meta tensors don't have.

Each is answered as real training data would: batches hold no packed sequences that the mask code
must find, a padding mask has padding, norms are finite.  Device checks answer as on CUDA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

_grouped_mm = F.grouped_mm


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` inside."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def meta_behaves_like_cuda() -> Iterator[None]:
    """All patches that building, running and updating a model on meta need."""
    import torch.nn.utils.clip_grad as clip
    import transformers.masking_utils as masking

    keep_mask = masking._ignore_causal_mask_sdpa

    def with_padding(padding_mask: Any, *args: Any, **kwargs: Any) -> bool:
        return padding_mask is None and keep_mask(padding_mask, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (masking, "find_packed_sequence_indices", lambda _: None),
            (masking, "_ignore_causal_mask_sdpa", with_padding),
            (clip, "_has_foreach_support", lambda *_: True),
            (clip, "_device_has_foreach_support", lambda *_: True),
            (torch.cuda, "synchronize", lambda *_: None),
            (F, "grouped_mm", _grouped_product),
        ):
            if hasattr(owner, name):
                stack.enter_context(replaced(owner, name, value))
        stack.enter_context(_autocast_on_meta())
        yield


@contextlib.contextmanager
def _autocast_on_meta() -> Iterator[None]:
    """`torch.autocast("meta", enabled=False)` does nothing instead of raising."""
    real: Callable[..., Any] = torch.autocast.__init__

    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        real(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    enabled: Callable[..., bool] = torch.is_autocast_enabled

    def is_enabled(device_type: str = "cuda") -> bool:
        return device_type != "meta" and enabled(device_type)

    with (
        replaced(torch.autocast, "__init__", init),
        replaced(torch, "is_autocast_enabled", is_enabled),
    ):
        yield


def _grouped_product(rows: torch.Tensor, weights: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """On meta, torch's grouped product takes bf16 only; CUDA's takes fp32 and fp16 too."""
    if weights.dtype == torch.bfloat16 or rows.device.type != "meta":
        return _grouped_mm(rows, weights, **kwargs)
    made: torch.Tensor = _GroupedProduct.apply(rows, weights)
    return made


class _GroupedProduct(torch.autograd.Function):
    """Rows (S, K) times the matrix (K, N) of each row's expert: shapes and operations are those of
    one product with one expert's matrix."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, weights)
        return torch.mm(rows, weights[0])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        rows, weights = ctx.saved_tensors
        (gradient,) = gradients
        to_rows = torch.mm(gradient, weights[0].t()) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return to_rows, None
        torch.mm(rows.t(), gradient)
        return to_rows, torch.empty_like(weights)


@contextlib.contextmanager
def inputs_saved_by_4bit() -> Iterator[None]:
    """bitsandbytes before 0.43: MatMul4Bit kept its input, though only its weight is needed."""
    from bitsandbytes.autograd import _functions

    function: Any = _functions.MatMul4Bit
    real: Callable[..., Any] = function.forward

    def forward(ctx: Any, inputs: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        out = real(ctx, inputs, *args, **kwargs)
        ctx.kept_input = inputs
        return out

    with replaced(function, "forward", staticmethod(forward)):
        yield
