"""Is method A better than method B, as good, or is it open?  Tests on the same test rows, in pairs.

A difference of two scores says nothing without its noise, and rows are shared: what is hard for the
one method is hard for the other, so the paired difference is known far better than either score.

Three questions, each with its own answer:

    interval      where the difference lies: paired bootstrap over rows (Koehn 2004)
    p             could chance alone have made it?  approximate randomisation (Noreen 1989; Riezler
                  and Maxwell 2005 prefer it to the bootstrap for such tests)
    equivalence   is it surely smaller than δ?  TOST (Schuirmann 1987): "as good as" needs proof too

F1 and corpus BLEU are no means of row scores: their *counts* are resampled, and the metric is taken
of each resample's sums.  Clustered rows (one customer's tickets) are summed first: the cluster is
then what is drawn, swapped and counted.  `bench/score/verdicts.py` corrects for many tests and says
it in words.

    python -m pytest tests/score/test_significance.py
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from bench.score.resample import (
    LEVEL,
    SEED,
    FloatArray,
    Sums,
    known,
    percentile_interval,
    resampled_sums,
)

RESAMPLES = 2000  # the interval's ends move by about 1 % of its width with another seed
ROUNDS = 9999  # of the randomisation test: the smallest p is 1/10000
ALPHA = 1 - LEVEL
POWER = 0.8
_CHUNK = 2_000_000
_EQUAL = 1e-12  # sums in another order differ in the last bits: that is no difference


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Side:
    """A method on the shared test rows: its per-row counts, one `Sums` for each seed.

    `seeded` False: training seeds don't exist here (an untuned model, greedily decoded), so one
    run says all.  Its score is the mean over seeds of the metric.
    """

    seeds: tuple[Sums, ...]
    seeded: bool = True

    @property
    def n(self) -> int:
        return len(self.seeds[0].rows)

    @cached_property
    def values(self) -> FloatArray:
        """The metric of each seed."""
        return np.array([sums.finish(sums.rows.sum(axis=0)) for sums in self.seeds])

    @cached_property
    def replicates(self) -> FloatArray:
        """The mean over seeds in each bootstrap sample; the draws are the same for every side."""
        runs = [sums.finish(resampled_sums(sums.rows, RESAMPLES)) for sums in self.seeds]
        return np.asarray(np.mean(runs, axis=0), dtype=np.float64)

    @property
    def seed_variance(self) -> float | None:
        """Variance of the mean over seeds that another set of seeds would show; None if unknown."""
        if not self.seeded:
            return 0.0
        count = len(self.seeds)
        return float(np.var(self.values, ddof=1)) / count if count > 1 else None

    def clustered(self, clusters: Sequence[Hashable]) -> Side:
        """The same with one line of counts for each cluster."""
        return replace(self, seeds=tuple(by_cluster(sums, clusters) for sums in self.seeds))


def by_cluster(sums: Sums, clusters: Sequence[Hashable]) -> Sums:
    """Counts added up within each cluster, in the order in which clusters first appear."""
    if len(clusters) != len(sums.rows):
        raise ValueError(f"{len(clusters)} cluster names for {len(sums.rows)} rows")
    number = {name: index for index, name in enumerate(dict.fromkeys(clusters))}
    totals = np.zeros((len(number), sums.rows.shape[1]))
    np.add.at(totals, [number[name] for name in clusters], sums.rows)
    return Sums(totals, sums.finish, sums.signature)


class Difference(_Frozen):
    """A minus B.

    `n` rows, `units` that were drawn (rows, or clusters), `differing` units on which the methods'
    counts differ at all.  `p_rows` is the randomisation test's; `p` also allows for other seeds,
    where both sides have several.  `p_equivalent`: of TOST with the margin.  Not yet corrected.
    """

    value: float
    low: float | None
    high: float | None
    p: float | None
    p_rows: float | None
    p_equivalent: float | None
    n: int
    units: int
    differing: int
    seeds: tuple[int, int]
    se_rows: float | None
    se_seeds: float | None
    margin: float | None
    rows_needed: int | None
    rows_needed_reason: str | None = None
    higher_is_better: bool = True

    @property
    def clustered(self) -> bool:
        return self.units < self.n

    @property
    def scope(self) -> Literal["rows", "rows and seeds"]:
        """What the interval allows for: other test rows, or also other training seeds."""
        return "rows" if self.se_seeds is None else "rows and seeds"


@dataclass(frozen=True)
class Question:
    """How a comparison is to be read: δ in the metric's units, its scale, and what rows share."""

    margin: float | None = None
    scale: float = 1.0  # the most that a row can be worth: 1, for BLEU 100
    clusters: tuple[Hashable, ...] | None = None
    higher_is_better: bool = True
    tested: bool = True  # False: no p from rows, which takes most of the time


