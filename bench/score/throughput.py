"""Training speed from step events.

The headline is the **median over counted steps of non-padding tokens ÷ synchronised seconds**: one
stalled step on a shared machine doesn't move it.  The ratio of sums stands beside it, because a
rental bills stalls too; where the two part, `unstable` says so.

    python -m pytest tests/score/test_throughput.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from bench.record import StepEvent
from bench.score.resample import (
    RESAMPLES,
    FloatArray,
    divide,
    draws,
    known,
    percentile_interval,
)

MIN_STEPS = 3
MAX_SPREAD = 0.2  # IQR ÷ median
MAX_TREND = 0.1  # second half's median ÷ first half's, minus 1
MAX_STALL = 0.1  # how far the ratio of sums may lie from the median
MAX_GROWTH = 0.1  # memory held after a step: second half's median ÷ first half's, minus 1


class Throughput(BaseModel):
    """Speed over the counted steps, over all devices unless named per device."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens_per_s: float | None
    low: float | None
    high: float | None
    overall_tokens_per_s: float | None
    tokens_per_s_per_device: float | None
    supervised_tokens_per_s: float | None
    sequences_per_s: float | None
    padding_share: float | None
    step_s: float | None
    n_steps: int
    spread: float | None
    trend: float | None
    unstable: str | None


def throughput(
    steps: Sequence[StepEvent],
    *,
    warmup_steps: int = 0,
    devices: int = 1,
    trouble: str | None = None,
) -> Throughput:
    """Speed after the first `warmup_steps` recorded steps (position counts, not step number: a
    resumed attempt warms up again).  `tokens` of an event are those of all devices.  `trouble`:
    what else speaks against it, as the GPUs' sensors tell."""
    counted = counted_steps(steps, warmup_steps)
    rates = _rates(counted, "tokens")
    median = _median(rates)
    low, high = median_interval(rates) or (None, None)
    spread, trend = _spread(rates), _trend(rates)
    seconds = sum(event.seconds for event in counted)
    overall = known(sum(event.tokens for event in counted) / seconds) if counted else None
    return Throughput(
        tokens_per_s=median,
        low=low,
        high=high,
        overall_tokens_per_s=overall,
        tokens_per_s_per_device=None if median is None else median / devices,
        supervised_tokens_per_s=_median(_rates(counted, "supervised_tokens")),
        sequences_per_s=_median(_rates(counted, "sequences")),
        padding_share=padding_share(
            sum(event.tokens for event in counted), sum(event.padded_tokens for event in counted)
        ),
        step_s=_median(np.array([event.seconds for event in counted])),
        n_steps=len(counted),
        spread=spread,
        trend=trend,
        unstable="; ".join(
            [
                *_unstable(len(counted), spread, trend, _ratio_minus_one(overall, median)),
                *_leaking(counted),
                *([trouble] if trouble else []),
            ]
        )
        or None,
    )


def counted_steps(steps: Sequence[StepEvent], warmup_steps: int) -> list[StepEvent]:
    """The steps that speeds are taken from: after warm-up, in order."""
    ordered = sorted(steps, key=lambda event: event.step)
    return [event for event in ordered[warmup_steps:] if event.seconds > 0]


def padding_share(tokens: int, padded_tokens: int) -> float | None:
    """Share of a batch that is padding; None without a batch."""
    return known(1 - tokens / padded_tokens) if padded_tokens else None


def padded_batch(lengths: Sequence[int]) -> tuple[int, int]:
    """(tokens, padded tokens) of sequences padded to the longest one."""
    return sum(lengths), len(lengths) * max(lengths, default=0)


def without_evaluation(
    steps: Sequence[StepEvent], evaluation_s: Mapping[int, float]
) -> list[StepEvent]:
    """Steps with evaluation seconds taken off the clock, by step number.

    Our own events need it not; logs of other trainers count evaluation inside the step.
    """
    return [
        event.model_copy(update={"seconds": event.seconds - evaluation_s.get(event.step, 0.0)})
        for event in steps
    ]


def median_interval(values: FloatArray) -> tuple[float, float] | None:
    """95 % bootstrap interval of the median; None below two values."""
    if len(values) < 2:
        return None
    return percentile_interval(np.median(values[draws(len(values), RESAMPLES)], axis=1))


def _rates(events: Sequence[StepEvent], what: str) -> FloatArray:
    amounts = np.array([getattr(event, what) for event in events], dtype=np.float64)
    return divide(amounts, np.array([event.seconds for event in events]))


def _median(values: FloatArray) -> float | None:
    return known(float(np.median(values))) if len(values) else None


def _spread(rates: FloatArray) -> float | None:
    """Interquartile range ÷ median."""
    if len(rates) < MIN_STEPS:
        return None
    low, middle, high = np.percentile(rates, [25, 50, 75])
    return known(float(high - low) / float(middle)) if middle else None


def _trend(rates: FloatArray) -> float | None:
    """How much faster the second half ran than the first; None below six steps."""
    half = len(rates) // 2
    return _ratio_minus_one(_median(rates[-half:]), _median(rates[:half])) if half >= 3 else None


def _ratio_minus_one(value: float | None, base: float | None) -> float | None:
    return known(value / base - 1) if value is not None and base else None


def _unstable(
    n: int, spread: float | None, trend: float | None, stall: float | None
) -> Iterator[str]:
    """Why the speed may not be trusted."""
    if n < MIN_STEPS:
        yield f"{n} counted {'step' if n == 1 else 'steps'}, {MIN_STEPS} needed"
        return
    if spread is not None and spread > MAX_SPREAD:
        yield f"spread (IQR ÷ median) {spread:.0%} over {MAX_SPREAD:.0%}"
    if trend is not None and abs(trend) > MAX_TREND:
        faster = "faster" if trend > 0 else "slower"
        yield f"second half {abs(trend):.0%} {faster} than the first"
    if stall is not None and abs(stall) > MAX_STALL:
        yield f"tokens ÷ seconds of all steps is {stall:+.0%} off the median step"


def _leaking(steps: Sequence[StepEvent]) -> Iterator[str]:
    """Memory that grows while the same work is repeated: a leak, which ends in slow steps."""
    for name, told in (("allocated_bytes", "GPU memory"), ("host_bytes", "host memory")):
        held = [getattr(event, name) for event in steps]
        half = len(held) // 2
        if half < 3 or not all(held):
            continue
        growth = float(np.median(held[-half:]) / np.median(held[:half])) - 1
        if growth > MAX_GROWTH:
            yield f"{told} held after a step grew by {growth:.0%}"
