"""Request → what the step holds, by running it on meta tensors and replaying its allocations."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from bench.fit import kernels, step
from bench.fit.allocator import CachingAllocator
from bench.fit.build import build
from bench.fit.request import Request
from bench.fit.trace import Peak, Tracer


@dataclass
class Simulation:
    """Bytes of one rank."""

    request: Request
    allocated: int
    reserved: int
    host: int
    reserved_high: int
    phases: dict[str, Peak]
    reserved_by_phase: dict[str, int]
    parameters: int
    trainable: int
    out_of_memory: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def peak(self) -> Peak:
        return max(self.phases.values(), key=lambda peak: peak.allocated)

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=lambda name: self.phases[name].allocated)


def trace_request(request: Request) -> tuple[Tracer, int, int]:
    """Build, place and run; returns the tracer, all parameters and the trainable ones."""
    from bench.fit.sharding import placement_for

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(request)
        total = sum(_elements(parameter) for parameter in model.parameters())
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        old = request.quantization is not None and request.quantization.half_state
        tracer = Tracer(kernels.old_workspace_bytes if old else kernels.workspace_bytes)
        step.run(model, request, tracer, placement_for(model, request, tracer))
    return tracer, total, trainable


def _elements(parameter: object) -> int:
    """Weights that a parameter stands for: a packed 4-bit one holds its shape in its state."""
    state = getattr(parameter, "quant_state", None)
    shape = state.shape if state is not None else parameter.shape  # type: ignore[attr-defined]
    return int(shape.numel())


def simulate(request: Request, capacity: int | None = None) -> Simulation:
    """Peaks of one rank; `capacity` in bytes makes the allocator retry as near a real limit."""
    tracer, total, trainable = trace_request(request)
    allocator = CachingAllocator(capacity=capacity, expandable=request.expandable_segments)
    allocator.run(tracer.events)
    return Simulation(
        request=request,
        allocated=allocator.max_allocated,
        reserved=allocator.max_reserved,
        host=tracer.host_bytes,
        reserved_high=allocator.max_reserved,
        phases=tracer.peaks,
        reserved_by_phase={
            tracer.phases[index]: size for index, size in allocator.reserved_by_phase.items()
        },
        parameters=total,
        trainable=trainable,
        out_of_memory=allocator.out_of_memory,
    )