def compare(a: Side, b: Side, question: Question = Question()) -> Difference | None:
    """A against B; None where the metric is undefined for one of them.

    Raises ValueError where the sides don't have the same rows.
    """
    if a.n != b.n:
        raise ValueError(f"not the same rows: {a.n} against {b.n}")
    n = a.n
    if question.clusters is not None:
        a, b = a.clustered(question.clusters), b.clustered(question.clusters)
    value = float(a.values.mean() - b.values.mean())
    if not math.isfinite(value):
        return None
    noise = _noise(a, b)
    p_rows = randomisation(a, b) if question.tested and a.n > 1 else None
    low, high = _interval(a, b, value, noise, question.scale) or (None, None)
    needed, why = rows_needed(noise, n, question)
    return Difference(
        value=round(value, 10),
        low=low,
        high=high,
        p=_p_value(value, noise, p_rows),
        p_rows=p_rows,
        p_equivalent=_p_equivalent(value, noise, question),
        n=n,
        units=a.n,
        differing=noise.differing,
        seeds=(len(a.seeds), len(b.seeds)),
        se_rows=known(math.sqrt(noise.rows)) if noise.units > 1 else None,
        se_seeds=None if noise.seeds is None else known(math.sqrt(noise.seeds)),
        margin=question.margin,
        rows_needed=needed,
        rows_needed_reason=why,
        higher_is_better=question.higher_is_better,
    )


# ---------------------------------------------------------------- noise


@dataclass(frozen=True)
class Noise:
    """Variance of the difference by where it comes from.

    `rows`: other test rows, by bootstrap of the means over seeds.  `seeds`: other training seeds on
    these rows, s²_A/S_A + s²_B/S_B; None where it can't be known (a trained side with one seed).
    Their sum counts the seed × row interaction twice (it is a part of both), so it errs to the
    careful side; `bench/score/components.py` tells the three apart.
    """

    rows: float
    seeds: float | None
    df: float
    units: int
    differing: int

    @property
    def se(self) -> float:
        return math.sqrt(self.rows + (self.seeds or 0.0))


def _noise(a: Side, b: Side) -> Noise:
    replicates = a.replicates - b.replicates
    replicates = replicates[~np.isnan(replicates)]
    rows = float(np.var(replicates, ddof=1)) if a.n > 1 and len(replicates) > 1 else 0.0
    of_a, of_b = a.seed_variance, b.seed_variance
    seeds = None if of_a is None or of_b is None or not (a.seeded or b.seeded) else of_a + of_b
    parts = [(rows, a.n - 1)]
    if seeds is not None:
        parts += [(of_a or 0.0, len(a.seeds) - 1), (of_b or 0.0, len(b.seeds) - 1)]
    return Noise(rows, seeds, _degrees(parts), a.n, _differing(a, b))


def _degrees(parts: Sequence[tuple[float, int]]) -> float:
    """Degrees of freedom of a sum of variances (Welch 1947, Satterthwaite 1946)."""
    below = sum(variance**2 / df for variance, df in parts if df > 0 and variance > 0)
    total = sum(variance for variance, df in parts if df > 0)
    return total**2 / below if below > 0 else float(max(parts[0][1], 1))


def _differing(a: Side, b: Side) -> int:
    """Units on which A's counts, summed over seeds, aren't B's."""
    ours, theirs = (np.mean([s.rows for s in side.seeds], axis=0) for side in (a, b))
    return int((np.abs(ours - theirs) > _EQUAL).any(axis=1).sum())


# ---------------------------------------------------------------- interval and tests


def _interval(
    a: Side, b: Side, value: float, noise: Noise, scale: float
) -> tuple[float, float] | None:
    """95 %: percentiles of the paired bootstrap; with several seeds ± t × both standard errors.

    Where the methods never differ (or on all rows alike, as where A is always right and B never)
    neither sees any noise.  Then: up to 1 − 0.025^(1/n) of all rows may still be otherwise
    (Clopper and Pearson 1934 with 0 of n), each worth the scale.
    """
    if a.n < 2:
        return None
    if not noise.differing or noise.se <= _EQUAL:
        reach = scale * (1 - (ALPHA / 2) ** (1 / noise.units))
        return round(max(-scale, value - reach), 10), round(min(scale, value + reach), 10)
    if noise.seeds is None:
        replicates = a.replicates - b.replicates
        return percentile_interval(replicates[~np.isnan(replicates)])
    from scipy.special import stdtrit

    reach = float(stdtrit(noise.df, 1 - ALPHA / 2)) * noise.se
    return round(value - reach, 10), round(value + reach, 10)


