"""Holm's correction against its definition; what may and what may not be said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.score.significance import ALPHA, Question, compare
from bench.score.verdicts import holm, judge

from .made import quickly
from .test_significance import random_pair, side


@quickly
@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_against_its_definition(p_values: list[float]) -> None:
    """Rejects as the step-down procedure does, at any level."""
    corrected = holm(p_values)
    for level in (0.01, 0.05, 0.2):
        order = np.argsort(p_values, kind="stable")
        rejected = set()
        for rank, index in enumerate(order):
            if p_values[index] * (len(p_values) - rank) > level:
                break
            rejected.add(int(index))
        found = {i for i, p in enumerate(corrected) if p is not None and p <= level + 1e-10}
        assert rejected <= found
        assert all(corrected[i] == pytest.approx(level) for i in found - rejected)


def test_holm_counts_tests_that_were_not_made() -> None:
    assert holm([0.01, None, 0.03]) == [0.02, None, 0.03]
    assert holm([0.01, None, 0.03], family=10) == [0.1, None, 0.27]


def test_absence_of_evidence_is_not_equivalence() -> None:
    a, b = random_pair(20, 70)
    found = compare(side(a), side(b), Question(margin=0.01))
    assert found and judge([found])[0].words == "not resolved"


def test_a_small_sure_difference_is_both_better_and_within_the_margin() -> None:
    a, b = random_pair(3000, 8, shift=0.01)
    found = compare(side(a), side(b), Question(margin=0.05))
    assert found and judge([found])[0].words == "better, by less than 0.05"
    lower = compare(side(a), side(b), Question(margin=0.05, higher_is_better=False))
    assert lower and judge([lower])[0].outcome == "worse"


def test_many_looks_cost_something() -> None:
    a, b = random_pair(60, 9, shift=0.04)
    found = compare(side(a), side(b))
    assert found and found.p is not None and 0.001 < found.p < ALPHA
    assert judge([found])[0].outcome == "better"
    assert judge([found], family=100)[0].outcome == "not resolved"
