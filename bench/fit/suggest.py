"""The smallest changes that would make a configuration fit, each with its own figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.fit.cache import Cache
from bench.fit.predict import predict, strategies_of, strategy_name
from bench.fit.request import Request
from bench.plan import Plan
from bench.spec import TargetSpec


def changes(request: Request, target: TargetSpec, cache: Cache) -> list[dict[str, Any]]:
    """Single changes that fit, in the order from least to most intrusive."""
    found = []
    for words, tried in candidates(request, target):
        plan = predict(tried, target, cache)
        if plan.fits:
            found.append({"change": words, **figures(plan)})
    return found


def figures(plan: Plan) -> dict[str, Any]:
    """What a row of a table needs of a plan."""
    return {
        "strategy": plan.strategy,
        "micro_batch": plan.micro_batch,
        "device_bytes": plan.device_bytes,
        "host_bytes": plan.memory.host_bytes if plan.memory else None,
        "step_s": plan.time.step_s if plan.time else None,
    }


def candidates(request: Request, target: TargetSpec) -> Iterator[tuple[str, Request]]:
    """(what to change, the request with it)."""

    def changed(**fields: Any) -> Request:
        return request.model_copy(update=fields)

    if request.checkpointing == "none":
        yield "gradient checkpointing on", changed(checkpointing="full")
    if request.micro_batch > 1:
        half = request.micro_batch // 2
        accumulation = request.accumulation * 2
        yield f"micro-batch {half}", changed(micro_batch=half, accumulation=accumulation)
        accumulation = request.accumulation * request.micro_batch
        yield "micro-batch 1", changed(micro_batch=1, accumulation=accumulation)
    if request.optimizer in ("adamw", "adamw_fused"):
        yield "8-bit optimizer", changed(optimizer="adamw_8bit")
        yield "paged 8-bit optimizer", changed(optimizer="paged_adamw_8bit")
    if request.longest > 512:
        length = request.longest // 2
        yield f"sequence length {length}", changed(seq_len=length, lengths=())
    for tried in strategies_of(request, target):
        if tried.sharding != request.sharding:
            yield f"strategy {strategy_name(tried.sharding)}", tried
