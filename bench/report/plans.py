"""`bench.plan.Plan` → `Planned`: what the report asks of a prediction.

Every field may be absent: a plan that couldn't be made has only its notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench import store
from bench.plan import GIB, Limit, Plan

FILE = "plan.json"


@dataclass(frozen=True)
class Planned:
    """A prediction.  Bytes of the worst rank (host: of a node), seconds, dollars."""

    fits: bool | None = None  # None: it couldn't be predicted, `notes` say why
    breaks: str | None = None  # which limit, in which phase, by how much
    strategy: str | None = None
    micro_batch: int | None = None
    device_bytes: int | None = None
    device_high_bytes: int | None = None
    reserved_bytes: int | None = None
    host_bytes: int | None = None
    weights_bytes: int | None = None  # one full copy, as held
    phases: Mapping[str, int] = field(default_factory=dict)  # peak by phase
    breakdown: Mapping[str, int] = field(default_factory=dict)  # at the peak, by what it is for
    step_s: float | None = None
    tokens_per_s: float | None = None
    hours: float | None = None
    usd: float | None = None
    usd_low: float | None = None
    usd_high: float | None = None
    changes: tuple[str, ...] = ()  # smallest ones that would make it fit
    notes: tuple[str, ...] = ()


def read(folder: Path) -> Planned | None:
    """The plan of a cell's folder, None without one.  Raises UserError where it is damaged."""
    plan = store.read_record(Plan, folder / FILE)
    return None if plan is None else of(plan)


def of(plan: Plan) -> Planned:
    memory, generation, time = plan.memory, plan.generation, plan.time
    held = memory.held_bytes if memory else None
    answering = generation.held_bytes if generation else None
    return Planned(
        fits=plan.fits,
        breaks="; ".join(map(_too_little, _exceeded(plan))) or None,
        strategy=_strategy(plan),
        micro_batch=plan.micro_batch,
        device_bytes=plan.device_bytes,
        device_high_bytes=plan.device_high_bytes,
        reserved_bytes=memory.reserved_bytes if memory else None,
        host_bytes=memory.host_bytes if memory else None,
        weights_bytes=held if held is not None else answering,
        phases=_phases(plan),
        breakdown=_known(memory.breakdown) if memory else {},
        step_s=time.step_s if time else None,
        tokens_per_s=time.tokens / time.step_s if time else None,
        hours=_hours(plan),
        usd=plan.usd,
        usd_low=plan.usd_low,
        usd_high=plan.usd_high,
        changes=tuple(str(change["change"]) for change in plan.changes),
        notes=tuple(plan.notes),
    )


def _exceeded(plan: Plan) -> list[Limit]:
    return [limit for limit in plan.limits if limit.missing_bytes]


def _too_little(limit: Limit) -> str:
    """E.g. gpu in backward: 12.3 GiB too little"""
    return f"{limit.name} in {limit.phase}: {limit.missing_bytes / GIB:.1f} GiB too little"


def _strategy(plan: Plan) -> str:
    """E.g. zero3+offload."""
    offload = plan.offload_params or plan.offload_optimizer
    plain = "+offload" in plan.strategy or not offload
    return plan.strategy if plain else f"{plan.strategy}+offload"


def _known(sizes: Mapping[str, int | None]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size}


def _phases(plan: Plan) -> dict[str, int]:
    """Those of a training step; then evaluation and generation, context included."""
    memory = plan.memory
    steps = (memory.reserved_phases or memory.phases) if memory else {}
    others = {"evaluate": plan.evaluation_bytes, "generate": plan.generation_bytes}
    return _known({**steps, **others})


def _hours(plan: Plan) -> float | None:
    """Training and generation, as far as predicted."""
    known = [seconds for seconds in (plan.train_s, plan.generate_s) if seconds is not None]
    return sum(known) / 3600 if known else None
