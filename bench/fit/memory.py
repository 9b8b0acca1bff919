"""Request → StepMemory: the trace, its replay, and the host's share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bench.fit.costs import Cost, StepCosts
from bench.fit.host import host_memory
from bench.fit.request import Request
from bench.fit.simulate import simulate
from bench.plan import CostRow, StepMemory


def step_memory(request: Request) -> StepMemory:
    """Peak bytes of the heaviest rank and of one node, and what its operators cost."""
    found = simulate(request)
    host = host_memory(request, found)
    peak = found.phases[found.peak_phase]
    trace = found.trace
    return StepMemory(
        allocated_bytes=found.allocated,
        reserved_bytes=found.reserved,
        host_bytes=max(host.load, host.train),
        host_load_bytes=host.load,
        phases={name: item.allocated for name, item in found.phases.items()},
        reserved_phases=found.reserved_by_phase,
        breakdown={name: size for name, size in peak.categories.items() if size > 1 << 20},
        peak_phase=found.peak_phase,
        peak_operator=peak.operator,
        parameters=trace.parameters,
        trainable=trace.trainable,
        held_bytes=trace.held_bytes,
        trained_bytes=trace.trained_bytes,
        micro_batches=trace.costs.micro_batches,
        micro_costs=cost_rows(trace.costs.micro),
        update_costs=cost_rows(trace.costs.update),
    )


def cost_rows(costs: Counter[Cost]) -> list[CostRow]:
    """As they are kept on disk."""
    return [(cost.flops, cost.size, cost.fp32, count) for cost, count in costs.items()]


def counted(rows: Iterable[CostRow]) -> Counter[Cost]:
    """The opposite of `cost_rows`."""
    return Counter({Cost(flops, size, fp32): count for flops, size, fp32, count in rows})


def costs_of(memory: StepMemory) -> StepCosts:
    """The operator costs that a StepMemory carries."""
    return StepCosts(
        micro=counted(memory.micro_costs),
        update=counted(memory.update_costs),
        micro_batches=memory.micro_batches,
    )
