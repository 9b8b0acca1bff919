"""Variance components against a table whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.score.components import components, pseudo_values
from bench.score.labels import label_counts, macro_f1_of_sums
from bench.score.resample import Sums, mean_of

from .made import quickly


def made(n_seeds: int, n: int, sds: tuple[float, float, float], seed: int = 0) -> list[Sums]:
    rng = np.random.default_rng(seed)
    rows, seeds, rest = sds
    table = rng.normal(0, rows, n)[None] + rng.normal(0, seeds, n_seeds)[:, None]
    return [mean_of(list(line)) for line in table + rng.normal(0, rest, (n_seeds, n))]


@quickly
@given(st.lists(st.floats(-1, 1, width=16), min_size=2, max_size=20))
def test_pseudo_values_of_a_mean_are_its_scores(scores: list[float]) -> None:
    assert pseudo_values(mean_of(scores)) == pytest.approx(scores, abs=1e-9)


def test_pseudo_values_give_the_error_of_f1() -> None:
    """Their standard error is the bootstrap's, nearly: F1 is smooth."""
    rng = np.random.default_rng(1)
    true = [("a", "b")[i] for i in rng.integers(0, 2, 300)]
    guess = [t if rng.random() < 0.7 else "a" for t in true]
    sums = Sums(label_counts(guess, true, ("a", "b")), macro_f1_of_sums)
    low, high = sums.interval() or (0.0, 0.0)
    error = pseudo_values(sums).std(ddof=1) / 300**0.5
    assert 2 * 1.96 * error == pytest.approx(high - low, rel=0.1)


def test_the_parts_are_found_again() -> None:
    found = components(made(40, 400, (0.3, 0.1, 0.2)))
    assert found
    assert found.rows == pytest.approx(0.09, rel=0.2)
    assert found.seeds == pytest.approx(0.01, rel=0.4)
    assert found.rest == pytest.approx(0.04, rel=0.1)


def test_rows_alone_leave_nothing_to_seeds() -> None:
    found = components(made(5, 200, (0.3, 0.0, 0.0)))
    assert found and found.seeds == 0 and found.rest == pytest.approx(0, abs=1e-9)
    assert found.sd_rows == pytest.approx(0.3 / 200**0.5, rel=0.15)


def test_seeds_alone_leave_nothing_to_rows() -> None:
    found = components(made(30, 50, (0.0, 0.2, 0.0)))
    assert found and found.rows == pytest.approx(0, abs=1e-9)
    assert found.sd_seeds == pytest.approx(0.2, rel=0.3)


def test_one_seed_says_nothing_about_seeds() -> None:
    assert components(made(1, 50, (0.3, 0.1, 0.1))) is None
