"""Groups' gains: the lowest, and whether their spread is more than noise."""

from __future__ import annotations

import numpy as np
import pytest

from bench.score.significance import Difference, compare
from bench.score.spread import spread

from .test_significance import side


def gain(mean: float, n: int, seed: int) -> Difference:
    rng = np.random.default_rng(seed)
    found = compare(side(rng.normal(mean, 0.2, n)), side(np.zeros(n), seeded=False))
    assert found
    return found


def test_unlike_groups_are_told_from_noise() -> None:
    over = spread({"a": gain(0.05, 200, 1), "b": gain(0.12, 200, 2), "c": gain(0.3, 200, 3)})
    assert over and (over.lowest, over.highest) == ("a", "c")
    assert over.gap == pytest.approx(0.25, abs=0.06)
    assert over.p_alike is not None and over.p_alike < 0.001


def test_like_groups_are_seldom_called_unlike() -> None:
    """40 times four groups with the same gain: 2 alarms expected, above 6 in 1 of 100 tries."""
    alarms = 0
    for seed in range(40):
        over = spread({str(g): gain(0.1, 30, 10 * seed + g) for g in range(4)})
        assert over and over.p_alike is not None
        alarms += over.p_alike < 0.05
    assert alarms <= 6


def test_without_an_error_nothing_is_said() -> None:
    same = compare(side([1.0, 1.0]), side([1.0, 1.0], seeded=False))
    assert same
    over = spread({"a": same, "b": gain(0.1, 30, 1)})
    assert over and over.p_alike is None
    assert spread({"a": same}) is None
