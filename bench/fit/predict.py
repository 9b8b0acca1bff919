"""Question → Plan: memory, fit, time and money of one configuration on one target.

python -m bench.fit fit qwen2.5-7b --method qlora --target 1xl40s-48gb --json
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.fit.build import CannotBuild
from bench.fit.cache import Cache
from bench.fit.constants import constant
from bench.fit.memory import costs_of
from bench.fit.request import Request, Sharding
from bench.fit.steptime import Weights, find_gpu, gpu_of, step_time
from bench.plan import GIB, Limit, Plan, StepMemory, StepTime
from bench.spec import TargetSpec

# Fastest first; each is tried until one fits.
STRATEGIES: tuple[dict[str, object], ...] = (
    {"kind": "ddp"},
    {"kind": "fsdp"},
    {"kind": "zero2"},
    {"kind": "zero3"},
    {"kind": "zero3", "offload_optimizer": True},
    {"kind": "zero3", "offload_optimizer": True, "offload_params": True},
)


def predict(
    request: Request, target: TargetSpec, cache: Cache | None = None, steps: int | None = None
) -> Plan:
    """One configuration.  What can't be built gives fits=None and says why."""
    plan = Plan(
        fits=None, strategy=strategy_name(request.sharding), micro_batch=request.micro_batch
    )
    try:
        memory = (cache or Cache()).memory(request)
    except CannotBuild as error:
        plan.notes.append(str(error))
        return plan
    plan.memory = memory
    outside = outside_bytes(request)
    plan.device_bytes = memory.reserved_bytes + outside
    plan.device_high_bytes = memory.reserved_high_bytes + outside
    plan.limits = list(_limits(plan, memory, target))
    plan.fits = not any(limit.missing_bytes for limit in plan.limits)
    plan.notes += memory.notes + _margin(plan, target)
    plan.time = time_of(request, memory, target)
    if plan.time is not None and steps:
        _price(plan, plan.time, target, steps)
    return plan


def strategy_name(sharding: Sharding) -> str:
    """E.g. zero3+offload."""
    offload = sharding.offload_params or sharding.offload_optimizer
    return sharding.kind + ("+offload" if offload else "")


def outside_bytes(request: Request) -> int:
    """What the driver shows beyond torch's counters: CUDA context, NCCL."""
    several = request.sharding.devices > 1
    return int((constant("cuda_context_gib") + several * constant("nccl_gib")) * GIB)


def _limits(plan: Plan, memory: StepMemory, target: TargetSpec) -> Iterator[Limit]:
    if target.device_memory_gib and plan.device_bytes is not None:
        have = int(target.device_memory_gib * GIB)
        yield Limit(
            name="gpu", phase=memory.peak_phase, need_bytes=plan.device_bytes, have_bytes=have
        )
    if target.host_ram_gib:
        loading = memory.host_load_bytes >= memory.host_bytes
        yield Limit(
            name="host",
            phase="load" if loading else "train",
            need_bytes=memory.host_bytes,
            have_bytes=int(target.host_ram_gib * GIB),
        )


def _margin(plan: Plan, target: TargetSpec) -> list[str]:
    """A prediction within its own error of the limit says so."""
    if not target.device_memory_gib or plan.device_bytes is None:
        return []
    share = plan.device_bytes / (target.device_memory_gib * GIB)
    high = (plan.device_high_bytes or 0) / (target.device_memory_gib * GIB)
    if share <= 1 < max(high, share * 1.05):
        return ["narrow: within the prediction's error of the limit; probe before a long run"]
    return []


def time_of(request: Request, memory: StepMemory, target: TargetSpec) -> StepTime | None:
    """None where the target's GPU is unknown: no other card's peak stands in."""
    facts = find_gpu(target.gpu or "")
    if facts is None:
        return None
    rate = target.fp16_dense_tflops if request.dtype == "fp16" else target.bf16_dense_tflops
    named = {
        "tflops": rate,
        "memory_gbs": target.memory_gbs,
        "nvlink_gbs": target.nvlink_gbs,
        "pcie_gbs": target.pcie_gbs,
    }
    facts = {**facts, **{name: value for name, value in named.items() if value is not None}}
    weights = Weights(memory.held_bytes, memory.trained_bytes)
    return step_time(request, costs_of(memory), weights, gpu_of(facts))


def _price(plan: Plan, time: StepTime, target: TargetSpec, steps: int) -> None:
    plan.steps = steps
    plan.train_s = time.step_s * steps
    devices = target.devices * target.nodes
    hours = devices * steps / 3600
    plan.usd = time.step_s * hours * target.price.usd_per_device_hour
    plan.usd_low = time.low_s * hours * target.price.low_usd
    plan.usd_high = time.high_s * hours * target.price.high_usd


# ---------------------------------------------------------------- choices


def best_strategy(
    request: Request, target: TargetSpec, cache: Cache, steps: int | None = None
) -> Plan:
    """`auto`: the fastest of the strategies that fit; else the one that misses by least."""
    plans = [predict(tried, target, cache, steps) for tried in strategies_of(request, target)]
    fitting = [plan for plan in plans if plan.fits]
    if fitting:
        return min(fitting, key=lambda p: p.time.step_s / p.time.tokens if p.time else 0.0)
    return min(plans, key=missing_bytes)


def missing_bytes(plan: Plan) -> int:
    return sum(limit.missing_bytes for limit in plan.limits)


def strategies_of(request: Request, target: TargetSpec) -> Iterator[Request]:
    """The request under each strategy that the target allows, same global batch."""
    devices = target.devices * target.nodes
    if devices == 1:
        yield request.model_copy(update={"sharding": Sharding()})
        return
    whole = request.micro_batch * request.accumulation * _ranks(request.sharding)
    for choice in STRATEGIES:
        zero = str(choice["kind"]).startswith("zero")
        fields = {
            **choice,
            "devices": devices,
            "devices_per_node": target.devices,
            "fp32_master": zero and request.dtype != "fp32",
            "memory_efficient_load": request.quantization is None,
        }
        accumulation = max(1, whole // (request.micro_batch * devices))
        yield request.model_copy(
            update={"sharding": Sharding(**fields), "accumulation": accumulation}
        )


def _ranks(sharding: Sharding) -> int:
    return 1 if sharding.kind in ("single", "pipeline") else sharding.devices


def largest_micro_batch(
    request: Request, target: TargetSpec, cache: Cache, limit: int = 256
) -> int:
    """The largest micro-batch predicted to fit; 0 if not even one does."""

    def fits(size: int) -> bool:
        return bool(predict(request.model_copy(update={"micro_batch": size}), target, cache).fits)

    if not fits(1):
        return 0
    good, bad = 1, limit + 1
    while good * 2 < bad and fits(good * 2):
        good *= 2
    bad = min(bad, good * 2)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good
