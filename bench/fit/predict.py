"""Question → Plan: memory, fit, time and money of one configuration on one target.

`predict` answers for the training phase; `complete` adds generation, and prices both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.fit.build import CannotBuild
from bench.fit.cache import Cache
from bench.fit.constants import constant
from bench.fit.floor import floor_bytes
from bench.fit.generation import deployed
from bench.fit.memory import costs_of, counted
from bench.fit.request import Decoding, Request, Sharding
from bench.fit.steptime import Gpu, Weights, find_gpu, gpu_of, roofline_s, step_time
from bench.plan import GIB, DataLengths, GenerationMemory, Growth, Limit, Plan, StepMemory, StepTime
from bench.spec import TargetSpec


@dataclass(frozen=True)
class Job:
    """How much of it there is: updates, what is generated at once, answers in all, and on what."""

    steps: int | None = None
    decoding: Decoding | None = None
    answers: int | None = None
    data: DataLengths | None = None


def predict(request: Request, target: TargetSpec, cache: Cache | None = None) -> Plan:
    """Training.  What can't be built gives fits=None and says why."""
    sharding = request.sharding
    plan = Plan(
        fits=None,
        strategy=strategy_name(sharding),
        offload_params=sharding.offload_params,
        offload_optimizer=sharding.offload_optimizer,
        micro_batch=request.micro_batch,
    )
    cache = cache or Cache()
    try:
        memory = cache.memory(request)
    except CannotBuild as error:
        plan.notes.append(str(error))
        return plan
    plan.memory = memory
    outside = outside_bytes(request)
    plan.device_bytes = memory.reserved_bytes + outside
    if "evaluate/forward" in memory.reserved_phases:
        plan.evaluation_bytes = memory.reserved_phases["evaluate/forward"] + outside
    plan.limits = list(_limits(plan, memory, target))
    plan.fits = _all_hold(plan)
    plan.time = time_of(request, memory, target, cache)
    return plan


def complete(plan: Plan, request: Request, target: TargetSpec, cache: Cache, job: Job) -> Plan:
    """The plan with its data, generation phase, steps, seconds and dollars."""
    plan.data = job.data
    if job.decoding is not None:
        try:
            _add_generation(plan, request, target, cache, job)
        except CannotBuild as error:
            plan.notes.append(f"generation: {error}")
    if plan.limits:
        plan.fits = _all_hold(plan)
    if plan.time is not None and job.steps:
        plan.steps = job.steps
        plan.train_s = plan.time.step_s * job.steps
    _price(plan, target)
    return plan


def strategy_name(sharding: Sharding) -> str:
    """E.g. zero3+offload."""
    offload = sharding.offload_params or sharding.offload_optimizer
    return sharding.kind + ("+offload" if offload else "")


def outside_bytes(request: Request) -> int:
    """What the driver shows beyond torch's counters: CUDA context, NCCL."""
    several = request.sharding.devices > 1
    return int((constant("cuda_context_gib") + several * constant("nccl_gib")) * GIB)


# ---------------------------------------------------------------- fit


def _all_hold(plan: Plan) -> bool:
    return not any(limit.missing_bytes for limit in plan.limits)


def _limits(plan: Plan, memory: StepMemory, target: TargetSpec) -> Iterator[Limit]:
    if target.device_memory_gib and plan.device_bytes is not None:
        have = int(target.device_memory_gib * GIB)
        yield Limit(
            name="gpu", phase=memory.peak_phase, need_bytes=plan.device_bytes, have_bytes=have
        )
        if memory.load_bytes:
            need = memory.load_bytes + int(constant("cuda_context_gib") * GIB)
            yield Limit(name="gpu", phase="load", need_bytes=need, have_bytes=have)
    if target.host_ram_gib:
        loading = memory.host_load_bytes >= memory.host_bytes
        yield Limit(
            name="host",
            phase="load" if loading else "train",
            need_bytes=memory.host_bytes,
            have_bytes=int(target.host_ram_gib * GIB),
        )


# Published runs with padded batches of varying lengths reserved up to 1.5 times what their longest
# batch does alone.
MOST_GROWTH = 1.5


def add_range(plan: Plan, request: Request, target: TargetSpec, cache: Cache) -> None:
    """Whether the margin is narrow, with what varying lengths add where it could reach the limit.

    For the plan that was chosen: the replay takes seconds, and it never decides whether a cell fits
    (near its limit the allocator gives free blocks back and goes on, slower).
    """
    if plan.memory is not None:
        _grow_where_it_matters(plan, request, target, cache)
        plan.notes += _margin(plan, target)


