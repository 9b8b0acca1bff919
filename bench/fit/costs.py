"""What each operator of a traced step costs: floating-point operations and bytes moved.

Counted on the same trace as memory, so recomputation by checkpointing and dequantisation are in.
torch's own formulas cover matrix products and attention; they silently count nothing for
bitsandbytes' products (QLoRA at 7B: 35.6 instead of 62.1 TFLOP a step) and for grouped products
(mixtures of experts), which are added here, and they count the half of a causal attention that its
kernel skips, which is taken off.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from bench.fit.trace import Tracer

_FREE = {
    "aten::detach", "aten::empty", "aten::empty_like", "aten::_unsafe_view", "aten::lift_fresh",
    "aten::empty_strided", "aten::new_empty", "aten::alias", "aten::view", "aten::t",
}  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """One operator call."""

    flops: int
    size: int
    fp32: bool


@dataclass
class StepCosts:
    """Calls of one micro-batch (forward and backward) and of one update.

    In generation: of the prompts, and of one token.
    """

    micro: Counter[Cost] = field(default_factory=Counter)
    update: Counter[Cost] = field(default_factory=Counter)
    micro_batches: int = 1

    @property
    def micro_flops(self) -> float:
        return sum(cost.flops * count for cost, count in self.micro.items()) / self.micro_batches

    def flops(self, accumulation: int) -> float:
        update = sum(cost.flops * count for cost, count in self.update.items())
        return self.micro_flops * accumulation + update


def observe(tracer: Tracer, costs: StepCosts) -> None:
    """Collect into `costs` what runs in the steady step, or in generation."""

    def see(func: Any, args: Any, kwargs: Any, out: Any) -> None:
        step, _, phase = tracer.phase.partition("/")
        counted = step == "steady" or phase in ("prompt", "token")
        if not counted or func.is_view or func._schema.name in _FREE:
            return
        counter = costs.micro if phase in ("forward", "backward", "prompt") else costs.update
        counter[cost_of(func, args, kwargs, out)] += 1

    tracer.observers.append(see)


def cost_of(func: Any, args: Any, kwargs: Any, out: Any) -> Cost:
    """Operations and bytes of one call: every distinct tensor is read or written once."""
    seen: dict[tuple[int, int], int] = {}
    for leaf in tree_leaves((args, kwargs, out)):
        if isinstance(leaf, torch.Tensor):
            size = leaf.numel() * leaf.element_size()
            seen[(leaf.untyped_storage()._cdata, leaf.numel())] = size
    flops = _flops(func, args, kwargs, out)
    # Attention's logsumexp and 4-bit weights' scales are fp32 beside factors that aren't
    factor = next((leaf for leaf in args if isinstance(leaf, torch.Tensor)), None)
    fp32 = flops > 0 and factor is not None and factor.dtype == torch.float32
    size = sum(seen.values())
    if func._schema.name == "bitsandbytes::gemm_4bit":
        size += 2 * args[2][0] * args[2][1] * 2  # the dequantised weight, written and read
    return Cost(flops, size, fp32)


def _flops(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    name = func._schema.name
    if name == "bitsandbytes::gemm_4bit":
        rows = args[0].numel() // args[0].shape[-1]
        return 2 * rows * args[2][0] * args[2][1]
    if name == "bitsandbytes::int8_scaled_mm":
        rows = args[0].numel() // args[0].shape[-1]
        return int(2 * rows * args[0].shape[-1] * args[1].shape[0])
    if name == "aten::_grouped_mm":
        return _grouped(args[0], args[1])
    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return 0
    flops = int(formula(*args, **kwargs, out_val=out))
    return flops // 2 if _causal(func, args, kwargs) else flops


def _causal(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an attention kernel skips what lies above the diagonal: torch's formula counts it."""
    names = [argument.name for argument in func._schema.arguments]
    if "is_causal" not in names:
        return False
    at = names.index("is_causal")
    return bool(kwargs.get("is_causal", args[at] if at < len(args) else False))


def _grouped(left: torch.Tensor, right: torch.Tensor) -> int:
    """Rows are spread over the groups: each row meets one matrix."""
    if left.dim() == 2 and right.dim() == 3:
        return 2 * left.shape[0] * left.shape[1] * right.shape[-1]
    if left.dim() == 2:
        return 2 * left.shape[0] * left.shape[1] * right.shape[-1]
    return 2 * left.shape[-2] * left.shape[-1] * right.shape[-1]
