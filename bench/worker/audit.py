"""Proof of what ran, counted on the model itself.  Settings asked for prove nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from bench.record import Audit
from bench.spec import Cell
from bench.worker import methods, ranks, shards, strategies


class Auditor:
    """Looks at the model before the first step and after the last one."""

    def __init__(self, cell: Cell, model: Any) -> None:
        self.cell = cell
        self.model = model
        self.layers = decoder_layers(model)
        self.calls = 0
        self._hooks: list[Any] = []
        self.recomputed: int | None = None
        self.weights_are_placed()

    def weights_are_placed(self) -> None:
        """From here on a tensor that changes has been trained, not moved to other ranks."""
        self._sums = checksums(self.model)

    def first_step_begins(self) -> None:
        """Start counting forwards: validation before this point doesn't count.

        The hook sits on each layer's first child: transformers checkpoints inside the layer's own
        forward, so hooks on the layer itself don't run again.
        """
        children = (next(layer.children()) for layer in self.layers)
        self._hooks = [child.register_forward_pre_hook(self._count) for child in children]

    def _count(self, *_: Any) -> None:
        self.calls += 1

    def first_step_ends(self, micro_batches: int) -> None:
        """Gradient checkpointing runs each layer's forward again during backward: count it."""
        for hook in self._hooks:
            hook.remove()
        self.recomputed = self.calls - micro_batches * len(self.layers)

    def report(self, optimizer: Any, settings: dict[str, Any], wrapped: Any = None) -> Audit:
        """Everything counted, and what it contradicts.  All ranks call it and get the same."""
        model, method = self.model, self.cell.method
        moved = self._moved()
        trainable = {name for name, p in model.named_parameters() if p.requires_grad}
        audit = Audit(
            **weights_facts(model),
            adapted_modules=adapted_modules(model),
            attention=getattr(model.config, "_attn_implementation", None),
            optimizer=type(_unwrapped(optimizer)).__name__ if optimizer else None,
            optimizer_state_bytes=state_bytes(optimizer) if optimizer else {},
            recomputed_layers=self.recomputed,
            decoder_layers=len(self.layers),
            moved_params=len(moved & trainable),
            trainable_tensors=len(trainable),
            frozen_moved=len(moved - trainable),
            wrapper=type(wrapped).__name__ if wrapped is not None else None,
            sharded_tensors=sum(shards.is_sharded(p) for p in model.parameters()),
            rank_bytes=ranks.gathered(shards.held_bytes(model)),
            settings=settings,
        )
        if wrapped is not None:
            audit.problems += strategies.module(self.cell).problems(model, wrapped)
        audit.problems += methods.module(method.kind).problems(model, method)
        audit.problems += self._contradictions(audit)
        still = sorted(trainable - moved)
        if still:
            audit.warnings.append(f"{len(still)} trainable tensors never moved, e.g. {still[0]}")
        return audit

    def _moved(self) -> set[str]:
        """Tensors that changed on any rank."""
        after = checksums(self.model)
        changed = [float(value != self._sums[name]) for name, value in after.items()]
        anywhere = ranks.largest(changed)
        return {name for name, flag in zip(after, anywhere, strict=True) if flag}

    def _contradictions(self, audit: Audit) -> list[str]:
        method = self.cell.method
        found = []
        if not audit.moved_params:
            found.append("no trainable weight moved")
        if audit.frozen_moved:
            found.append(f"{audit.frozen_moved} frozen tensors changed")
        if method.gradient_checkpointing and not self.recomputed:
            found.append("gradient checkpointing was asked for, but no layer was recomputed")
        if not method.gradient_checkpointing and self.recomputed:
            found.append("layers were recomputed although gradient checkpointing is off")
        if audit.attention != method.attention:
            found.append(f"attention is {audit.attention}, not {method.attention}")
        return found


# ---------------------------------------------------------------- counting


def decoder_layers(model: Any) -> list[Any]:
    """The transformer blocks: the longest list of equal modules."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    alike = [m for m in lists if len({type(item) for item in m}) == 1]
    return list(max(alike, key=len, default=[]))


def checksums(model: Any) -> dict[str, float]:
    """Sum of each tensor's values that this rank holds, accumulated in float64 without a copy."""
    with torch.no_grad():
        return {name: _checksum(p) for name, p in model.named_parameters()}


def _checksum(parameter: Any) -> float:
    held = shards.local(parameter)
    if is_quantized(parameter):  # bits stored as floats may spell NaN, which never equals itself
        held = held.view(torch.uint8)
    return float(held.sum(dtype=torch.float64))


def weights_facts(model: Any) -> dict[str, Any]:
    """Numbers of parameters (4-bit weights counted one by one) and bytes by dtype as held."""
    held: Counter[str] = Counter()
    total = trainable = quantized = 0
    for parameter in model.parameters():
        count = elements(parameter)
        total += count
        trainable += count if parameter.requires_grad else 0
        quantized += count if is_quantized(parameter) else 0
        local = shards.local(parameter)
        held[dtype_name(parameter.dtype)] += local.numel() * local.element_size()
    return {
        "total_params": total,
        "trainable_params": trainable,
        "quantized_params": quantized,
        "bytes_by_dtype": dict(sorted(held.items())),
    }


def is_quantized(parameter: Any) -> bool:
    """bitsandbytes' own parameter classes, whatever dtype stores their bits."""
    known = type(parameter).__name__ in ("Params4bit", "Int8Params")
    return known or hasattr(parameter, "quantized_shape")  # FSDP2 replaces the class


def elements(parameter: Any) -> int:
    """Weights that a tensor stands for: 4-bit ones are packed, several to an element."""
    state = getattr(parameter, "quant_state", None)
    shape = state.shape if state is not None else shards.shape(parameter)
    return int(torch.Size(getattr(parameter, "quantized_shape", shape)).numel())


def quantized_params(model: Any) -> int:
    return sum(elements(p) for p in model.parameters() if is_quantized(p))


def quantizable_params(model: Any) -> int:
    """Weights of linear layers and fused experts inside the decoder blocks, adapters apart.

    Embeddings, norms and the head are outside what QLoRA promises; fused experts are 3-D.
    """
    return sum(
        elements(p)
        for layer in decoder_layers(model)
        for name, p in layer.named_parameters()
        if "lora_" not in name and (len(shards.shape(p)) >= 2 or is_quantized(p))
    )


def adapted_modules(model: Any) -> dict[str, int]:
    """Last name of each module that carries an adapter: how many of them."""
    names = Counter(
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if getattr(module, "lora_A", None)
    )
    return dict(sorted(names.items()))


def state_bytes(optimizer: Any) -> dict[str, int]:
    """Optimizer state by dtype, in bytes."""
    held: Counter[str] = Counter()
    for state in _unwrapped(optimizer).state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                local = shards.local(value)
                held[dtype_name(value.dtype)] += local.numel() * local.element_size()
    return dict(sorted(held.items()))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _unwrapped(optimizer: Any) -> Any:
    """accelerate and DeepSpeed wrap optimizers."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer
