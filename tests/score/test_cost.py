from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.score.cost import job_cost, pareto_frontier
from bench.spec import Price

from .made import quickly

PRICE = Price(usd_per_device_hour=3, low_usd=2, high_usd=4, provider="x", date="x", source="x")
HOURS = {"load": 0.25, "train": 3.0, "evaluate": 0.5, "idle": 0.25}
POINTS = st.lists(
    st.tuples(
        st.uuids().map(str),
        st.one_of(st.none(), st.integers(0, 4).map(float)),
        st.one_of(st.none(), st.integers(0, 4).map(float)),
    ),
    max_size=9,
)


def test_golden_cost() -> None:
    phases = {name: hours * 3600 for name, hours in HOURS.items()}
    found = job_cost(phases, PRICE, devices=4, train_s=3 * 3600, tokens=10_000 * 3 * 3600)
    assert found.device_hours == 16
    assert (found.job.usd, found.job.low_usd, found.job.high_usd) == (48, 32, 64)
    assert found.train is not None and found.train.usd == 36
    million = found.per_million_training_tokens
    assert million is not None and million.usd == pytest.approx(1 / 3)
    assert job_cost(phases, PRICE, devices=2, nodes=2).job == found.job


def test_unknown_is_none() -> None:
    found = job_cost({"train": 60}, PRICE, devices=1)
    assert found.train is None and found.per_million_training_tokens is None
    untrained = job_cost({"generate": 60}, PRICE, devices=1, train_s=0, tokens=0)
    assert untrained.per_million_training_tokens is None


def test_golden_frontier() -> None:
    points = [
        ("full", 60.0, 0.52),
        ("lora", 12.0, 0.51),
        ("qlora", 9.0, 0.47),
        ("qlora_slow", 15.0, 0.45),
        ("oom", 3.0, None),
        ("lora_twin", 12.0, 0.51),
        ("nan", 1.0, math.nan),
        ("free", None, 1.0),
    ]
    assert pareto_frontier(points) == ["full", "lora", "lora_twin", "qlora"]
    assert pareto_frontier([("a", 1.0, 0.5), ("b", 1.0, 0.6), ("c", 2.0, 0.6)]) == ["b"]


@quickly
@given(POINTS)
def test_frontier_properties(points: list[tuple[str, float | None, float | None]]) -> None:
    frontier = pareto_frontier(points)
    assert pareto_frontier(points[::-1]) == frontier
    known = {name: (c, s) for name, c, s in points if c is not None and s is not None}
    assert bool(frontier) == bool(known)
    for name, (cost, score) in known.items():
        beaten = any(
            c <= cost and s >= score and (c < cost or s > score) for c, s in known.values()
        )
        assert (name in frontier) != beaten
