"""`bench fit`: one configuration on one machine, or on all of suites/targets."""

from __future__ import annotations

import argparse
from typing import Any

from bench.errors import UserError
from bench.fit import asked
from bench.fit.cache import Cache
from bench.fit.choices import best_strategy, largest_micro_batch
from bench.fit.commands import Row, row_of, table
from bench.fit.constants import constant
from bench.fit.predict import Job, add_growth, add_range, predict
from bench.fit.request import Request
from bench.fit.suggest import Asked, changes
from bench.plan import GIB, Plan
from bench.spec import MethodSpec, ModelSpec, TargetSpec


def fit(options: argparse.Namespace) -> list[Row]:
    """A row a machine.  Raises UserError for whatever can't be asked or built."""
    asked.micro_batch_of(options)
    asked.strategy_of(options.strategy)
    targets, method = asked.targets_of(options), asked.method_of(options)
    model = asked.model_of(options.model, options.suites)
    several = len(targets) > 1
    if several:
        targets = [target for target in targets if asked.can_compute(method, target)]
    rows = [_row(model, method, target, options) for target in targets]
    if all(row["plan"]["memory"] is None for row in rows):
        raise UserError(rows[0]["plan"]["notes"][0] if rows else "no GPU computes in that dtype")
    return rows


def _row(
    model: ModelSpec, method: MethodSpec, target: TargetSpec, options: argparse.Namespace
) -> Row:
    request = asked.request_for(model, method, target, options)
    plan = _plan(request, target, options)
    row = row_of(options.model, model, method, target, plan)
    row["usd_per_million_tokens"] = _usd_per_million(plan, target)
    row["parts"] = parts(plan)
    row["device_memory_gib"] = (target.device_memory_gib or 0) * target.devices * target.nodes
    return row


def _plan(request: Request, target: TargetSpec, options: argparse.Namespace) -> Plan:
    cache = Cache(options.cache)

    def planned(one: Request) -> tuple[Plan, Request]:
        if options.strategy == "auto":
            return best_strategy(one, target, cache)
        return predict(one, target, cache), one

    if options.micro_batch == "max":
        largest = largest_micro_batch(request, lambda one: planned(one)[0])
        request = asked.with_micro_batch(request, max(1, largest), options, target)
    plan, chosen = planned(request)
    if plan.memory is not None and chosen.lengths and (options.target or options.gpu):
        add_growth(plan, cache.growth(chosen, remedies=True))
    else:
        add_range(plan, chosen, target, cache)
    if plan.fits is False and (options.target or options.gpu):
        job = Asked(chosen, Job(), target)
        plan.changes = changes(job, plan, asked.all_targets(options.suites), cache)
    return plan


# ---------------------------------------------------------------- what a row says


def _usd_per_million(plan: Plan, target: TargetSpec) -> float | None:
    """Dollars of a million training tokens; None without a price or a time."""
    if plan.time is None or not asked.priced(target):
        return None
    hours = target.devices * target.nodes * plan.time.step_s / 3600
    return hours * target.price.usd_per_device_hour / plan.time.tokens * 1e6


# What the backward makes is not told apart: gradients that no parameter holds yet, temporaries.
PARTS = {
    "weights": ("weights", "gathered"),
    "adapters": ("adapters",),
    "gradients, backward": ("gradients", "backward", "clip"),
    "optimizer": ("optimizer_states", "optimizer"),
    "activations": ("forward",),
    "logits and loss": ("logits",),
    "kernel workspace": ("workspace",),
    "communication": ("communication",),
}


def parts(plan: Plan) -> dict[str, int]:
    """Bytes at the training peak by what they are; they add up to what the driver shows."""
    memory = plan.memory
    if memory is None or plan.device_bytes is None:
        return {}
    found = {
        name: sum(memory.breakdown.get(key, 0) for key in keys) for name, keys in PARTS.items()
    }
    found["rounding of blocks"] = memory.allocated_bytes - sum(found.values())
    found["allocator slack"] = memory.reserved_bytes - memory.allocated_bytes
    outside = plan.device_bytes - memory.reserved_bytes
    context = min(outside, int(constant("cuda_context_gib") * GIB))
    found["CUDA context"], found["NCCL"] = context, outside - context
    return {name: size for name, size in found.items() if size > 0}


def text(rows: list[Row], detailed: bool) -> str:
    """The table; for one machine the parts and phases, for several the best of them."""
    lines = [table(rows)]
    if detailed:
        lines += _details(rows[0])
    else:
        lines += _best(rows)
    return "\n".join(lines)


def _details(row: Row) -> list[str]:
    plan: dict[str, Any] = row["plan"]
    memory = plan["memory"]
    lines = [f"at the peak ({memory['peak_phase']}), GiB a GPU:"]
    lines += [f"    {name:20}{size / GIB:8.2f}" for name, size in row["parts"].items()]
    lines += [f"    {'the driver shows':20}{plan['device_bytes'] / GIB:8.2f}"]
    lines += ["by phase, GiB a GPU (allocated, reserved so far):"]
    for phase, size in memory["phases"].items():
        reserved = memory["reserved_phases"].get(phase)
        shown = "" if reserved is None else f"{reserved / GIB:8.2f}"
        lines.append(f"    {phase:20}{size / GIB:8.2f}{shown}")
    lines += _growth(plan["growth"])
    for name in ("evaluation", "generation"):
        size = plan.get(f"{name}_bytes")
        if size is not None:
            lines.append(f"    {name:20}{size / GIB:8.2f} with CUDA context")
    for limit in plan["limits"]:
        if (limit["name"], limit["phase"]) == ("gpu", "load"):
            held = limit["need_bytes"] / GIB
            lines.append(f"    {'while loading':20}{held:8.2f} at most, with CUDA context")
    return lines


def _growth(growth: dict[str, Any] | None) -> list[str]:
    """What batches of different lengths add, as they come and with each remedy."""
    if growth is None:
        return []
    lines = ["batches of different lengths reserve, GiB a GPU more:"]
    orders = growth["by_order"]
    if orders:
        shown = "–".join(dict.fromkeys(f"{size / GIB:.2f}" for size in (orders[0], orders[-1])))
        lines.append(f"    {'as they come':20}{shown:>8}")
    for name, what in (
        ("bucketed", "sorted by length"),
        ("emptied", "cache emptied"),
        ("expandable", "expandable_segments"),
    ):
        lines.append(f"    {what:20}{growth[f'{name}_bytes'] / GIB:8.2f}")
    return lines + [f"    {note}" for note in growth["notes"]]


def _best(rows: list[Row]) -> list[str]:
    fitting = [row for row in rows if row["plan"]["fits"]]
    if not fitting:
        return ["fits on none of these machines; ask for one (--target) to see what would help"]
    smallest = min(fitting, key=lambda row: (row["device_memory_gib"], row["target"]))
    lines = [f"smallest that fits: {smallest['target']}"]
    known = [row for row in fitting if row["usd_per_million_tokens"] is not None]
    if known:
        cheap = min(known, key=lambda row: row["usd_per_million_tokens"])
        lines.append(
            f"cheapest that fits: {cheap['target']} "
            f"(${cheap['usd_per_million_tokens']:.2f} a million tokens)"
        )
    return lines
