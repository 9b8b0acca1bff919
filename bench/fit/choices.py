"""What a plan leaves open: the strategy (`auto`) and the micro-batch (`max`).

Strategies differ in time by what they communicate, and all run the same operators.  So one trace
gives every strategy's time, and memory is traced from the fastest on until one fits.  Strategies
whose weights and optimizer states alone exceed the devices are never traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.fit.build import CannotBuild
from bench.fit.cache import Cache
from bench.fit.floor import floor_bytes
from bench.fit.predict import predict, time_of
from bench.fit.request import Request, Sharding
from bench.plan import GIB, Plan
from bench.spec import TargetSpec

STRATEGIES: tuple[dict[str, object], ...] = (
    {"kind": "ddp"},
    {"kind": "zero2"},
    {"kind": "fsdp"},
    {"kind": "zero3"},
    {"kind": "zero3", "offload_optimizer": True},
    {"kind": "zero3", "offload_optimizer": True, "offload_params": True},
)

Predict = Callable[[Request], Plan]
Allowed = Callable[[Sharding], bool]


def _all(_: Sharding) -> bool:
    return True


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
            "fp32_master": zero,
        }
        accumulation = max(1, whole // (request.micro_batch * devices))
        yield request.model_copy(
            update={"sharding": Sharding(**fields), "accumulation": accumulation}
        )


def _ranks(sharding: Sharding) -> int:
    return 1 if sharding.kind in ("single", "pipeline") else sharding.devices


def best_strategy(
    request: Request, target: TargetSpec, cache: Cache, allowed: Allowed = _all
) -> tuple[Plan, Request]:
    """`auto`: the fastest of the strategies that fit; else the one that misses by least.

    `allowed` leaves out what the worker can't run.
    """
    every = list(strategies_of(request, target))
    tried = [one for one in every if allowed(one.sharding)] or every
    try:
        possible = [one for one in tried if floor_bytes(one) <= _capacity(target)]
    except CannotBuild:
        possible = []
    if not possible:
        return predict(tried[-1], target, cache), tried[-1]
    first = predict(possible[0], target, cache)
    if first.memory is None or first.time is None or len(possible) == 1:
        return first, possible[0]
    memory = first.memory

    def seconds(one: Request) -> float:
        time = time_of(one, memory, target, cache)
        assert time is not None
        return time.step_s

    plans = []
    for one in sorted(possible, key=seconds):
        plan = first if one is possible[0] else predict(one, target, cache)
        if plan.fits:
            return plan, one
        plans.append((plan, one))
    return min(plans, key=lambda pair: missing_bytes(pair[0]))


def missing_bytes(plan: Plan) -> int:
    return sum(limit.missing_bytes for limit in plan.limits)


def _capacity(target: TargetSpec) -> float:
    return (target.device_memory_gib or float("inf")) * GIB


def largest_micro_batch(request: Request, fits: Predict, limit: int = 256) -> int:
    """The largest micro-batch predicted to fit; 0 if not even one does."""

    def good(size: int) -> bool:
        return bool(fits(request.model_copy(update={"micro_batch": size})).fits)

    if not good(1):
        return 0
    low, high = 1, limit + 1
    while low * 2 < high and good(low * 2):
        low *= 2
    high = min(high, low * 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low
