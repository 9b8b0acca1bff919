"""Serving figures against arithmetic done by hand, and against what must always hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.score import serving
from bench.score.cost import Usd
from bench.score.serving import Load, Offer, Sample
from bench.spec import TokenPrice

HOUR = Usd(usd=2.0, low_usd=1.0, high_usd=4.0)


def offer(**fields: object) -> Offer:
    return Offer(
        **{"usd_per_hour": HOUR, "tokens_per_s": 1000.0, "utilization": 0.5} | fields  # type: ignore[arg-type]
    )


def made(concurrency: int, first: float, seconds: float) -> Load:
    found = serving.load(concurrency, seconds, [Sample(first, first + 1, 100, 11)] * 4, 0)
    assert found
    return found


def test_a_sample_s_time_per_token_leaves_the_first_out() -> None:
    assert Sample(0.5, 2.5, 100, 11).per_token_s == pytest.approx(0.2)
    assert Sample(0.5, 0.5, 100, 1).per_token_s is None
    assert Sample(None, 0.5, 100, 5).per_token_s is None


def test_percentiles_of_a_load() -> None:
    samples = [Sample(t / 100, t / 100 + 1.0, 90, 11) for t in range(1, 101)]
    found = serving.load(4, 25.0, samples, errors=2)
    assert found and found.first_token and found.per_token
    assert (found.requests, found.errors, found.first_token.n) == (100, 2, 100)
    assert found.first_token.p50 == pytest.approx(0.505)
    assert found.first_token.p95 == pytest.approx(0.9505)
    assert found.per_token.p95 == pytest.approx(0.1)
    assert found.requests_per_s == 4 and found.new_tokens_per_s == 44
    assert found.tokens_per_s == pytest.approx(404)


def test_nothing_answered_is_no_load() -> None:
    assert serving.load(4, 25.0, [], errors=9) is None
    assert serving.best([]) is None


def test_the_best_load_keeps_the_latency_limit() -> None:
    slow, quick = made(8, first=2.0, seconds=1.0), made(1, first=0.1, seconds=4.0)
    assert serving.best([slow, quick]) is slow
    assert serving.best([slow, quick], max_first_token_s=0.5) is quick
    assert serving.best([slow, quick], max_first_token_s=0.01) is quick  # missed by the least


def test_dollars_by_hand() -> None:
    """1,000 tokens/s, half used: 1.8 M tokens an hour for $2."""
    found = offer()
    assert found.per_million.usd == pytest.approx(2 / 1.8)
    assert found.per_million.high_usd == pytest.approx(4 / 1.8)
    assert found.capacity == pytest.approx(1.8e6 * 730)
    assert found.machines(0) == 1 and found.machines(found.capacity) == 1
    assert found.machines(found.capacity * 1.001) == 2
    month = offer(storage_usd_per_month=5.0).monthly(1.0)
    assert (month.low_usd, month.usd, month.high_usd) == (735, 1465, 2925)
    year = serving.ownership(Usd(usd=10, low_usd=5, high_usd=20), month, 12)
    assert (year.low_usd, year.usd, year.high_usd) == (8825, 17590, 35120)


def test_break_even_by_hand() -> None:
    """$1,460 a month against $2 a million: 730 M tokens, which one machine answers."""
    assert offer().break_even(2.0, 2.0) == pytest.approx(730e6)
    assert offer().break_even(1.0, 2.0) is None  # $1 a million is less than full machines cost
    assert offer().break_even(0.0, 2.0) is None
    # Storage of $2,000 eats what one full machine gains ($1,168), not what two do
    stored = offer(storage_usd_per_month=2000.0)
    assert stored.break_even(2.0, 2.0) == pytest.approx((2 * 1460 + 2000) / 2e-6)


def test_an_api_s_price_follows_the_mix() -> None:
    price = TokenPrice(
        provider="x",
        usd_per_million_input=1,
        usd_per_million_output=4,
        source="s",
        date="2026-11-01",
    )
    assert serving.api_per_million(price, 300, 100) == pytest.approx(1.75)
    assert serving.api_per_million(price, 0, 100) == 4


POSITIVE = st.floats(min_value=0.01, max_value=1e4)
OFFERS = st.builds(
    lambda speed, use, store: offer(
        tokens_per_s=speed, utilization=use, storage_usd_per_month=store
    ),
    POSITIVE,
    st.floats(min_value=0.01, max_value=1.0),
    st.floats(min_value=0, max_value=1e4),
)


@given(OFFERS, POSITIVE)
def test_break_even_is_where_the_bills_cross(made: Offer, api: float) -> None:
    """From it on own machines are no dearer; below it they are, wherever one looks."""

    def saved(tokens: float) -> float:
        """By the API's bill, as a share of it."""
        return made.monthly(tokens).usd / (api * tokens / 1e6) - 1

    found = made.break_even(api, HOUR.usd)
    if found is None:
        assert all(saved(count * made.capacity) >= -1e-9 for count in (1, 2, 10, 1000))
        return
    assert saved(found * (1 + 1e-9)) <= 1e-6 or saved(found * (1 - 1e-9)) <= 1e-6
    assert all(saved(share * found) >= -1e-9 for share in (0.1, 0.5, 0.9, 0.99))


@given(OFFERS, st.floats(min_value=0, max_value=1e12), st.floats(min_value=1, max_value=3))
def test_a_month_never_gets_cheaper_with_more_tokens(
    made: Offer, tokens: float, more: float
) -> None:
    low, high = made.monthly(tokens), made.monthly(tokens * more)
    assert low.usd <= high.usd and low.low_usd <= low.usd <= low.high_usd


@given(st.lists(POSITIVE, min_size=1, max_size=40))
def test_percentiles_lie_among_the_values(values: list[float]) -> None:
    found = serving.spread(values)
    assert found and found.n == len(values)
    assert min(values) <= found.p50 * (1 + 1e-12)
    assert found.p50 <= found.p95 * (1 + 1e-12) <= max(values) * (1 + 1e-9)


@given(OFFERS)
def test_full_machines_cost_the_price_per_million(made: Offer) -> None:
    rent = made.monthly(made.capacity).usd - made.storage_usd_per_month
    assert rent == pytest.approx(made.per_million.usd * made.capacity / 1e6, rel=1e-6)
