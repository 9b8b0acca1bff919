"""Shares of rows with their exact interval: a bootstrap says 0 to 0 where nothing was seen.

python -m pytest tests/score/test_rates.py
"""

from __future__ import annotations

from bench.score.resample import LEVEL, known


def share_interval(count: int, n: int) -> tuple[float, float] | None:
    """95 % interval of a share, `count` of `n` (Clopper and Pearson 1934); None without rows."""
    if n < 1:
        return None
    from scipy.special import betaincinv

    tail = (1 - LEVEL) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, n - count + 1, tail))
    high = 1.0 if count == n else float(betaincinv(count + 1, n - count, 1 - tail))
    return known(low) or 0.0, known(high) or 0.0
