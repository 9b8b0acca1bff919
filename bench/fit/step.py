"""The training step, traced: load, then whole steps with the loop's own object lifetimes.

Two steps are run, because the first differs: optimizer states appear at its end, and what the
first step's loop variables still hold is alive during the second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bench.fit import kernels, optim
from bench.fit.checkpointing import autocast_context
from bench.fit.loss import kernels_in_place, loss_function
from bench.fit.patches import inputs_saved_by_4bit, meta_behaves_like_cuda
from bench.fit.quantize import quant_state_tensors
from bench.fit.request import Request
from bench.fit.trace import Tracer

STEPS = 2


class Placement:
    """Where weights, gradients and states live.  This one: all of them on one device."""

    def __init__(self, model: nn.Module, request: Request, tracer: Tracer) -> None:
        self.model, self.request, self.tracer = model, request, tracer
        # Of the full model, where `model` is a shallow stand-in: engines size buckets by it.
        self.trained_elements = sum(p.numel() for p in model.parameters() if p.requires_grad)

    def load(self) -> None:
        for parameter in self.model.parameters():
            kind = "adapters" if parameter.requires_grad and self.request.adapter else "weights"
            self.tracer.track(parameter, kind)
        for tensor in (*self.model.buffers(), *quant_state_tensors(self.model)):
            self.tracer.track(tensor, "weights")

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer updates."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def clips(self) -> list[nn.Parameter]:
        """What gradient clipping runs over."""
        return self.parameters()

    def before_forward(self) -> None: ...

    def before_backward(self) -> None: ...

    def after_backward(self, last: bool) -> None:
        """`last`: the micro-batch that completes the step's gradients."""
        self.tracer.move([parameter.grad for parameter in self.parameters()], "gradients")

    def zero_grad(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    def optimizer_step(self, optimizers: list[torch.optim.Optimizer]) -> None:
        for optimizer in optimizers:
            optimizer.step()


@dataclass
class Loop:
    """State of a traced training loop."""

    model: nn.Module
    request: Request
    tracer: Tracer
    placement: Placement
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    forward: Any = None
    kept: Any = None  # outputs that the loop's variable still refers to


@contextlib.contextmanager
def traced(tracer: Tracer, request: Request) -> Iterator[None]:
    """Everything inside runs as on CUDA and is recorded."""
    quantization = request.quantization
    old = quantization is not None and quantization.saves_inputs
    with (
        meta_behaves_like_cuda(),
        inputs_saved_by_4bit() if old else contextlib.nullcontext(),
        kernels.cuda_kernels_selected(),
        optim.bitsandbytes_updates(tracer),
        kernels_in_place(request),
        tracer,
    ):
        yield


def run(  # noqa: PLR0913, PLR0917
    model: nn.Module,
    request: Request,
    tracer: Tracer,
    placement: Placement,
    context: contextlib.AbstractContextManager[None] | None = None,
    length: int | None = None,
    steps: int = STEPS,
) -> Loop:
    """Load the model and run its steps; the tracer holds the result.

    `context` replaces the emulation of CUDA: a test runs the same loop on a real CPU.
    """
    loop = Loop(model, request, tracer, placement)
    placement.load()
    blas = kernels.blas_workspace_bytes(request.compute_capability)
    tracer.hold(blas, "workspace")
    tracer.vocabulary = request.config.get("vocab_size")
    parameters = placement.parameters()
    if request.optimizer_in_backward:
        loop.optimizers = optim.step_in_backward(request.optimizer, parameters)
    else:
        loop.optimizers = [optim.make_optimizer(request.optimizer, parameters)]
    loop.forward = loss_function(model, request)
    with context or traced(tracer, request):
        for number in range(1, steps + 1):
            tracer.mark_step()
            train_step(loop, number, length or _length(request, number))
        if request.evaluates:
            evaluate(loop, length or request.longest)
    return loop


def _length(request: Request, number: int) -> int:
    """The first step's loop variables live on in the second, which has the longest batch."""
    return (request.previous_length if number == 1 else 0) or request.longest


def train_step(loop: Loop, number: int, length: int) -> None:
    """One optimizer update."""
    request, tracer, placement = loop.request, loop.tracer, loop.placement
    name = "first" if number == 1 else "steady"
    placement.zero_grad()
    micro_batches = min(request.accumulation, 2)  # the third behaves like the second
    for index in range(micro_batches):
        micro_step(loop, name, length, last=index == micro_batches - 1)
    if not request.optimizer_in_backward:
        if request.max_grad_norm is not None:
            tracer.start_phase(f"{name}/clip")
            clip(placement, request)
        tracer.start_phase(f"{name}/optimizer")
        placement.optimizer_step(loop.optimizers)
    for optimizer in loop.optimizers:
        tracer.move(optim.state_tensors(optimizer), "optimizer_states")
    if request.frees_gradients_at_once:
        placement.zero_grad()
    if request.empty_cache_every and number % request.empty_cache_every == 0:
        tracer.empty_cache()


def clip(placement: Placement, request: Request) -> None:
    assert request.max_grad_norm is not None
    nn.utils.clip_grad_norm_(placement.clips(), request.max_grad_norm, foreach=True)


def micro_step(loop: Loop, name: str, length: int, last: bool) -> None:
    """Forward and backward of one micro-batch."""
    request, tracer = loop.request, loop.tracer
    tracer.start_phase(f"{name}/forward")
    ids, labels, mask = batch(loop, length)
    loop.placement.before_forward()
    with autocast_context(request), _activations(request, loop):
        loss, outputs = loop.forward(ids, labels, mask)
        tracer.leave_layers()  # autocast frees its copies of all layers' weights
        loss = loss / request.accumulation if request.accumulation > 1 else loss
    loop.kept = outputs if request.keeps_outputs else None
    del outputs
    tracer.start_phase(f"{name}/backward")
    loop.placement.before_backward()
    loss.backward()
    tracer.leave_layers()
    loop.placement.after_backward(last)


@torch.no_grad()
def evaluate(loop: Loop, length: int) -> None:
    """bench.worker.train.validation_loss: whole logits in fp32, which training never makes."""
    request, placement = loop.request, loop.placement
    loop.tracer.start_phase("evaluate/forward")
    ids, labels, mask = batch(loop, length)
    placement.before_forward()
    loop.model.eval()
    with autocast_context(request):
        out = loop.model(input_ids=ids, attention_mask=mask, use_cache=False)
        logits = out.logits[:, :-1].float()
        F.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="sum")
        loop.tracer.leave_layers()
    loop.model.train()
    placement.after_backward(last=False)


def batch(loop: Loop, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Token ids, labels and, if padded, the mask."""
    request = loop.request
    shape = (request.micro_batch, length)
    device = next(loop.model.parameters()).device
    ids = torch.empty(shape, dtype=torch.long, device=device).fill_(1)
    mask = torch.empty(shape, dtype=torch.long, device=device).fill_(1) if request.padded else None
    return ids, ids.clone(), mask


# ---------------------------------------------------------------- activation offload

OFFLOAD_MIN_BYTES = 1024  # torchtune/training/_activation_offloading.py


def _activations(request: Request, loop: Loop) -> Any:
    if not request.activation_offload:
        return contextlib.nullcontext()
    weights = {p.untyped_storage()._cdata for p in loop.model.parameters()}
    tracer = loop.tracer

    def pack(tensor: torch.Tensor) -> Any:
        size = tensor.numel() * tensor.element_size()
        if size < OFFLOAD_MIN_BYTES or tensor.untyped_storage()._cdata in weights:
            return tensor
        tracer.host_bytes += size
        return (tensor.shape, tensor.dtype)

    def unpack(saved: Any) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        return torch.empty(saved[0], dtype=saved[1], device="meta")

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
