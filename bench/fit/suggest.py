"""The smallest changes that would make a configuration fit, each with its own figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.fit.cache import Cache
from bench.fit.choices import best_strategy, strategies_of
from bench.fit.floor import floor_bytes
from bench.fit.generation import deployed
from bench.fit.predict import Job, complete, predict
from bench.fit.request import Request
from bench.plan import GIB, Plan
from bench.spec import TargetSpec

ENOUGH = 4  # suggestions; more would not be read


@dataclass(frozen=True)
class Asked:
    """A configuration that doesn't fit: the request, its job and its machine."""

    request: Request
    job: Job
    target: TargetSpec
    auto: bool = False  # every strategy was tried on this machine


def changes(
    asked: Asked, plan: Plan, targets: Sequence[TargetSpec], cache: Cache
) -> list[dict[str, Any]]:
    """What would make it fit: single changes, another strategy, the cheapest larger machine.

    What can't help, or is hopeless by its weights and states alone, isn't traced.
    """
    found: list[dict[str, Any]] = []
    for words, tried in _single(asked, plan):
        made = predict(tried.request, tried.target, cache)
        made = complete(made, tried.request, tried.target, cache, tried.job)
        if made.fits:
            found.append({"change": words, "target": tried.target.name, **figures(made)})
        if len(found) == ENOUGH:
            break
    here = [] if asked.auto else [asked.target]
    larger = [machine for machine in targets if _larger(machine, asked.target)]
    for machine in [*here, *sorted(larger, key=_dollars_an_hour)]:
        best = _on_machine(asked, machine, cache)
        same = machine.name == asked.target.name
        if best is not None and best.fits and not (same and best.strategy == plan.strategy):
            words = f"strategy {best.strategy}" if same else f"machine {machine.name}"
            found.append({"change": words, "target": machine.name, **figures(best)})
            if not same:
                break
    return found


def _single(asked: Asked, plan: Plan) -> Iterator[tuple[str, Asked]]:
    """Changes of the one phase that breaks; where several do, no single change helps."""
    broken = [limit for limit in plan.limits if limit.missing_bytes]
    if all(limit.phase == "generate" for limit in broken):
        decoding = asked.job.decoding
        if decoding is not None and decoding.batch > 1 and plan.generation is not None:
            less = decoding.model_copy(update={"batch": 1})
            yield "generate_batch 1", replace(asked, job=replace(asked.job, decoding=less))
        return
    if any(limit.phase == "generate" for limit in broken):
        return
    host = any(limit.name == "host" for limit in broken)
    for words, request in candidates(asked.request, host):
        if floor_bytes(request) <= _capacity(asked.target):
            yield words, replace(asked, request=request)


def _on_machine(asked: Asked, machine: TargetSpec, cache: Cache) -> Plan | None:
    """The best strategy's plan; None without tracing where weights and states alone exceed it."""
    tried = strategies_of(asked.request, machine)
    if not any(floor_bytes(one) <= _capacity(machine) for one in tried):
        return None
    if asked.job.decoding and floor_bytes(deployed(asked.request)) > _node_bytes(machine):
        return None
    plan, request = best_strategy(asked.request, machine, cache)
    return complete(plan, request, machine, cache, asked.job) if plan.fits else plan


def _larger(machine: TargetSpec, than: TargetSpec) -> bool:
    """More GPU memory in all, or more host RAM."""
    if machine.device == "cpu" or machine.name == than.name:
        return False
    more_host = (machine.host_ram_gib or 0) > (than.host_ram_gib or 0)
    return _node_bytes(machine) * machine.nodes > _node_bytes(than) * than.nodes or more_host


def _node_bytes(target: TargetSpec) -> float:
    """Memory of a node's GPUs: a model that generates is spread over one node."""
    return _capacity(target) * target.devices


def _capacity(target: TargetSpec) -> float:
    return (target.device_memory_gib or 0) * GIB


def _dollars_an_hour(target: TargetSpec) -> float:
    return target.price.usd_per_device_hour * target.devices * target.nodes


def figures(plan: Plan) -> dict[str, Any]:
    """What a row of a table needs of a plan."""
    return {
        "strategy": plan.strategy,
        "micro_batch": plan.micro_batch,
        "device_bytes": plan.device_bytes,
        "host_bytes": plan.memory.host_bytes if plan.memory else None,
        "step_s": plan.time.step_s if plan.time else None,
    }


def candidates(request: Request, host: bool = False) -> Iterator[tuple[str, Request]]:
    """(what to change, the request with it); with `host`, only what helps the host's RAM."""

    def changed(**fields: Any) -> Request:
        return request.model_copy(update=fields)

    if request.optimizer in ("adamw", "adamw_fused"):
        yield "8-bit optimizer", changed(optimizer="adamw_8bit")
    if host:
        return
    if request.checkpointing == "none":
        yield "gradient checkpointing on", changed(checkpointing="full")
    if request.micro_batch > 1:
        half = request.micro_batch // 2
        yield (
            f"micro-batch {half}",
            changed(micro_batch=half, accumulation=request.accumulation * 2),
        )
        accumulation = request.accumulation * request.micro_batch
        if half > 1:
            yield "micro-batch 1", changed(micro_batch=1, accumulation=accumulation)
    if request.longest > 512:
        length = request.longest // 2
        lengths = tuple(min(length, batch) for batch in request.lengths)
        yield f"sequence length {length}", changed(seq_len=length, lengths=lengths)
    if request.optimizer in ("adamw", "adamw_fused"):
        yield "paged 8-bit optimizer", changed(optimizer="paged_adamw_8bit")
