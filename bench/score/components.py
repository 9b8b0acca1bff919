"""Where a score's noise comes from: other test rows, other training seeds, or both at once.

Each seed answers the same rows, so scores form a seeds × rows table:

    score of seed s on row r = mean + row_r + seed_s + rest_sr

and the variance of a mean over S seeds and n rows is

    σ²_rows / n + σ²_seeds / S + σ²_rest / (S · n)

The three are estimated by the method of moments for the two-way crossed random model without
replication (Searle, Casella and McCulloch 1992, ch. 4; Brennan 2001, ch. 3, "p × i").  F1 and BLEU
have no row scores; their jackknife pseudo-values n·θ − (n−1)·θ₍₋ᵣ₎ stand in (Tukey 1958; Efron and
Tibshirani 1993, ch. 11), for a mean exactly its row scores.

    python -m pytest tests/score/test_components.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from bench.score.resample import FloatArray, Sums, known


class Components(BaseModel):
    """Variances of one row's and one seed's effect, and the standard deviations they leave.

    An estimate below 0 is 0, as is usual.  `sd_rows`: of a score with all seeds but other rows.
    `sd_seeds`: of a single run with another seed, on endless rows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: float
    seeds: float
    rest: float
    n: int
    n_seeds: int

    @property
    def sd_rows(self) -> float:
        return float(np.sqrt((self.rows + self.rest / self.n_seeds) / self.n))

    @property
    def sd_seeds(self) -> float:
        return float(np.sqrt(self.seeds))


def components(seeds: Sequence[Sums]) -> Components | None:
    """Variance components of a method's runs; None below two seeds, two rows, or undefined."""
    if len(seeds) < 2 or len(seeds[0].rows) < 2:
        return None
    table = np.stack([pseudo_values(sums) for sums in seeds])
    if not np.isfinite(table).all():
        return None
    count, n = table.shape
    of_rows, of_seeds = table.mean(axis=0), table.mean(axis=1)
    residual = table - of_rows[None, :] - of_seeds[:, None] + table.mean()
    rest = float((residual**2).sum()) / ((count - 1) * (n - 1))
    rows = float(of_rows.var(ddof=1)) - rest / count
    between = float(of_seeds.var(ddof=1)) - rest / n
    return Components(
        rows=known(max(0.0, rows)) or 0.0,
        seeds=known(max(0.0, between)) or 0.0,
        rest=known(rest) or 0.0,
        n=n,
        n_seeds=count,
    )


def pseudo_values(sums: Sums) -> FloatArray:
    """What each row adds to the metric: n·θ − (n−1)·θ without it."""
    n, total = len(sums.rows), sums.rows.sum(axis=0)
    whole, without = sums.finish(total), sums.finish(total[None, :] - sums.rows)
    return np.asarray(n * whole - (n - 1) * without, dtype=np.float64)
