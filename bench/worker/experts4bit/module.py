"""A model's own experts class with 4-bit storage, and which layouts it serves.

The class is swapped in place: configuration, activation and gating stay the model's own.  About 60
families of transformers 5 share one layout (Qwen2/3-MoE, Mixtral, OLMoE, DeepSeek-V2/V3, GLM-4,
…): `gate_up_proj` [E, 2F, H] and `down_proj` [E, H, F], no bias.  The others are refused by name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bench.worker.experts4bit import packing
from bench.worker.experts4bit.linear import Grouped4bitLinear, Layout, grouped

PROJECTIONS = ("gate_up_proj", "down_proj")
STATS = "_stats"  # suffix of the parameter that holds a projection's scales


class Experts4bit(nn.Module):
    """Put in front of the model's class by `convert`; never made by itself."""

    layout: Layout
    double_quant: bool
    full_shapes: dict[str, tuple[int, int, int]]  # by projection, unquantised
    factors: dict[str, tuple[Any, ...]]  # adapters in use while a wrapper's forward runs
    _apply_gate: Any  # the model's own

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """hidden_states [T, H], top_k_index and top_k_weights [T, K] → [T, H].

        The same order of operations as transformers' own grouped forward, so that results are
        equal to the bit.
        """
        tokens, chosen = top_k_index.shape
        experts, order = torch.sort(top_k_index.reshape(-1))
        counts = torch.zeros(self._experts(), dtype=experts.dtype, device=experts.device)
        counts = counts.scatter_add(0, experts, torch.ones_like(experts))
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        rows = self._project("gate_up_proj", hidden_states[order // chosen], ends)
        rows = self._project("down_proj", self._apply_gate(rows), ends)
        rows = rows * top_k_weights.reshape(-1)[order].unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        summed = rows[back].view(tokens, chosen, -1).sum(dim=1)
        return summed.to(hidden_states.dtype)

    def _experts(self) -> int:
        return self.full_shapes["down_proj"][0]

    def _project(self, name: str, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """As bitsandbytes' Linear4bit: computed in the compute dtype, given back in the input's."""
        inner = rows.to(self.layout.compute_dtype or rows.dtype)
        codes, stats = getattr(self, name), getattr(self, name + STATS)
        result = Grouped4bitLinear.apply(inner, codes, stats, ends, self.layout)
        for down, up, scaling in self.factors.get(name, ()):  # [E, r, I], [E, O, r]
            low = grouped(inner, down.to(inner.dtype).transpose(1, 2), ends)
            high = grouped(low, up.to(inner.dtype).contiguous().transpose(1, 2), ends)
            result = result + scaling * high
        return result.to(rows.dtype)

    def dequantized(self, name: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """A projection's weights [E, O, I]."""
        codes, stats = getattr(self, name), getattr(self, name + STATS)
        return packing.dequantize(codes.data, stats.data, dtype, self.layout.quant_type)


# ---------------------------------------------------------------- which layouts


def fused_experts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) of every module that holds unquantised weights as a stack of experts."""
    for name, module in model.named_modules():
        if isinstance(module, Experts4bit):
            continue
        own = module.named_parameters(recurse=False)
        if any(p.ndim == 3 and p.is_floating_point() and part.endswith("proj") for part, p in own):
            yield name, module


def refusal(module: Any) -> str | None:
    """Why a module's fused experts can't be held in 4 bit; None where they can."""
    own = dict(module.named_parameters(recurse=False))
    if not all(name in own for name in PROJECTIONS) or not hasattr(module, "_apply_gate"):
        return f"{type(module).__name__} is not a gated pair of gate_up_proj and down_proj"
    odd = [
        what
        for what, is_so in {
            "transposed weights": getattr(module, "is_transposed", False),
            "biases": getattr(module, "has_bias", False),
            "no gate": not getattr(module, "has_gate", True),
            "a norm after each expert": getattr(module, "has_post_expert_norm", False),
            "expert parallelism": getattr(module, "_is_expert_parallel", False),
        }.items()
        if is_so
    ]
    if odd:
        return f"{type(module).__name__} has {' and '.join(odd)}"
    for name in PROJECTIONS:
        if own[name].shape[-1] % packing.BLOCK:
            return (
                f"{name} takes {own[name].shape[-1]} inputs, which blocks of {packing.BLOCK} "
                "weights don't divide"
            )
    return None


def refusals(model: nn.Module) -> list[str]:
    """One line for each reason why fused experts of this model can't be held in 4 bit."""
    return sorted({reason for _, module in fused_experts(model) if (reason := refusal(module))})


# ---------------------------------------------------------------- conversion


def convert(model: nn.Module, layout: Layout, double_quant: bool, *, empty: bool = False) -> None:
    """Swap the class and storage of every fused experts module, in place.

    With `empty`, the storage is made on meta (a skeleton for loading or for predictions); else the
    module's weights are quantised.  Raises ValueError for layouts that `refusals` names.
    """
    if reasons := refusals(model):
        raise ValueError("; ".join(reasons))
    for _, module in list(fused_experts(model)):
        _convert(module, layout, double_quant, empty)


def _convert(module: Any, layout: Layout, double_quant: bool, empty: bool) -> None:
    full_shapes = {}
    for name in PROJECTIONS:
        weights = getattr(module, name).detach()
        full_shapes[name] = tuple(weights.shape)
        if empty or weights.device.type == "meta":
            codes, stats = (
                torch.empty(shape, dtype=torch.uint8, device="meta")
                for shape in packing.shapes(full_shapes[name], double_quant)
            )
        else:
            codes, stats = packing.quantize(weights, double_quant, layout.quant_type)
        setattr(module, name, nn.Parameter(codes, requires_grad=False))
        setattr(module, name + STATS, nn.Parameter(stats, requires_grad=False))
    base: Any = type(module)
    module.__class__ = _class(base)
    module.full_shapes, module.layout, module.factors = full_shapes, layout, {}
    module.double_quant = double_quant


@functools.cache
def _class(base: type) -> type:
    return type(f"Experts4bit{base.__name__}", (Experts4bit, base), {})


def set_at_once(model: nn.Module, at_once: int | None) -> None:
    """How many experts are dequantised at a time: fewer need less memory and more launches."""
    for module in model.modules():
        if isinstance(module, Experts4bit):
            module.layout = replace(module.layout, at_once=at_once)


def quantized_elements(module: nn.Module) -> dict[str, int]:
    """Weights that a module's packed parameters stand for, by parameter; scales stand for none."""
    if not isinstance(module, Experts4bit):
        return {}
    held = {name: torch.Size(shape).numel() for name, shape in module.full_shapes.items()}
    return held | {name + STATS: 0 for name in held}
