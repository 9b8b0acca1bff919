"""Request → what the step holds and costs, by running it on meta tensors."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from bench.fit import depth, kernels, step
from bench.fit.allocator import CachingAllocator, Event
from bench.fit.build import build
from bench.fit.costs import StepCosts, observe
from bench.fit.floor import asked_of_weights
from bench.fit.ledger import Birth, Peak, peaks
from bench.fit.request import Request
from bench.fit.trace import Tracer


@dataclass
class Trace:
    """A traced run of some steps on one rank."""

    events: Sequence[Event]
    layers: Sequence[int] = field(repr=False)
    marks: Sequence[int]
    phases: Sequence[str]
    births: Mapping[int, Birth]
    categories: Sequence[str]
    host_bytes: int
    parameters: int
    trainable: int
    held_bytes: int
    trained_bytes: int
    packed_bytes: int  # of held_bytes, what is in 4 bit
    costs: StepCosts

    @functools.cached_property
    def peaks(self) -> dict[str, Peak]:
        return peaks(self.events, self.phases, self.births, self.categories)


@dataclass
class Simulation:
    """Bytes of one rank whose batches all have the longest length."""

    trace: Trace
    allocated: int
    reserved: int
    reserved_by_phase: dict[str, int]
    retries: int = 0

    @property
    def host(self) -> int:
        return self.trace.host_bytes

    @property
    def phases(self) -> dict[str, Peak]:
        return self.trace.peaks

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=lambda name: self.phases[name].allocated)


Run = Callable[[nn.Module, Request, Tracer], None]


def record(request: Request, run: Run) -> Trace:
    """Build the model and trace what `run` does with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(request)
        old = request.quantization is not None and request.quantization.half_state
        tracer = Tracer(kernels.old_workspace_bytes if old else kernels.workspace_bytes)
        costs = StepCosts(micro_batches=min(request.accumulation, 2))
        observe(tracer, costs)
        parameters = list(model.parameters())
        depth.follow_layers(model, tracer)
        run(model, request, tracer)
    trained = [p for p in parameters if p.requires_grad]
    return Trace(
        events=tracer.events,
        layers=tracer.layers,
        marks=tracer.marks,
        phases=tracer.phases,
        births=tracer.births,
        categories=tracer.categories,
        host_bytes=tracer.host_bytes,
        parameters=sum(_stands_for(parameter) for parameter in parameters),
        trainable=sum(p.numel() for p in trained),
        held_bytes=sum(p.numel() * p.element_size() for p in parameters),
        trained_bytes=sum(p.numel() * p.element_size() for p in trained),
        packed_bytes=sum(p.numel() for p in parameters if p.dtype == torch.uint8),
        costs=costs,
    )


def trace_request(
    request: Request,
    length: int | None = None,
    steps: int = step.STEPS,
    trained_elements: int | None = None,
) -> Trace:
    """Build, place and run `steps` steps of one length.

    `trained_elements` of the full model, where this one is a shallow stand-in: buckets need it.
    """
    from bench.fit.sharding import placement_for

    def run(model: nn.Module, request: Request, tracer: Tracer) -> None:
        placement = placement_for(model, request, tracer)
        placement.trained_elements = trained_elements or placement.trained_elements
        step.run(model, request, tracer, placement, length=length, steps=steps)

    return record(request, run)


def _stands_for(parameter: object) -> int:
    """Weights that a parameter stands for: a packed 4-bit one holds its shape in its state.

    Packed experts are 3-D codes, two a byte, and 2-D scales (bench.worker.experts4bit.packing).
    """
    state = getattr(parameter, "quant_state", None)
    if state is None and parameter.dtype == torch.uint8:  # type: ignore[attr-defined]
        return 2 * parameter.numel() if parameter.ndim == 3 else 0  # type: ignore[attr-defined]
    shape = state.shape if state is not None else parameter.shape  # type: ignore[attr-defined]
    return int(shape.numel())


# ---------------------------------------------------------------- depth

SHALLOW = (5, 9)  # layers to trace (and one more); the next is tried where the first isn't enough
TEMPLATE = 2  # layer that is repeated: its neighbours are like it, too
GAIN = 1.5  # of layers saved, below which the full model is traced

