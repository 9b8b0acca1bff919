"""Request → StepMemory: the trace, its replay for varying lengths, and the host's share."""

from __future__ import annotations

from bench.fit.host import host_memory
from bench.fit.plan import StepMemory
from bench.fit.request import Request
from bench.fit.simulate import simulate


def step_memory(request: Request) -> StepMemory:
    """Peak bytes of the heaviest rank and of one node."""
    found = simulate(request)
    host = host_memory(request, found)
    peak = found.peak
    return StepMemory(
        allocated_bytes=found.allocated,
        reserved_bytes=found.reserved,
        reserved_high_bytes=max(found.reserved, found.reserved_high),
        host_bytes=max(host.load, host.train),
        host_load_bytes=host.load,
        phases={name: item.allocated for name, item in found.phases.items()},
        reserved_phases=found.reserved_by_phase,
        breakdown={name: size for name, size in peak.categories.items() if size > 1 << 20},
        peak_phase=found.peak_phase,
        peak_operator=peak.operator,
        parameters=found.parameters,
        trainable=found.trainable,
        notes=found.notes,
    )
