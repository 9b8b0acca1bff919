"""Metrics as sums over rows, and their bootstrap intervals.

Means, F1 and corpus BLEU are all functions of sums of per-row counts.  Kept in that form, one piece
of code gives the value over all rows, over one group, and over a thousand resamples at once.

    python -m pytest tests/score/test_resample.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

RESAMPLES = 1000
SEED = 20240501
LEVEL = 0.95
# BLAS and SIMD add in an order that depends on the machine; ten decimals hide that, so that the
# same predictions give the same bytes anywhere.
DECIMALS = 10
_CHUNK = 2_000_000  # row draws held at once: 16 MB


@dataclass(frozen=True)
class Sums:
    """A metric: `rows` (n × k counts, one line per test row) and what their sum says.

    `finish` maps sums of shape (…, k) to values of shape (…), NaN where the metric is undefined.
    """

    rows: FloatArray
    finish: Callable[[FloatArray], FloatArray]
    signature: str | None = None
    per_example: tuple[float, ...] | None = None
    scale: float = 1.0  # the most that the metric can be

    def value(self, rows: Sequence[int] | None = None) -> float | None:
        """The metric over the rows with these indices, or over all; None where undefined."""
        chosen = self.rows if rows is None else self.rows[list(rows)]
        return known(float(self.finish(chosen.sum(axis=0)))) if len(chosen) else None

    def interval(self) -> tuple[float, float] | None:
        """95 % percentile bootstrap interval over rows (Efron and Tibshirani 1993, ch. 13).

        Rows are resampled with a fixed seed, the same draws for every metric.  None below two
        rows.  Without any variation (10 of 10 right) see `unseen`.
        """
        if len(self.rows) < 2:
            return None
        values = self.finish(resampled_sums(self.rows))
        found = percentile_interval(values[~np.isnan(values)])
        return unseen(found, len(self.rows), self.scale)


def unseen(
    interval: tuple[float, float] | None, n: int, scale: float = 1.0
) -> tuple[float, float] | None:
    """The interval, widened where n rows showed no variation at all, so that a bootstrap saw none.

    Up to 1 − 0.025^(1/n) of all rows may still be otherwise (Clopper and Pearson 1934, 0 of n),
    each worth the whole scale.
    """
    if interval is None or interval[0] != interval[1] or n < 1:
        return interval
    reach = scale * (1 - ((1 - LEVEL) / 2) ** (1 / n))
    low, high = interval[0] - reach, interval[1] + reach
    if 0 <= interval[0] <= scale:
        low, high = max(0.0, low), min(scale, high)
    return round(low, DECIMALS), round(high, DECIMALS)


def known(value: float) -> float | None:
    """A finite number, rounded; None instead of NaN and infinities (JSON has neither)."""
    return round(value, DECIMALS) if np.isfinite(value) else None


def mean_of(scores: Sequence[float], signature: str | None = None) -> Sums:
    """The plain mean of one score per row."""
    column = np.asarray(scores, dtype=np.float64)
    rows = np.stack([column, np.ones_like(column)], axis=-1)
    return Sums(rows, _ratio, signature, tuple(float(score) for score in scores))


def _ratio(sums: FloatArray) -> FloatArray:
    return divide(sums[..., 0], sums[..., 1])


def divide(top: FloatArray, bottom: FloatArray) -> FloatArray:
    """top / bottom, NaN where bottom is 0."""
    top, bottom = np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64)
    return np.divide(top, bottom, out=np.full_like(bottom, np.nan), where=bottom != 0)


def draws(n: int, resamples: int) -> NDArray[np.int64]:
    """Row indices of `resamples` bootstrap samples of n rows."""
    return np.random.default_rng(SEED).integers(0, n, size=(resamples, n))


def resampled_sums(rows: FloatArray, resamples: int = RESAMPLES) -> FloatArray:
    """Sums over each of `resamples` bootstrap samples: shape (resamples, k)."""
    return np.concatenate([drawn @ rows for drawn in times_drawn(len(rows), resamples)])


def times_drawn(n: int, resamples: int) -> Iterable[FloatArray]:
    """How often each row is in each sample, in pieces; kept where small, as all metrics share it
    (drawing takes ten times as long as summing)."""
    kept = n * resamples <= _CHUNK
    return _kept_draws(n, resamples) if kept else _draw(n, resamples)


@lru_cache(maxsize=4)
def _kept_draws(n: int, resamples: int) -> tuple[FloatArray, ...]:
    return tuple(_draw(n, resamples))


def _draw(n: int, resamples: int) -> Iterator[FloatArray]:
    generator = np.random.default_rng(SEED)
    step = max(1, _CHUNK // n)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        index = generator.integers(0, n, size=(size, n)) + n * np.arange(size)[:, None]
        counts = np.bincount(index.ravel(), minlength=size * n).reshape(size, n)
        yield counts.astype(np.float64)


def percentile_interval(values: FloatArray) -> tuple[float, float] | None:
    """The middle 95 % of resampled values, rounded."""
    if not len(values):
        return None
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return round(float(low), DECIMALS), round(float(high), DECIMALS)
