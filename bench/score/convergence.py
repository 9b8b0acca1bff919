"""Time, steps and tokens to a goal: a validation loss or a score.  Of one run, and over seeds.

Evaluation is off the clock (as in AlgoPerf, Dahl 2023).  A run that never meets its goal is
censored, not slow and not left out: it went on for so long without meeting it.

    python -m pytest tests/score/test_convergence.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Self

from pydantic import BaseModel, ConfigDict

from bench.score.resample import LEVEL, known
from bench.spec import ConvergenceTarget

LOSS = "validation loss"


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Goal(_Frozen):
    """What a run has to reach: a loss (nats per answer token) or less, a score or more.

    `value` is None where it isn't known, with the reason.
    """

    measure: str = LOSS
    value: float | None
    reason: str | None = None

    @property
    def falls(self) -> bool:
        """Whether lower is better."""
        return self.measure == LOSS

    def met_by(self, value: float | None) -> bool:
        if self.value is None or value is None:
            return False
        return value <= self.value if self.falls else value >= self.value


class Point(_Frozen):
    """What training had spent when `value` was measured; None: it wasn't a number."""

    train_s: float
    step: float
    tokens: float
    value: float | None

    def towards(self, other: Self, share: float) -> Point:
        """The point a share of the way to another one."""

        def between(one: float, two: float) -> float:
            return one + share * (two - one)

        return Point(
            train_s=between(self.train_s, other.train_s),
            step=between(self.step, other.step),
            tokens=between(self.tokens, other.tokens),
            value=None,
        )


class TimeToTarget(_Frozen):
    """When one run met its goal.

    The truth lies after `missed`, the last evaluation before that did not meet it (None: the first
    one did), and no later than `reached`, the first that did.  `interpolated` is the point on the
    straight line between the two at which the goal is met; where the first evaluation meets it,
    that one.  A run that never did is censored: `reached` is None, `spent` is how far it went.
    """

    goal: Goal
    reached: Point | None
    missed: Point | None
    interpolated: Point | None
    spent: Point | None
    reason: str | None


def best_of(points: Sequence[Point], measure: str = LOSS) -> float | None:
    """The lowest loss, or the highest score, of a run."""
    values = [point.value for point in points if point.value is not None]
    choose = min if measure == LOSS else max
    return choose(values, default=None)


def goal_of(target: ConvergenceTarget, measure: str, best: Mapping[str, float | None]) -> Goal:
    """The value to meet.  `best` holds what the relative target's method reached at best."""
    absolute = target.validation_loss if measure == LOSS else target.at_least
    if absolute is not None:
        return Goal(measure=measure, value=absolute)
    value = best.get(target.relative_to or "")
    if value is None:
        return Goal(measure=measure, value=None, reason=f"no {measure} of {target.relative_to}")
    share = 1 + target.within if measure == LOSS else 1 - target.within
    return Goal(measure=measure, value=value * share)


def time_to_target(points: Sequence[Point], goal: Goal) -> TimeToTarget:
    """Training seconds, steps and tokens to the first evaluation that meets the goal."""
    ordered = sorted(points, key=lambda point: point.step)
    measured = [point for point in ordered if point.value is not None]
    index = next((i for i, p in enumerate(measured) if goal.met_by(p.value)), None)
    reached = None if index is None else measured[index]
    missed = measured[index - 1] if index else None
    return TimeToTarget(
        goal=goal,
        reached=reached,
        missed=missed,
        interpolated=_crossing(missed, reached, goal) if missed and reached else reached,
        spent=ordered[-1] if ordered else None,
        reason=None if reached else _not_reached(measured, goal),
    )


def _not_reached(points: Sequence[Point], goal: Goal) -> str:
    if goal.value is None:
        return goal.reason or "no target"
    best = best_of(points, goal.measure)
    if best is None:
        return f"no evaluation with a {'loss' if goal.falls else 'score'}"
    return f"not reached: best {best:.4f}, target {goal.value:.4f}"


