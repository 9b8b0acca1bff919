"""Shares' intervals against scipy's exact binomial test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from bench.score.rates import share_interval

from .made import quickly


@quickly
@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_it_is_scipys_exact_interval_and_holds_the_share(share: tuple[int, int]) -> None:
    count, n = share
    wanted = binomtest(count, n).proportion_ci(method="exact")
    found = share_interval(count, n)
    assert found == pytest.approx((wanted.low, wanted.high), abs=1e-9)
    assert found and found[0] <= count / n <= found[1]


def test_nothing_seen_in_few_rows_rules_little_out() -> None:
    assert share_interval(0, 32) == (0.0, pytest.approx(1 - 0.025 ** (1 / 32)))
    assert share_interval(0, 0) is None
