from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bench.score.convergence import (
    LOSS,
    Goal,
    Point,
    best_of,
    goal_of,
    restricted,
    time_to_target,
)
from bench.spec import ConvergenceTarget

from .made import quickly


def point(step: int, value: float | None) -> Point:
    """10 training seconds and 1000 tokens a step."""
    return Point(train_s=10.0 * step, step=step, tokens=1000 * step, value=value)


RUN = [point(0, 3.0), point(10, 2.0), point(20, None), point(30, 1.0), point(40, 1.5)]


def test_first_evaluation_that_meets_it() -> None:
    found = time_to_target(RUN[::-1], Goal(value=1.5))
    assert (found.missed, found.reached) == (point(10, 2.0), point(30, 1.0))
    assert found.interpolated == point(20, 1.5)
    assert found.spent == point(40, 1.5) and found.reason is None


def test_a_score_rises() -> None:
    run = [point(0, 0.0), point(10, 0.5), point(20, 0.9), point(30, 0.8)]
    found = time_to_target(run, Goal(measure="intent.f1", value=0.6))
    assert (found.missed, found.reached) == (point(10, 0.5), point(20, 0.9))
    assert found.interpolated is not None and found.interpolated.step == pytest.approx(12.5)
    assert best_of(run, "intent.f1") == 0.9
    assert time_to_target(run, Goal(measure="intent.f1", value=0.0)).reached == point(0, 0.0)


def test_equal_meets() -> None:
    found = time_to_target(RUN, Goal(value=2.0))
    assert found.reached == found.interpolated == point(10, 2.0)


def test_met_at_once_took_nothing() -> None:
    found = time_to_target(RUN, Goal(value=5.0))
    assert found.reached == found.interpolated == point(0, 3.0)
    assert found.missed is None


def test_not_reached_is_censored() -> None:
    found = time_to_target(RUN, Goal(value=0.5))
    assert found.reached is None and found.interpolated is None
    assert found.reason == "not reached: best 1.0000, target 0.5000"
    assert found.spent == point(40, 1.5)
    assert time_to_target([], Goal(value=1.0)).reason == "no evaluation with a loss"
    assert time_to_target([], Goal(value=1.0)).spent is None
    score = Goal(measure="intent.f1", value=1.0)
    assert time_to_target([], score).reason == "no evaluation with a score"


def test_goals() -> None:
    assert goal_of(ConvergenceTarget(validation_loss=1.2), LOSS, {}).value == 1.2
    relative = ConvergenceTarget(relative_to="full", within=0.05)
    assert goal_of(relative, LOSS, {"full": 2.0}).value == pytest.approx(2.1)
    score = ConvergenceTarget(score="first", relative_to="full", within=0.05)
    assert goal_of(score, "intent.f1", {"full": 0.8}).value == pytest.approx(0.76)
    assert goal_of(ConvergenceTarget(score="first", at_least=0.0), "intent.f1", {}).value == 0
    for missing in ({}, {"full": None}):
        found = goal_of(relative, LOSS, missing)
        assert found.value is None
        assert time_to_target(RUN, found).reason == "no validation loss of full"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"validation_loss": 1.0, "relative_to": "full"},
        {"at_least": 0.5, "validation_loss": 1.0},
        {"score": "intent.f1"},
        {"score": "intent.f1", "at_least": 0.5, "relative_to": "full"},
        {"score": "intent.f1", "validation_loss": 1.0},
    ],
)
def test_a_target_is_one_thing(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ConvergenceTarget.model_validate(wrong)


@quickly
@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=12), st.floats(0.1, 9))
def test_interpolation_lies_between_the_two_as_measured(losses: list[float], loss: float) -> None:
    found = time_to_target([point(i, v) for i, v in enumerate(losses)], Goal(value=loss))
    assert (found.reached is None) == (min(losses) > loss)
    if found.reached and found.interpolated:
        first = found.missed.step if found.missed else found.reached.step
        assert first <= found.interpolated.step <= found.reached.step
        assert all(value > loss for value in losses[: int(found.reached.step)])


