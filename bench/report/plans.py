"""plan.json → `Planned`: what was predicted about a cell.  The one place that knows its layout.

Every field may be absent: older plans have fewer of them, and a plan that couldn't be made has only
its notes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from bench.errors import UserError

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
    """The plan of a cell's folder.  Raises UserError where it isn't JSON."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{path}: not JSON: the file was damaged") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected a JSON object")
    return of(raw)


def of(raw: Mapping[str, Any]) -> Planned:
    """A plan's JSON as it is written: flat, or with `memory` and `time` in objects of their own."""
    return Planned(
        fits=raw.get("fits"),
        breaks=_breaks(raw),
        strategy=_strategy(raw),
        micro_batch=raw.get("micro_batch"),
        device_bytes=_first(raw, "device_bytes"),
        device_high_bytes=_first(raw, "device_high_bytes"),
        reserved_bytes=_first(raw, "reserved_bytes", "memory.reserved_bytes"),
        host_bytes=_first(raw, "host_bytes", "memory.host_bytes"),
        weights_bytes=_first(raw, "held_bytes", "memory.held_bytes", "generation.held_bytes"),
        phases=_phases(raw),
        breakdown=_bytes(raw, "breakdown", "breakdown_bytes", "memory.breakdown"),
        step_s=_first(raw, "step_s", "time.step_s"),
        tokens_per_s=_speed(raw),
        hours=_hours(raw),
        usd=_first(raw, "usd"),
        usd_low=_first(raw, "usd_low", "low_usd"),
        usd_high=_first(raw, "usd_high", "high_usd"),
        changes=tuple(_change(change) for change in raw.get("changes") or ()),
        notes=tuple(str(note) for note in raw.get("notes") or ()),
    )


def _at(raw: Mapping[str, Any], path: str) -> Any:
    def inner(value: Any, key: str) -> Any:
        return value.get(key) if isinstance(value, Mapping) else None

    return reduce(inner, path.split("."), raw)


def _first(raw: Mapping[str, Any], *paths: str) -> Any:
    return next((value for path in paths if (value := _at(raw, path)) is not None), None)


def _bytes(raw: Mapping[str, Any], *paths: str) -> dict[str, int]:
    found: Mapping[str, Any] = next((value for path in paths if (value := _at(raw, path))), {})
    sizes = {name: size for name, size in found.items() if isinstance(size, (int, float))}
    return {name: int(size) for name, size in sizes.items() if size}


def _phases(raw: Mapping[str, Any]) -> dict[str, int]:
    """Those of a training step; then evaluation and generation, context included."""
    found = _bytes(raw, "memory.reserved_phases", "memory.phases")
    others = {"evaluate": raw.get("evaluation_bytes"), "generate": raw.get("generation_bytes")}
    return found | {name: size for name, size in others.items() if size}


def _strategy(raw: Mapping[str, Any]) -> str | None:
    """E.g. zero3+offload."""
    name = raw.get("strategy")
    offload = raw.get("offload_params") or raw.get("offload_optimizer")
    plain = name is None or "+offload" in name
    return name if plain or not offload else f"{name}+offload"


def _speed(raw: Mapping[str, Any]) -> float | None:
    found: float | None = _first(raw, "tokens_per_s", "time.tokens_per_s")
    tokens, seconds = _at(raw, "time.tokens"), _at(raw, "time.step_s")
    return tokens / seconds if found is None and tokens and seconds else found


def _hours(raw: Mapping[str, Any]) -> float | None:
    """Training and generation, as far as predicted."""
    seconds = [raw.get("train_s"), raw.get("generate_s")]
    known = [value for value in seconds if value is not None]
    return sum(known) / 3600 if known else None


def _breaks(raw: Mapping[str, Any]) -> str | None:
    """Each limit that is exceeded: `gpu in backward: 12.3 GiB too little`."""
    told = []
    for limit in raw.get("limits") or ():
        missing = (limit.get("need_bytes") or 0) - (limit.get("have_bytes") or 0)
        if missing > 0:
            gib = missing / 2**30
            told.append(f"{limit.get('name')} in {limit.get('phase')}: {gib:.1f} GiB too little")
    return "; ".join(told) or _first(raw, "limit", "reason")


def _change(change: Any) -> str:
    return str(change.get("change", "")) if isinstance(change, Mapping) else str(change)
