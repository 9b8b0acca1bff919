"""Measured runs against predictions → proposed constants, and how good they are.  Pure.

Each constant is the median of what single runs say, so a run that went wrong can't move it far.
The error after calibration is leave-one-out: every run is predicted from the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
GIB = 1 << 30
HIGHEST_EFFICIENCY = 1.0


@dataclass(frozen=True)
class Observed:
    """What one run says about one constant."""

    run: str
    value: float


@dataclass(frozen=True)
class Timed:
    """One run's speed: measured seconds of an update, and the predicted parts of it."""

    run: str
    measured_s: float
    compute_s: float
    other_s: float


@dataclass(frozen=True)
class Proposal:
    """A constant as the runs would have it.  Errors are medians of |predicted / measured - 1|;
    `error_after` is None with a single run, which nothing is left to check."""

    name: str
    gpu: str | None
    unit: str
    before: float
    value: float
    n: int
    error_before: float
    error_after: float | None
    runs: tuple[str, ...]


def outside_gib(device_bytes: int | None, reserved_bytes: int | None) -> float | None:
    """GiB that the driver shows beyond torch's counters; None where either is unknown."""
    if device_bytes is None or reserved_bytes is None or device_bytes < reserved_bytes:
        return None
    return (device_bytes - reserved_bytes) / GIB


def constant_of(
    name: str, unit: str, before: float, seen: Sequence[Observed], gpu: str | None = None
) -> Proposal | None:
    """A constant that runs show directly.  None without a run."""
    if not seen:
        return None
    values = [one.value for one in seen]
    return Proposal(
        name=name,
        gpu=gpu,
        unit=unit,
        before=before,
        value=statistics.median(values),
        n=len(values),
        error_before=_median_error([(before, value) for value in values]),
        error_after=_left_out(values, statistics.median, lambda fitted, value: (fitted, value)),
        runs=tuple(one.run for one in seen),
    )


def efficiency_of(
    before: float, overlap: float, seen: Sequence[Timed], gpu: str
) -> Proposal | None:
    """The share of its peak that a GPU reaches, if all compute scales with it.

    None without a run, or if the runs would need more than the peak: the prediction misses
    something else then, and no efficiency is to blame.
    """
    fitted = _efficiency(before, overlap, seen) if seen else 0.0
    if not 0 < fitted <= HIGHEST_EFFICIENCY:
        return None

    def pair(efficiency: float, run: Timed) -> tuple[float, float]:
        compute = run.compute_s * before / efficiency
        return overlapped_s(compute, run.other_s, overlap), run.measured_s

    return Proposal(
        name="matmul_efficiency",
        gpu=gpu,
        unit="share of the dense peak",
        before=before,
        value=fitted,
        n=len(seen),
        error_before=_median_error([pair(before, run) for run in seen]),
        error_after=_left_out(seen, lambda runs: _efficiency(before, overlap, runs), pair),
        runs=tuple(run.run for run in seen),
    )


def overlapped_s(compute_s: float, other_s: float, overlap: float) -> float:
    """Seconds of a step: the longer counts, and what the shorter can't hide."""
    return max(compute_s, other_s) + (1 - overlap) * min(compute_s, other_s)


def _efficiency(before: float, overlap: float, seen: Sequence[Timed]) -> float:
    return statistics.median(before * run.compute_s / _compute(run, overlap) for run in seen)


def _compute(run: Timed, overlap: float) -> float:
    """The compute seconds that, overlapped with the rest, make the measured ones."""
    if run.measured_s >= (2 - overlap) * run.other_s:
        return run.measured_s - (1 - overlap) * run.other_s
    hidden = (run.measured_s - run.other_s) / (1 - overlap) if overlap < 1 else 0.0
    return max(hidden, 1e-9)


def _median_error(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(abs(predicted / measured - 1) for predicted, measured in pairs)


def _left_out(
    seen: Sequence[T],
    fit: Callable[[Sequence[T]], float],
    pair: Callable[[float, T], tuple[float, float]],
) -> float | None:
    if len(seen) < 2:
        return None
    return _median_error(
        [pair(fit([*seen[:at], *seen[at + 1 :]]), one) for at, one in enumerate(seen)]
    )
