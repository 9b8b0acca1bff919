"""What the first optimizer step shows: recomputed layers, gradients, the attention kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.worker import ranks, shards


class Recomputation:
    """Counts the decoder layers' forwards; gradient checkpointing runs each again in backward.

    The hook sits on each layer's first child: transformers checkpoints inside the layer's own
    forward, so hooks on the layer itself don't run again.
    """

    def __init__(self, layers: list[Any]) -> None:
        self.layers = layers
        self.calls = 0
        self._hooks: list[Any] = []

    def begin(self) -> None:
        children = (next(layer.children()) for layer in self.layers)
        self._hooks = [child.register_forward_pre_hook(self._count) for child in children]

    def _count(self, *_: Any) -> None:
        self.calls += 1

    def end(self, micro_batches: int) -> int:
        """Layer forwards beyond the `micro_batches` ordinary ones."""
        for hook in self._hooks:
            hook.remove()
        return self.calls - micro_batches * len(self.layers)


class Gradients:
    """Which trainable tensors got a finite gradient, on any of the ranks.

    Read from `Parameter.grad` before the update, or, `as_they_come`, by hooks: DeepSpeed reduces
    gradients into buffers of its own, and has stepped by the time that the trainer says "before".
    """

    def __init__(self, model: Any, as_they_come: bool = False) -> None:
        self.model = model
        self.as_they_come = as_they_come
        self.missing: list[str] = []
        self.broken: list[str] = []
        self.finite: int | None = None
        self._verdicts: dict[str, Any] = {}
        self._hooks: list[Any] = []

    def begin(self) -> None:
        if self.as_they_come:
            self._hooks = [p.register_hook(self._hook(name)) for name, p in self._trainable()]

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def note(gradient: torch.Tensor) -> None:
            finite = torch.isfinite(gradient.sum())
            self._verdicts[name] = finite & self._verdicts.get(name, finite)

        return note

    def look(self) -> None:
        """Between the last backward and the optimizer's update.  All ranks must call it."""
        for hook in self._hooks:
            hook.remove()
        if not self.as_they_come:
            self._verdicts = {
                name: torch.isfinite(shards.local(parameter.grad).sum())
                for name, parameter in self._trainable()
                if parameter.grad is not None
            }
        names = [name for name, _ in self._trainable()]
        got = ranks.largest([float(name in self._verdicts) for name in names])
        bad = ranks.largest([float(not self._verdicts.get(name, True)) for name in names])
        self.missing = [name for name, flag in zip(names, got, strict=True) if not flag]
        self.broken = [name for name, flag in zip(names, bad, strict=True) if flag]
        self.finite = len(names) - len(self.missing) - len(self.broken)

    def _trainable(self) -> list[tuple[str, Any]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]


class AttentionKernel:
    """The operators that the first layer's attention calls, in its first forward."""

    def __init__(self, layers: list[Any]) -> None:
        self.ops: list[str] | None = None
        self._mode = _Names()
        self._hooks: list[Any] = []
        for name, child in layers[0].named_children() if layers else ():
            if re.search(r"att(n|ention)", name):
                self._child = child
                break
        else:
            self._child = None

    def begin(self) -> None:
        if self._child is not None:
            self._hooks = [
                self._child.register_forward_pre_hook(lambda *_: self._enter()),
                self._child.register_forward_hook(lambda *_: self._leave(), always_call=True),
            ]

    def _enter(self) -> None:
        self._mode.__enter__()

    def _leave(self) -> None:
        self._mode.__exit__(None, None, None)
        self.ops = sorted(name for name in self._mode.seen if re.search(r"flash|attention", name))
        for hook in self._hooks:
            hook.remove()


class _Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(str(func.overloadpacket).removeprefix("aten."))
        return func(*args, **(kwargs or {}))