def _grow_where_it_matters(plan: Plan, request: Request, target: TargetSpec, cache: Cache) -> None:
    assert plan.memory is not None and plan.device_bytes is not None
    most = MOST_GROWTH * plan.memory.reserved_bytes + outside_bytes(request)
    if not request.lengths or plan.fits is False:
        return
    if target.device_memory_gib and most <= target.device_memory_gib * GIB:
        return
    growth = cache.growth(request)
    add_growth(plan, growth)
    plan.notes += growth.notes


def add_growth(plan: Plan, growth: Growth) -> None:
    plan.growth = growth
    plan.device_high_bytes = (plan.device_bytes or 0) + growth.high_bytes


def _margin(plan: Plan, target: TargetSpec) -> list[str]:
    """A prediction within its own error of the limit says so."""
    if not target.device_memory_gib or plan.device_bytes is None or plan.fits is False:
        return []
    share = plan.device_bytes / (target.device_memory_gib * GIB)
    high = (plan.device_high_bytes or 0) / (target.device_memory_gib * GIB)
    if share <= 1 < share * (1 + constant("narrow_margin")):
        return ["narrow: within the prediction's error of the limit; a run begins with a probe"]
    if share <= 1 < high:
        return [
            "narrow: batches of different lengths can fill the GPU with free blocks; steps then "
            "get slower, and expandable_segments or bucketing avoids it"
        ]
    return []


# ---------------------------------------------------------------- generation


def _add_generation(
    plan: Plan, request: Request, target: TargetSpec, cache: Cache, job: Job
) -> None:
    """On one device if it fits there, else with the layers spread over all of a node's.

    Allocated bytes decide: the cache's blocks grow with every token, so that freed ones pile up,
    but near the limit the allocator gives those back before it fails.
    """
    assert job.decoding is not None
    have = int((target.device_memory_gib or 0) * GIB)
    context = int(constant("cuda_context_gib") * GIB)
    found: GenerationMemory | None = None
    alone = floor_bytes(deployed(request)) <= have
    for devices in dict.fromkeys((1 if alone else target.devices, target.devices)):
        decoding = job.decoding.model_copy(update={"devices": devices})
        found = cache.generation(request, decoding)
        if found.allocated_bytes + context <= have:
            break
    assert found is not None
    plan.generation = found
    plan.generation_bytes = found.allocated_bytes + context
    if have:
        need = plan.generation_bytes
        plan.limits.append(Limit(name="gpu", phase="generate", need_bytes=need, have_bytes=have))
    gpu = _gpu(request, target)
    if gpu is not None and job.answers:
        prompts, token = (
            roofline_s(counted(c), gpu) for c in (found.prompt_costs, found.token_costs)
        )
        batches = -(-job.answers // job.decoding.batch)
        plan.generate_s = batches * (prompts + job.decoding.new * token)


# ---------------------------------------------------------------- time and money


def _gpu(request: Request, target: TargetSpec) -> Gpu | None:
    """None where the target's GPU is unknown: no other card's peak stands in."""
    facts: dict[str, Any] | None = find_gpu(target.gpu or "")
    if facts is None:
        return None
    rate = target.fp16_dense_tflops if request.dtype == "fp16" else target.bf16_dense_tflops
    named = {
        "tflops": rate,
        "memory_gbs": target.memory_gbs,
        "nvlink_gbs": target.nvlink_gbs,
        "pcie_gbs": target.pcie_gbs,
    }
    return gpu_of({**facts, **{name: value for name, value in named.items() if value is not None}})


def time_of(
    request: Request, memory: StepMemory, target: TargetSpec, cache: Cache
) -> StepTime | None:
    """Seconds of an update; None where the GPU is unknown."""
    gpu = _gpu(request, target)
    if gpu is None:
        return None
    share = 1.0
    if request.lengths:
        pace = cache.pace(request)
        mean, longest = (
            roofline_s(counted(costs), gpu) for costs in (pace.mean_costs, pace.longest_costs)
        )
        share = mean / longest
    weights = Weights(memory.held_bytes, memory.trained_bytes)
    return step_time(request, costs_of(memory), weights, gpu, share)


def _price(plan: Plan, target: TargetSpec) -> None:
    seconds = [s for s in (plan.train_s, plan.generate_s) if s is not None]
    if not seconds or (plan.time is not None and plan.train_s is None):
        return
    spread = 1 + constant("time_spread")
    hours = sum(seconds) * target.devices * target.nodes / 3600
    plan.usd = hours * target.price.usd_per_device_hour
    plan.usd_low = hours / spread * target.price.low_usd
    plan.usd_high = hours * spread * target.price.high_usd
