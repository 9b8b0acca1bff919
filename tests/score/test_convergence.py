from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.score.convergence import TargetLoss, best_loss, resolve_target, time_to_target
from bench.spec import ConvergenceTarget

from .made import evaluation, quickly

RUN = [
    evaluation(0, 3.0),
    evaluation(10, 2.0),
    evaluation(20, None),
    evaluation(30, 1.0),
    evaluation(40, 1.5),
]


def test_first_evaluation_that_meets_it() -> None:
    found = time_to_target(RUN[::-1], TargetLoss(loss=1.5))
    assert found.reached is not None
    assert found.reached.model_dump() == {"train_s": 300, "step": 30, "tokens": 30000, "loss": 1.0}
    assert found.interpolated is not None
    assert found.interpolated.model_dump() == {
        "train_s": 200,
        "step": 20,
        "tokens": 20000,
        "loss": 1.5,
    }
    assert found.spent_s == 400 and found.reason is None


def test_equal_meets() -> None:
    found = time_to_target(RUN, TargetLoss(loss=2.0))
    assert found.reached is not None and found.reached.step == 10
    assert found.interpolated is not None and found.interpolated.step == 10


def test_met_at_once_has_nothing_to_interpolate() -> None:
    found = time_to_target(RUN, TargetLoss(loss=5.0))
    assert found.reached is not None and found.reached.train_s == 0
    assert found.interpolated is None


def test_not_reached_is_censored() -> None:
    found = time_to_target(RUN, TargetLoss(loss=0.5))
    assert found.reached is None and found.interpolated is None
    assert found.reason == "not reached: best 1.0000, target 0.5000"
    assert found.spent_s == 400
    assert time_to_target([], TargetLoss(loss=1.0)).reason == "no evaluation with a loss"
    assert time_to_target([], TargetLoss(loss=1.0)).spent_s is None


def test_targets() -> None:
    absolute = resolve_target(ConvergenceTarget(validation_loss=1.2), {})
    assert absolute.loss == 1.2
    relative = ConvergenceTarget(relative_to="full", within=0.05)
    assert resolve_target(relative, {"full": 2.0}).loss == pytest.approx(2.1)
    for missing in ({}, {"full": None}):
        found = resolve_target(relative, missing)
        assert found.loss is None
        assert time_to_target(RUN, found).reason == "no validation loss of full"
    assert best_loss(RUN) == 1.0 and best_loss([]) is None


@quickly
@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=12), st.floats(0.1, 9))
def test_interpolation_lies_before_the_measured_point(losses: list[float], loss: float) -> None:
    events = [evaluation(i, value) for i, value in enumerate(losses)]
    found = time_to_target(events, TargetLoss(loss=loss))
    assert (found.reached is None) == (min(losses) > loss)
    if found.reached and found.interpolated:
        assert found.reached.step - 1 <= found.interpolated.step <= found.reached.step
    if found.reached:
        assert all(value > loss for value in losses[: int(found.reached.step)])
