"""Peaks of allocated memory by phase, from a trace's events.  Pure.

Every first byte counts: unlike the caching allocator, the ledger knows no blocks.  What was alive
at a phase's peak is listed by category (weights, gradients, forward …).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.fit.allocator import ALLOC, FREE, MOVE, PHASE, Event

Birth = tuple[str, str]  # category, operator


@dataclass
class Peak:
    """Largest allocated bytes of a phase, and what was alive then."""

    allocated: int = 0
    operator: str = ""
    categories: dict[str, int] = field(default_factory=dict)


def peaks(
    events: Sequence[Event],
    phases: Sequence[str],
    births: Mapping[int, Birth],
    categories: Sequence[str],
) -> dict[str, Peak]:
    """By name of the phase, in their order."""
    at = _positions(events)
    wanted = set(at.values())
    alive: dict[str, int] = {}
    held: dict[int, tuple[int, str]] = {}
    snapshots: dict[int, Peak] = {}
    for position, (kind, ident, size, _) in enumerate(events):
        if kind == ALLOC:
            category = births[ident][0]
            held[ident] = (size, category)
            alive[category] = alive.get(category, 0) + size
        elif kind == FREE:
            amount, category = held.pop(ident)
            alive[category] -= amount
        elif kind == MOVE:
            amount, category = held[ident]
            held[ident] = (amount, categories[size])
            alive[category] -= amount
            alive[categories[size]] = alive.get(categories[size], 0) + amount
        if position in wanted:
            operator = births[ident][1] if kind == ALLOC else "start"
            snapshots[position] = Peak(sum(alive.values()), operator, dict(alive))
    return {phases[phase]: snapshots[position] for phase, position in at.items()}


def _positions(events: Sequence[Event]) -> dict[int, int]:
    """Where each phase's peak is."""
    sizes: dict[int, int] = {}
    highest: dict[int, tuple[int, int]] = {}
    now = phase = 0
    for position, (kind, ident, size, _) in enumerate(events):
        if kind == ALLOC:
            sizes[ident] = size
            now += size
        elif kind == FREE:
            now -= sizes.pop(ident)
        elif kind == PHASE:
            phase = ident
        if kind in (ALLOC, PHASE) and now > highest.get(phase, (-1, 0))[0]:
            highest[phase] = (now, position)
    return {phase: position for phase, (_, position) in highest.items()}
