"""What CUDA kernels do that a meta trace cannot show: which attention runs, and hidden workspaces.

On meta tensors `scaled_dot_product_attention` always takes the math path, which materialises
batch × heads × length² scores; CUDA takes flash or memory-efficient attention.  `cuda_attention`
makes CUDA's choice (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, sm80 and newer).

`workspace_bytes` gives the memory that a kernel allocates and frees inside one call:

* flash attention backward: fp32 dq accumulator and softmax_d, and with grouped queries dk and dv
  at full head count (flash_attn/flash_api.cpp, mha_bwd);
* memory-efficient attention backward: fp32 delta (attention_backward.cu);
* bitsandbytes gemm_4bit: above a few hundred rows it dequantises the weight and calls F.linear
  (bitsandbytes/backends/cuda/ops.py, _gemm_4bit_use_custom_cuda);
* bitsandbytes' 8-bit product: int32 and fp16 results beside the one returned; and with
  transformers' default threshold the search for outliers: a 16-bit copy and a mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from bench.fit.precision import lowered

FLASH_MAX_HEAD_DIM = 256
CUSTOM_GEMM_4BIT_ROWS = 64  # below: bitsandbytes' own kernel, no dequantised copy

_math_attention = F.scaled_dot_product_attention


def cuda_attention(  # noqa: PLR0913, PLR0917 - torch's signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """scaled_dot_product_attention as CUDA's dispatcher would run it."""
    query, key, value = (_contiguous_last(lowered(tensor)) for tensor in (query, key, value))
    attn_mask = None if attn_mask is None else lowered(attn_mask)
    if _flash_can_run(query, key, value, attn_mask):
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if not enable_gqa:
        return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return _math_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _contiguous_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _flash_can_run(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    head_dim = query.shape[-1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    same = query.dtype == key.dtype == value.dtype and head_dim == value.shape[-1]
    return mask is None and half and same and head_dim <= FLASH_MAX_HEAD_DIM


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    head_dim = query.shape[-1]
    scale = scale if scale is not None else head_dim**-0.5
    padding = -head_dim % 8
    if padding:
        query, key, value = (F.pad(tensor, (0, padding)) for tensor in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, dropout, causal, False, scale=scale
    )[0]
    return out[..., :head_dim] if padding else out


def _efficient(  # noqa: PLR0913, PLR0917
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    if mask is not None:
        mask = _bias(mask, query, key)
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, torch.is_grad_enabled(), dropout, causal, scale=scale
    )[0]


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """An additive mask, its last dimension aligned to 16 as the kernel wants it."""
    if mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=query.dtype, device=mask.device)
        minus = torch.full((), float("-inf"), dtype=query.dtype, device=mask.device)
        mask = torch.where(mask, zero, minus)
    length = mask.shape[-1]
    if length % 16:
        mask = F.pad(mask, (0, 16 - length % 16))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def cuda_dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """CUDA's fused dropout keeps a mask of one byte an element; elsewhere a 16-bit noise tensor."""
    if not training or p == 0:
        return input
    return torch.native_dropout(input, p, True)[0]


@contextmanager
def cuda_kernels_selected() -> Iterator[None]:
    """Attention and dropout inside are those that CUDA would run."""
    attention, dropout = F.scaled_dot_product_attention, F.dropout
    F.scaled_dot_product_attention, F.dropout = cuda_attention, cuda_dropout
    try:
        yield
    finally:
        F.scaled_dot_product_attention, F.dropout = attention, dropout


# ---------------------------------------------------------------- workspaces


def _flash_backward(args: tuple[Any, ...]) -> int:
    query, key = args[1], args[2]
    batch, heads, length, head_dim = query.shape
    rows, columns = -(-length // 128) * 128, -(-head_dim // 32) * 32
    size = batch * heads * rows * (columns + 1) * 4
    if key.shape[1] != heads:
        size += 2 * batch * key.shape[2] * heads * head_dim * query.element_size()
    return size


def _efficient_backward(args: tuple[Any, ...]) -> int:
    batch, heads, length, _ = args[1].shape
    return batch * heads * length * 4


def _gemm_4bit(args: tuple[Any, ...]) -> int:
    inputs, shape = args[0], args[2]
    rows = inputs.numel() // inputs.shape[-1]
    if rows <= CUSTOM_GEMM_4BIT_ROWS:
        return 0
    elements = shape[0] * shape[1]
    nested = 8 * (elements // 64) if len(args) > 7 else 0  # two fp32 copies of the scales
    return elements * inputs.element_size() + nested


def _int8_quantise(args: tuple[Any, ...]) -> int:
    """`A.abs() >= threshold` (backends/cuda/ops.py, int8_vectorwise_quant): fp16 and bool."""
    return int(3 * args[0].numel())


def _int8_product(args: tuple[Any, ...]) -> int:
    """int32 product and its fp16 form, both alive while the input's dtype is made of them
    (backends/default/ops.py, int8_scaled_mm).  For an fp16 input the last copy doesn't exist."""
    rows = args[0].numel() // args[0].shape[-1]
    return int(rows * args[1].shape[0] * (4 + 2))


WORKSPACES: dict[str, Callable[[tuple[Any, ...]], int]] = {
    "aten._scaled_dot_product_flash_attention_backward.default": _flash_backward,
    "aten._scaled_dot_product_efficient_attention_backward.default": _efficient_backward,
    "bitsandbytes.gemm_4bit.default": _gemm_4bit,
    "bitsandbytes.int8_vectorwise_quant.default": _int8_quantise,
    "bitsandbytes.int8_scaled_mm.default": _int8_product,
}


def workspace_bytes(operator: str, args: tuple[Any, ...]) -> int:
    """Bytes allocated and freed inside one call of `operator` on CUDA, beyond its outputs."""
    formula = WORKSPACES.get(operator)
    return formula(args) if formula else 0


def old_workspace_bytes(operator: str, args: tuple[Any, ...]) -> int:
    """With bitsandbytes before 0.43 the fp16 weight and its bf16 copy are alive together."""
    size = workspace_bytes(operator, args)
    return 2 * size if operator == "bitsandbytes.gemm_4bit.default" else size


@functools.cache
def blas_workspace_bytes(compute_capability: float) -> int:
    """cuBLAS workspace that torch takes from the caching allocator, once per handle and stream.

    CUBLAS_WORKSPACE_CONFIG defaults to :4096:2:16:8 (8.125 MiB), and to 32 MiB on Hopper and
    newer (aten/src/ATen/cuda/CublasHandlePool.cpp, chooseCublasWorkspaceSize).
    """
    return 32 << 20 if compute_capability >= 9 else 4096 * 1024 * 2 + 16 * 1024 * 8
