"""Request → what the step holds and costs, by running it on meta tensors."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, field

from bench.fit import kernels, lengths, step
from bench.fit.allocator import CachingAllocator
from bench.fit.build import build
from bench.fit.costs import StepCosts, observe
from bench.fit.request import Request, Sharding
from bench.fit.trace import Peak, Tracer


@dataclass
class Trace:
    """A traced run of some steps."""

    tracer: Tracer
    parameters: int
    trainable: int
    held_bytes: int
    trained_bytes: int
    costs: StepCosts


@dataclass
class Simulation:
    """Bytes of one rank.  `reserved` is for the request's lengths, `reserved_fixed` for one."""

    trace: Trace
    allocated: int
    reserved: int
    reserved_fixed: int
    reserved_high: int
    reserved_by_phase: dict[str, int]
    retries: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def host(self) -> int:
        return self.trace.tracer.host_bytes

    @property
    def phases(self) -> dict[str, Peak]:
        return self.trace.tracer.peaks

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=lambda name: self.phases[name].allocated)


def trace_request(request: Request, length: int | None = None, steps: int = step.STEPS) -> Trace:
    """Build, place and run `steps` steps of one length."""
    from bench.fit.sharding import placement_for

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(request)
        old = request.quantization is not None and request.quantization.half_state
        tracer = Tracer(kernels.old_workspace_bytes if old else kernels.workspace_bytes)
        costs = StepCosts(micro_batches=min(request.accumulation, 2))
        observe(tracer, costs)
        parameters = list(model.parameters())
        placement = placement_for(model, request, tracer)
        step.run(model, request, tracer, placement, length=length, steps=steps)
    trained = [p for p in parameters if p.requires_grad]
    return Trace(
        tracer,
        parameters=sum(_elements(parameter) for parameter in parameters),
        trainable=sum(p.numel() for p in trained),
        held_bytes=sum(p.numel() * p.element_size() for p in parameters),
        trained_bytes=sum(p.numel() * p.element_size() for p in trained),
        costs=costs,
    )


def _elements(parameter: object) -> int:
    """Weights that a parameter stands for: a packed 4-bit one holds its shape in its state."""
    state = getattr(parameter, "quant_state", None)
    shape = state.shape if state is not None else parameter.shape  # type: ignore[attr-defined]
    return int(shape.numel())


def simulate(request: Request, capacity: int | None = None) -> Simulation:
    """Peaks of one rank; `capacity` in bytes makes the allocator retry as near a real limit."""
    trace = trace_request(request)
    tracer = trace.tracer
    fixed = CachingAllocator(capacity=capacity, expandable=request.expandable_segments)
    fixed.run(tracer.events)
    found = Simulation(
        trace,
        allocated=fixed.max_allocated,
        reserved=fixed.max_reserved,
        reserved_fixed=fixed.max_reserved,
        reserved_high=fixed.max_reserved,
        reserved_by_phase={
            tracer.phases[index]: size for index, size in fixed.reserved_by_phase.items()
        },
        retries=fixed.retries,
    )
    if len(set(request.lengths)) > 1:
        growth = sorted(_growth(request, found))
        found.reserved += growth[len(growth) // 2]
        found.reserved_high = found.reserved_fixed + growth[-1]
    return found


# Growth comes from the logits and from a few layers' blocks, so a shallow model shows it.
GROWTH_LAYERS = 8
ORDERS = 3  # how much it grows depends on the order; the median and the largest are reported


def _growth(request: Request, found: Simulation) -> list[int]:
    """Reserved bytes that varying lengths add to those of the longest alone, by order."""
    shallow = _shallow(request)
    longest = request.longest
    shares = (4, 2, 1) if request.padded else (3, 1)
    traces = [trace_request(shallow, max(16, longest // share), steps=3) for share in shares]
    anchors = [
        lengths.Anchor(max(16, longest // share), _pattern(trace))
        for share, trace in zip(shares, traces, strict=True)
    ]
    if not all(anchor.pattern.same_shape(anchors[0].pattern) for anchor in anchors):
        found.notes.append("lengths change the order of events: only the longest was replayed")
        return [0]
    alone = CachingAllocator(expandable=request.expandable_segments)
    alone.run(traces[-1].tracer.events)
    return [
        max(0, _varied(request, traces[0].tracer, anchors, seed) - alone.max_reserved)
        for seed in range(ORDERS)
    ]


def _varied(request: Request, start: Tracer, anchors: list[lengths.Anchor], seed: int) -> int:
    """Reserved bytes of a run over the request's lengths in one order."""
    order = list(request.lengths)
    random.Random(seed).shuffle(order)
    first, last = start.marks[1], start.marks[2]
    allocator = lengths.replay(
        start.events[:first],
        start.events[first:last],
        anchors,
        order,
        CachingAllocator(expandable=request.expandable_segments),
        request.empty_cache_every,
    )
    return allocator.max_reserved


def _shallow(request: Request) -> Request:
    """The same step with fewer layers, one micro-batch an update, on one device."""
    config = dict(request.config)
    config["num_hidden_layers"] = min(GROWTH_LAYERS, config["num_hidden_layers"])
    return request.model_copy(
        update={"config": config, "accumulation": 1, "sharding": Sharding(), "lengths": ()}
    )


def _pattern(trace: Trace) -> lengths.Pattern:
    return lengths.pattern_of(trace.tracer.events, trace.tracer.marks)
