"""The frozen grouped linear layer: every expert's tokens times that expert's 4-bit weights.

Nothing dequantised outlives the call.  Autograd is given the packed parameters (alive anyway) and
the row offsets; the weights are dequantised again in backward.  The input isn't saved either: a
frozen weight needs no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.integrations.moe import _grouped_mm

from bench.worker.experts4bit import packing

ALIGNMENT_BYTES = 16  # rows that CUDA's grouped kernel takes


@dataclass(frozen=True)
class Layout:
    """How a stack is packed, what it computes in, and how many experts it dequantises at a time."""

    quant_type: str
    compute_dtype: torch.dtype | None  # None: the input's
    at_once: int | None = None  # None: a whole layer's


def grouped(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """rows [S, K] sorted by expert × weights [E, K, N] → [S, N]; `ends` [E] int32 row offsets."""
    narrow = [size * weights.element_size() % ALIGNMENT_BYTES for size in weights.shape[1:]]
    if weights.device.type == "cuda" and any(narrow):
        return torch.ops.transformers.grouped_mm_fallback(rows, weights, ends)
    return _grouped_mm(rows, weights, ends)


class Grouped4bitLinear(torch.autograd.Function):
    """y[s] = W[expert of s] · x[s]; the gradient reaches x alone."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        codes: torch.Tensor,
        stats: torch.Tensor,
        ends: torch.Tensor,
        layout: Layout,
    ) -> torch.Tensor:
        ctx.save_for_backward(codes, stats, ends)
        ctx.layout = layout
        return _multiply(rows, (codes, stats, ends), layout, transposed=True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        rows = _multiply(gradient.contiguous(), ctx.saved_tensors, ctx.layout, transposed=False)
        return rows, None, None, None, None


Packed = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _multiply(rows: torch.Tensor, packed: Packed, layout: Layout, transposed: bool) -> torch.Tensor:
    """rows · Wᵀ (forward) or rows · W (backward), one chunk of experts after another."""
    codes, stats, ends = packed
    experts, out, half = codes.shape
    at_once = layout.at_once or experts
    if at_once >= experts:
        return _chunk(rows, packed, layout, transposed)
    result = rows.new_zeros(len(rows), out if transposed else 2 * half)
    bounds = [0, *_row_numbers(ends, rows)]
    for first in range(0, experts, at_once):
        last = min(first + at_once, experts)
        start, end = bounds[first], bounds[last]
        if start < end:  # experts that no token chose aren't even dequantised
            part = (codes[first:last], stats[first:last], ends[first:last] - start)
            result[start:end] = _chunk(rows[start:end], part, layout, transposed)
    return result


def _chunk(rows: torch.Tensor, packed: Packed, layout: Layout, transposed: bool) -> torch.Tensor:
    codes, stats, ends = packed
    weights = packing.dequantize(codes, stats, rows.dtype, layout.quant_type)
    return grouped(rows, weights.transpose(1, 2) if transposed else weights, ends)


def _row_numbers(ends: torch.Tensor, rows: torch.Tensor) -> list[int]:
    """Offsets as numbers (one synchronisation); evenly spread where there are no values to read."""
    if rows.device.type == "meta" or type(rows) is not torch.Tensor:
        return [len(rows) * (i + 1) // len(ends) for i in range(len(ends))]
    return ends.tolist()
