from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap

from bench.score import resample


def test_mean_interval_is_scipys() -> None:
    scores = np.random.default_rng(1).beta(2, 5, size=80)
    found = resample.mean_of(list(scores)).interval()
    theirs = bootstrap(
        (scores,), np.mean, method="percentile", n_resamples=4000, rng=np.random.default_rng(2)
    ).confidence_interval
    assert found is not None
    width = theirs.high - theirs.low
    assert found[0] == pytest.approx(theirs.low, abs=0.1 * width)
    assert found[1] == pytest.approx(theirs.high, abs=0.1 * width)


def test_interval_covers_the_truth() -> None:
    """40 samples of a fair coin: a 95 % interval that covered less than 80 % would be wrong."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(40):
        interval = resample.mean_of(list(rng.integers(0, 2, size=60).astype(float))).interval()
        assert interval is not None
        hits += interval[0] <= 0.5 <= interval[1]
    assert hits >= 32


def test_same_bytes_twice_and_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(4).integers(0, 5, size=(50, 3)).astype(float)
    whole = resample.resampled_sums(rows)
    monkeypatch.setattr(resample, "_CHUNK", 333)
    assert (resample.resampled_sums(rows) == whole).all()
    assert whole.shape == (resample.RESAMPLES, 3)
    draws = resample.draws(50, resample.RESAMPLES)
    assert (rows[draws[7]].sum(axis=0) == whole[7]).all()


def test_unknown_is_none() -> None:
    assert resample.mean_of([]).value() is None
    assert resample.mean_of([1.0]).interval() is None
    assert resample.mean_of([1.0, 3.0]).value([]) is None
    assert resample.mean_of([1.0, 3.0]).value([1]) == 3
    assert resample.mean_of([0.0, 0.0, 1.0]).value() == 0.3333333333
    assert resample.known(float("nan")) is None and resample.known(float("inf")) is None


def test_no_variation_is_no_certainty() -> None:
    """10 of 10 right: the exact interval of a share, where a bootstrap would say 1 to 1."""
    wanted = binomtest(10, 10).proportion_ci(method="exact")
    found = resample.mean_of([1.0] * 10).interval()
    assert found == pytest.approx((wanted.low, wanted.high))
    assert resample.mean_of([0.0] * 10).interval() == pytest.approx((0, 1 - wanted.low))
    wide = resample.Sums(np.zeros((10, 1)), lambda sums: sums[..., 0] + 50, scale=100).interval()
    assert wide == pytest.approx((50 - 100 * (1 - wanted.low), 50 + 100 * (1 - wanted.low)))
