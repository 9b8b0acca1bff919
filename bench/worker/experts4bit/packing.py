"""A stack of experts as bytes, and back.

`weights` [E, O, I] (experts × output × input) becomes two uint8 tensors whose first dimension is
the expert, so that FSDP2, ZeRO-3 and safetensors see plain tensors that can be cut between experts:

    codes [E, O, I/2]   two 4-bit codes a byte, as bitsandbytes packs them
    stats [E, S]        an expert's scales: one for each block of 64 weights

Scales are fp32, or with double quantisation 8-bit codes, one fp32 for each 256 of those and one
fp32 offset, all as bytes: a cast of the model to bf16 can't corrupt them.  Bits a weight:
4 + 32/64 = 4.5, or 4 + 8/64 + 32/(64·256) = 4.127 (Dettmers et al. 2023, arXiv:2305.14314, §3).
Each expert is quantised by itself: the values are those of bitsandbytes' own Linear4bit.
"""

from __future__ import annotations

import functools

import bitsandbytes.functional as bnb
import torch

BLOCK = 64  # weights that share a scale
SCALES_PER_BLOCK = 256  # scales that share a second-level scale
FP32_BYTES = 4
Shape = tuple[int, ...]


def doubly(out_features: int, in_features: int, double_quant: bool) -> bool:
    """Whether the scales are quantised too: only where they fill whole blocks of 256."""
    return double_quant and out_features * in_features % (BLOCK * SCALES_PER_BLOCK) == 0


def stats_bytes(out_features: int, in_features: int, double_quant: bool) -> int:
    """Bytes of one expert's scales."""
    blocks = out_features * in_features // BLOCK
    if doubly(out_features, in_features, double_quant):
        return blocks + (blocks // SCALES_PER_BLOCK + 1) * FP32_BYTES
    return blocks * FP32_BYTES


def shapes(shape: Shape, double_quant: bool) -> tuple[Shape, Shape]:
    """Shapes of (codes, stats) for weights of `shape` (E, O, I); both are uint8."""
    experts, out, into = shape
    return (experts, out, into // 2), (experts, stats_bytes(out, into, double_quant))


@torch.no_grad()
def quantize(
    weights: torch.Tensor, double_quant: bool, quant_type: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """[E, O, I] → (codes, stats), expert by expert, so that temporaries are one expert's."""
    _, out, into = weights.shape
    codes_shape, stats_shape = shapes(tuple(weights.shape), double_quant)
    codes = torch.empty(codes_shape, dtype=torch.uint8, device=weights.device)
    stats = torch.empty(stats_shape, dtype=torch.uint8, device=weights.device)
    double = doubly(out, into, double_quant)
    for index, expert in enumerate(weights):
        packed, state = bnb.quantize_4bit(
            expert.contiguous(), blocksize=BLOCK, compress_statistics=double, quant_type=quant_type
        )
        codes[index] = packed.view(out, into // 2)
        scales = [state.absmax]
        if double:
            scales += [state.state2.absmax, state.offset.float().reshape(1)]
        stats[index] = torch.cat([_as_bytes(part) for part in scales])
    return codes, stats


@torch.no_grad()
def dequantize(
    codes: torch.Tensor, stats: torch.Tensor, dtype: torch.dtype, quant_type: str
) -> torch.Tensor:
    """(codes, stats) of any number of experts → [E, O, I], in one kernel launch."""
    experts, out, half = codes.shape
    scales = _scales(stats, blocks=out * half * 2 // BLOCK)
    return torch.ops.bitsandbytes.dequantize_4bit.default(
        codes.contiguous().view(-1, 1), scales, BLOCK, quant_type, (experts, out, 2 * half), dtype
    )


def _scales(stats: torch.Tensor, blocks: int) -> torch.Tensor:
    """fp32 scales of all experts, flat."""
    if stats.shape[1] == blocks * FP32_BYTES:
        return stats.contiguous().view(torch.float32).view(-1)
    second = stats[:, blocks:-FP32_BYTES].contiguous().view(torch.float32).view(-1)
    offset = stats[:, -FP32_BYTES:].contiguous().view(torch.float32)
    first = bnb.dequantize_blockwise(
        stats[:, :blocks].contiguous().view(-1),
        absmax=second,
        code=_code(stats.device),
        blocksize=SCALES_PER_BLOCK,
    )
    return (first.view(len(stats), blocks) + offset).view(-1)


# Made before any trace: the first one would count it, and no other
_META_CODE = torch.empty(256, device="meta")


@functools.cache
def _code(device: torch.device) -> torch.Tensor:
    """bitsandbytes' 256 values of an 8-bit scale, on the device."""
    if device.type == "meta":
        return _META_CODE
    return bnb.create_dynamic_map().to(device)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