def randomisation(a: Side, b: Side) -> float:
    """Two-sided p of "the labels A and B could be swapped on any row" (Noreen 1989).

    Each round swaps A's and B's counts on a random half of the rows, on all seeds of a row at once:
    seeds of a row aren't independent.  Sides with unequal numbers of seeds use the first ones of
    the longer.  All 2^n swaps are made where they are few: the p-value is then exact.
    """
    ours, theirs = _matched(a, b)
    observed = abs(_mean_metric(ours) - _mean_metric(theirs))
    moves = [other.rows - own.rows for own, other in zip(ours, theirs, strict=True)]
    exact = 2**a.n <= ROUNDS + 1
    as_extreme = total = 0
    widths = np.cumsum([move.shape[1] for move in moves])[:-1]
    for swap in _swaps(a.n, exact):
        moved = np.split(swap @ np.hstack(moves), widths, axis=1)
        one = np.mean([s.finish(s.rows.sum(0) + m) for s, m in zip(ours, moved, strict=True)], 0)
        two = np.mean([s.finish(s.rows.sum(0) - m) for s, m in zip(theirs, moved, strict=True)], 0)
        differences = np.abs(one - two)
        defined = ~np.isnan(differences)
        as_extreme += int((differences[defined] >= observed - _EQUAL).sum())
        total += int(defined.sum())
    # The sample as it is counts as one of the random rounds: p is never 0 (Davison and Hinkley).
    return as_extreme / total if exact else (as_extreme + 1) / (total + 1)


def _matched(a: Side, b: Side) -> tuple[tuple[Sums, ...], tuple[Sums, ...]]:
    """As many runs on both sides; a single run of a side stands against each of the other's."""
    if len(a.seeds) == 1 or len(b.seeds) == 1:
        count = max(len(a.seeds), len(b.seeds))
        return (a.seeds * count)[:count], (b.seeds * count)[:count]
    count = min(len(a.seeds), len(b.seeds))
    return a.seeds[:count], b.seeds[:count]


def _mean_metric(runs: Sequence[Sums]) -> float:
    return float(np.mean([sums.finish(sums.rows.sum(axis=0)) for sums in runs]))


def _swaps(n: int, exact: bool) -> Iterator[FloatArray]:
    """0/1 matrices, a line for each round: which rows are swapped."""
    if exact:
        yield ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(np.float64)
        return
    generator = np.random.default_rng(SEED)
    step = max(1, _CHUNK // n)
    for start in range(0, ROUNDS, step):
        size = min(step, ROUNDS - start)
        bits = np.frombuffer(generator.bytes(-(-size * n // 8)), dtype=np.uint8)
        yield np.unpackbits(bits, count=size * n).reshape(size, n).astype(np.float64)


def _p_value(value: float, noise: Noise, p_rows: float | None) -> float | None:
    """The randomisation test's p; with several seeds the larger of it and of the t-test that allows
    for seeds too (to reject, both must: an intersection-union test, Berger 1982)."""
    if p_rows is None or noise.seeds is None or noise.se <= _EQUAL:
        return p_rows
    from scipy.special import stdtr

    return max(p_rows, known(2 * float(stdtr(noise.df, -abs(value) / noise.se))) or 0.0)


def _p_equivalent(value: float, noise: Noise, question: Question) -> float | None:
    """p of "the difference is δ or more", by two one-sided t-tests with the bootstrap's error.

    At least (1 − δ/scale)^n, the chance that n rows show nothing of a method that fails wholly on
    a share δ of all rows: no margin is met by a handful of rows, however alike they look.
    """
    if question.margin is None or noise.units < 2:
        return None
    from scipy.special import stdtr

    unseen = max(0.0, 1 - question.margin / question.scale) ** noise.units
    room = question.margin - abs(value)
    if noise.se <= _EQUAL:
        return known(unseen if room > 0 else 1.0)
    return known(max(unseen, float(stdtr(noise.df, -room / noise.se))))


# ---------------------------------------------------------------- how many rows would do


def rows_needed(noise: Noise, n: int, question: Question) -> tuple[int | None, str | None]:
    """(test rows that would settle δ, or why none would).

    n = (z₀.₉₅ + z₀.₉₀)² σ² / δ², the size of a TOST with 80 % power where the methods are equal
    (Julious 2004); a test for a difference of δ needs a little less.  σ² is the variance of a row's
    paired difference as found here, n × the bootstrap's.  Assumes that more rows would be like
    these, and no correction for many tests.  Seeds' variance takes its share of δ² first.
    """
    if question.margin is None or noise.units < 2:
        return None, None if question.margin is not None else "the suite sets no margin"
    from scipy.special import ndtri

    factor = float(ndtri(1 - ALPHA) + ndtri(1 - (1 - POWER) / 2)) ** 2
    left = question.margin**2 - factor * (noise.seeds or 0.0)
    if left <= 0:
        return None, "seeds differ too much: more rows don't help, more seeds would"
    share = min(question.margin / question.scale, 1 - 1e-9)
    units = max(factor * noise.rows * noise.units / left, math.log(ALPHA) / math.log(1 - share))
    return math.ceil(round(units * n / noise.units, 6)), None