# ---------------------------------------------------------------- over seeds


def test_all_arrived_is_the_plain_mean_and_its_t_interval() -> None:
    found = restricted([10.0, 14.0, 30.0], [])
    assert found is not None and found.restricted_mean == pytest.approx(18)
    assert (found.n, found.reached, found.share) == (3, 3, 1.0)
    # s = 10.583, ÷ √3 = 6.110, × t(2) = 4.303: 26.29; no time is below 0
    assert found.low == 0 and found.high == pytest.approx(18 + 26.29, abs=0.01)
    near = restricted([10.0, 10.1, 10.2, 10.3], [])
    assert near is not None and near.high is not None and near.low is not None
    # s = 0.1291, ÷ 2, × t(3) = 3.182: 0.2054
    assert near.high - near.restricted_mean == pytest.approx(0.2054, abs=1e-4)
    assert near.restricted_mean - near.low == pytest.approx(0.2054, abs=1e-4)


def test_a_run_that_did_not_arrive_counts_with_what_it_spent() -> None:
    found = restricted([10.0], [40.0])
    assert found is not None
    assert (found.restricted_mean, found.horizon, found.share) == (25.0, 40.0, 0.5)
    assert (found.low, found.high) == (None, None)  # one arrival has no spread
    nobody = restricted([], [40.0, 60.0])
    assert nobody is not None and (nobody.reached, nobody.restricted_mean) == (0, 60.0)


def test_kaplan_meier_by_hand() -> None:
    # Arrived at 1, 3 and 4; lost sight of at 2.  S: 1, 3/4 from 1, 3/8 from 3, 0 from 4.
    found = restricted([1.0, 3.0, 4.0], [2.0])
    assert found is not None and found.restricted_mean == pytest.approx(1 + 2 * 0.75 + 0.375)
    cut = restricted([1.0, 3.0, 4.0], [2.0], horizon=3.5)
    assert cut is not None and cut.restricted_mean == pytest.approx(1 + 2 * 0.75 + 0.5 * 0.375)
    assert cut.reached == 2
    # Greenwood: (areas after 1 and after 3)² × d / (Y (Y − d)), × m / (m − 1)
    variance = (1.875**2 / 12 + 0.375**2 / 2) * 3 / 2
    reach = 3.1824463 * math.sqrt(variance)
    assert (found.low, found.high) == pytest.approx((2.875 - reach, 4.0))  # cut at the horizon


def test_a_horizon_that_nobody_was_followed_to_is_unknown() -> None:
    assert restricted([1.0], [2.0], horizon=3.0) is None
    assert restricted([2.0], [1.0], horizon=3.0) is not None  # the curve is at 0 by then
    assert restricted([], []) is None


def test_a_diverged_run_never_arrives() -> None:
    found = restricted([10.0], [math.inf], horizon=30.0)
    assert found is not None and found.restricted_mean == 20.0
    assert restricted([], [math.inf]) is None


@quickly
@given(st.lists(st.floats(0.5, 99), min_size=1, max_size=8), st.floats(1, 120))
def test_without_censoring_it_is_the_mean_of_the_cut_times(
    taken: list[float], horizon: float
) -> None:
    found = restricted(taken, [], horizon)
    assert found is not None
    assert found.restricted_mean == pytest.approx(np.minimum(taken, horizon).mean())
    if found.low is not None and found.high is not None:
        assert found.low <= found.restricted_mean + 1e-9 <= found.high + 2e-9


@quickly
@given(st.lists(st.floats(1, 9), max_size=5), st.lists(st.floats(1, 9), min_size=1, max_size=5))
def test_a_longer_run_without_arriving_never_makes_it_faster(
    taken: list[float], censored: list[float]
) -> None:
    one, other = restricted(taken, censored), restricted(taken, [c + 1 for c in censored])
    assert one and other and other.restricted_mean >= one.restricted_mean - 1e-9
