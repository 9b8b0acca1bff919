"""Time, steps and tokens to a target validation loss.

Evaluation is off the clock (as in AlgoPerf, Dahl 2023).  A run that never meets the target is
censored, not slow: None, with the reason and what was spent.

    python -m pytest tests/score/test_convergence.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from bench.record import EvaluationEvent
from bench.spec import ConvergenceTarget


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetLoss(_Frozen):
    """A target in nats per answer token, or why there is none."""

    loss: float | None
    reason: str | None = None


class Point(_Frozen):
    """What training had spent when an evaluation gave `loss`."""

    train_s: float
    step: float
    tokens: float
    loss: float


class TimeToTarget(_Frozen):
    """`reached`: the first evaluation at or below the target, as measured: an upper bound that
    depends on how often the run was evaluated.  `interpolated`: an estimate, on a straight line
    from the evaluation before; None where there is none.  `spent_s`: training seconds at the last
    evaluation."""

    target_loss: float | None
    reached: Point | None
    interpolated: Point | None
    spent_s: float | None
    reason: str | None


def best_loss(evaluations: Sequence[EvaluationEvent]) -> float | None:
    """The lowest validation loss of a run."""
    return min((event.loss for event in evaluations if event.loss is not None), default=None)


def resolve_target(
    target: ConvergenceTarget, best_losses: Mapping[str, float | None]
) -> TargetLoss:
    """The loss to meet.  A relative one is best × (1 + within): within 1 % of that method."""
    if target.validation_loss is not None:
        return TargetLoss(loss=target.validation_loss)
    best = best_losses.get(target.relative_to or "")
    if best is None:
        return TargetLoss(loss=None, reason=f"no validation loss of {target.relative_to}")
    return TargetLoss(loss=best * (1 + target.within))


def time_to_target(evaluations: Sequence[EvaluationEvent], target: TargetLoss) -> TimeToTarget:
    """Training seconds, steps and tokens to the first evaluation that meets the target."""
    ordered = sorted(evaluations, key=lambda event: event.step)
    points = [
        Point(train_s=event.train_s, step=event.step, tokens=event.tokens, loss=event.loss)
        for event in ordered
        if event.loss is not None
    ]
    index = next((i for i, point in enumerate(points) if _meets(point, target)), None)
    reached = None if index is None else points[index]
    before = points[index - 1] if index else None
    return TimeToTarget(
        target_loss=target.loss,
        reached=reached,
        interpolated=_between(before, reached, target.loss) if before and reached else None,
        spent_s=max((event.train_s for event in ordered), default=None),
        reason=None if reached else _not_reached(points, target),
    )


def _meets(point: Point, target: TargetLoss) -> bool:
    return target.loss is not None and point.loss <= target.loss


def _not_reached(points: Sequence[Point], target: TargetLoss) -> str:
    if target.loss is None:
        return target.reason or "no target"
    if not points:
        return "no evaluation with a loss"
    best = min(point.loss for point in points)
    return f"not reached: best {best:.4f}, target {target.loss:.4f}"


def _between(before: Point, after: Point, loss: float | None) -> Point | None:
    """The point on the line before → after at which the loss is met (before lies above it)."""
    if loss is None:
        return None
    share = (before.loss - loss) / (before.loss - after.loss)
    return Point(
        train_s=before.train_s + share * (after.train_s - before.train_s),
        step=before.step + share * (after.step - before.step),
        tokens=before.tokens + share * (after.tokens - before.tokens),
        loss=loss,
    )