def _crossing(before: Point, after: Point, goal: Goal) -> Point:
    """Where the line before → after meets the goal (`before` doesn't)."""
    assert before.value is not None and after.value is not None and goal.value is not None
    share = (before.value - goal.value) / (before.value - after.value)
    return before.towards(after, share).model_copy(update={"value": goal.value})


# ---------------------------------------------------------------- over seeds


class Reached(_Frozen):
    """One quantity (seconds, dollars, tokens) to a goal over `n` runs, `reached` of which met it.

    `restricted_mean` is the mean of min(what it took, horizon): what a run spends on average if it
    is stopped at the horizon, met or not.  Its bounds are a 95 % t interval over runs, None of one
    run or where none met it.
    """

    n: int
    reached: int
    horizon: float
    restricted_mean: float
    low: float | None
    high: float | None

    @property
    def share(self) -> float:
        return self.reached / self.n


def restricted(
    taken: Sequence[float], censored: Sequence[float], horizon: float | None = None
) -> Reached | None:
    """`taken` by the runs that met their goal; `censored`: how far the others went without,
    infinity for one that never will (it diverged).

    The area under the Kaplan–Meier curve up to the horizon; its variance is Greenwood's, times
    m/(m − 1) of m runs that met it, which makes it the usual one where all did (Klein and
    Moeschberger 2003, section 4.5).  None without a run, or where the curve is unknown at the
    horizon (every run had ended before it and the last one was censored).  Without a horizon: the
    furthest that is known.
    """
    furthest = max([value for value in (*taken, *censored) if value < math.inf], default=None)
    if furthest is None:
        return None
    whole = not censored or max(taken, default=-math.inf) > max(censored)
    limit = furthest if horizon is None else horizon
    if limit > furthest and not (whole or math.inf in censored):
        return None
    censored = [min(value, max(furthest, limit)) for value in censored]
    steps = _survival(taken, censored, limit)
    areas = [(end - start) * left for start, end, left, _, _ in steps]
    mean = sum(areas)
    variance = sum(
        sum(areas[index + 1 :]) ** 2 * died / (at_risk * (at_risk - died))
        for index, (_, _, _, died, at_risk) in enumerate(steps)
        if 0 < died < at_risk
    )
    reached = sum(value <= limit for value in taken)
    reach = _reach(variance, reached, len(taken) + len(censored))
    most = math.inf if not censored and horizon is None else limit  # nothing is cut off then
    return Reached(
        n=len(taken) + len(censored),
        reached=reached,
        horizon=limit,
        restricted_mean=known(mean) or 0.0,
        low=None if reach is None else known(max(0.0, mean - reach)),
        high=None if reach is None else known(min(most, mean + reach)),
    )


def _survival(
    taken: Sequence[float], censored: Sequence[float], horizon: float
) -> list[tuple[float, float, float, int, int]]:
    """Pieces of the Kaplan–Meier curve: (start, end, share not there yet, how many met it at the
    end, how many were at risk then)."""
    from scipy.stats import CensoredData, ecdf

    curve = ecdf(CensoredData(uncensored=list(taken), right=list(censored))).sf
    left = dict(zip(curve.quantiles, curve.probabilities, strict=True))
    times = sorted({t for t in [*taken, *censored] if t < horizon})
    pieces, share = [], 1.0
    for start, end in pairwise([0.0, *times, horizon]):
        died = sum(t == end for t in taken) if end < horizon else 0
        at_risk = sum(t >= end for t in [*taken, *censored])
        pieces.append((start, end, share, died, at_risk))
        share = float(left.get(end, share))
    return pieces


def _reach(variance: float, reached: int, n: int) -> float | None:
    """Half of the interval's width; None where too few arrived to show a spread."""
    from scipy.special import stdtrit

    if reached < 2:
        return None
    t = float(stdtrit(n - 1, 1 - (1 - LEVEL) / 2))
    return t * math.sqrt(variance * reached / (reached - 1))