Tracing = Callable[[Request, int | None], Trace]


def full_trace(request: Request) -> Trace:
    """The trained steps at full depth."""

    def tracing(one: Request, trained_elements: int | None) -> Trace:
        return trace_request(one, trained_elements=trained_elements)

    return at_full_depth(request, tracing, _kept_at_end(request))


def at_full_depth(request: Request, tracing: Tracing, kept: int = 0) -> Trace:
    """From shallow traces where layers repeat (see `depth`), else of the full model.

    `tracing` gets a request, and the full model's trained elements if that request has fewer
    layers.  The last `kept` layers differ from the others.
    """
    layers = request.config.get("num_hidden_layers", 0)
    if layers < GAIN * (2 * SHALLOW[0] + 1) or not _uniform(json.dumps(request.config)):
        return tracing(request, None)
    one, two = (_elements_of(_with_layers(request, count))[0] for count in (1, 2))
    trained = one + (layers - 1) * (two - one)
    for few in sorted({max(few, kept + TEMPLATE + 2) for few in SHALLOW}):
        if layers < GAIN * (2 * few + 1):
            break
        pair = (_with_layers(request, count) for count in (few, few + 1))
        shallow, deeper = (tracing(one, trained) for one in pair)
        try:
            return _lengthened(shallow, deeper, layers - few)
        except depth.CannotLengthen:
            continue
    return tracing(request, None)


def _kept_at_end(request: Request) -> int:
    """Last layers that ZeRO-3 doesn't release between forward and backward."""
    if request.sharding.kind != "zero3" or request.config.get("num_hidden_layers", 0) < 2:
        return 0
    (_, one), (_, two) = (_elements_of(_with_layers(request, count)) for count in (1, 2))
    return request.sharding.max_live_elements // (2 * (two - one))


def _lengthened(shallow: Trace, deeper: Trace, more: int) -> Trace:
    """Raises CannotLengthen."""
    longer = depth.lengthen(shallow.events, shallow.layers, TEMPLATE, 1)
    gains = depth.growth(shallow.events, longer, deeper.events)
    full = depth.lengthen(shallow.events, shallow.layers, TEMPLATE, more)
    costs = StepCosts(
        micro=depth.counts_at(shallow.costs.micro, deeper.costs.micro, more),
        update=depth.counts_at(shallow.costs.update, deeper.costs.update, more),
        micro_batches=shallow.costs.micro_batches,
    )
    linear = "host_bytes parameters trainable held_bytes trained_bytes packed_bytes"
    return Trace(
        events=depth.grown(full, gains, more),
        layers=(),
        marks=(),
        phases=shallow.phases,
        births={new: shallow.births[old] for new, old in full.idents.items()},
        categories=shallow.categories,
        costs=costs,
        **{
            name: getattr(shallow, name) + more * (getattr(deeper, name) - getattr(shallow, name))
            for name in linear.split()
        },
    )


@functools.cache
def _uniform(config: str) -> bool:
    plain = Request(config=json.loads(config), attention="eager", seq_len=1)
    return depth.uniform(build(plain))


def _elements_of(request: Request) -> tuple[int, int]:
    """(trained elements, elements as held)."""
    return _elements(asked_of_weights(request).model_dump_json())


@functools.cache
def _elements(asked: str) -> tuple[int, int]:
    parameters = list(build(Request.model_validate_json(asked)).parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    return trained, sum(p.numel() for p in parameters)


def _with_layers(request: Request, layers: int) -> Request:
    config = depth.shallow_config(request.config, layers)
    return request.model_copy(update={"config": config})


def simulate(request: Request, capacity: int | None = None) -> Simulation:
    """Peaks of one rank; `capacity` in bytes makes the allocator retry as near a real limit."""
    trace = full_trace(request)
    fixed = CachingAllocator(capacity=capacity, expandable=request.expandable_segments)
    fixed.run(trace.events)
    return Simulation(
        trace,
        allocated=fixed.max_allocated,
        reserved=fixed.max_reserved,
        reserved_by_phase={
            trace.phases[index]: size for index, size in fixed.reserved_by_phase.items()
        },
        retries=fixed.retries,
    )
