"""Optimizers on meta: the real classes where they run, their states alone where they can't.

AdamW's default `foreach` form allocates one temporary as large as the parameters
(`_foreach_sqrt`); the fused CUDA kernel doesn't.  bitsandbytes' states are made by its own
init_state; only its CUDA kernels are left out.  Paged states live in CUDA unified memory, outside
torch's allocator: they are counted as host bytes, so the GPU figure is a floor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from bench.fit.patches import replaced
from bench.fit.trace import Tracer

Parameters = list[torch.nn.Parameter]
PAGED_MIN_ELEMENTS = 100_000  # bitsandbytes/optim/optimizer.py, get_state_buffer


class FusedAdamW(torch.optim.Optimizer):
    """Two states and a step scalar a parameter, no temporaries: what torch's fused kernel needs."""

    def __init__(self, params: Parameters, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter] = {
                        "step": torch.zeros((), device=parameter.device),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }


class EarlyForeachAdamW(torch.optim.AdamW):
    """torch 2.0's foreach form: `denom` was a second temporary beside the square root."""

    def step(self, closure: Any = None) -> Any:
        in_place = torch._foreach_add_

        def add(tensors: Any, other: Any, **kwargs: Any) -> None:
            copies = torch._foreach_add(tensors, other) if isinstance(other, float) else None
            in_place(tensors, other, **kwargs)
            del copies

        with replaced(torch, "_foreach_add_", add):
            return super().step(closure)


def make_optimizer(kind: str, parameters: Parameters) -> torch.optim.Optimizer:
    """The optimizer that `kind` (bench.spec.Optimizer) names."""
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-4, foreach=True)
    if kind == "adamw_torch_2_0":
        return EarlyForeachAdamW(parameters, lr=1e-4, foreach=True)
    if kind == "adamw_fused":
        return FusedAdamW(parameters)
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=1e-4, foreach=True)
    if kind == "adafactor":
        from transformers import Adafactor

        return Adafactor(parameters, lr=1e-4, scale_parameter=False, relative_step=False)
    from bitsandbytes import optim

    names = {
        "adamw_8bit": "AdamW8bit",
        "paged_adamw_8bit": "PagedAdamW8bit",
        "paged_adamw_32bit": "PagedAdamW32bit",
    }
    made: torch.optim.Optimizer = getattr(optim, names[kind])(parameters, lr=1e-4)
    return made


@contextlib.contextmanager
def bitsandbytes_updates(tracer: Tracer) -> Iterator[None]:
    """bitsandbytes' optimizers allocate their states; updates and page faults are skipped."""
    from bitsandbytes.optim.optimizer import Optimizer2State, Optimizer8bit

    def buffer(self: Any, p: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if not self.is_paged or p.numel() < PAGED_MIN_ELEMENTS:
            return torch.zeros_like(p, dtype=dtype)
        tracer.host_bytes += p.numel() * dtype.itemsize
        return torch.empty(0, dtype=dtype, device=p.device)

    with (
        replaced(Optimizer2State, "update_step", lambda *_, **__: None),
        replaced(Optimizer8bit, "get_state_buffer", buffer),
        replaced(Optimizer8bit, "prefetch_state", lambda *_: None),
        replaced(torch.cuda, "synchronize", lambda *_: None),
    ):
        yield


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Every tensor that the optimizer keeps between steps."""
    return [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]


def step_in_backward(kind: str, parameters: Parameters) -> list[torch.optim.Optimizer]:
    """One optimizer a parameter, run as soon as its gradient is complete; then it is freed."""
    optimizers = []
    for parameter in parameters:
        optimizer = make_optimizer(kind, [parameter])

        def update(p: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            p.grad = None

        parameter.register_post_accumulate_grad_hook(update)
        optimizers.append(optimizer)
    return optimizers
