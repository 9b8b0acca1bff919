"""Do groups profit alike?  The lowest, the highest, and whether their spread is more than noise.

python -m pytest tests/score/test_spread.py
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from bench.score.resample import known
from bench.score.significance import Difference


class Spread(BaseModel):
    """`gap`: highest minus lowest.  `p_alike`: of Cochran's Q, "all groups gain the same"."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lowest: str
    highest: str
    gap: float
    p_alike: float | None


def spread(gains: Mapping[str, Difference]) -> Spread | None:
    """None of fewer than two groups.  The worst group is the lowest where higher is better.

    Q = Σ wᵍ (gainᵍ − mean)², wᵍ = 1 / variance, against χ² with one degree less than groups
    (Cochran 1954).  It needs every group's error: without one (identical answers) it says nothing.
    The lowest of several is picked after looking: its own interval is too hopeful.
    """
    if len(gains) < 2:
        return None
    ordered = sorted(gains.items(), key=lambda item: (item[1].value, item[0]))
    (lowest, low), (highest, high) = ordered[0], ordered[-1]
    return Spread(
        lowest=lowest,
        highest=highest,
        gap=round(high.value - low.value, 10),
        p_alike=_p_alike([gain for _, gain in ordered]),
    )


def _p_alike(gains: list[Difference]) -> float | None:
    """Rows alone decide: other seeds would move all groups of a run together."""
    errors = [gain.se_rows for gain in gains]
    if not all(errors):
        return None
    from scipy.special import chdtrc

    weights = [1 / error**2 for error in errors if error]
    pairs = list(zip(weights, gains, strict=True))
    mean = sum(weight * gain.value for weight, gain in pairs) / sum(weights)
    q = sum(weight * (gain.value - mean) ** 2 for weight, gain in pairs)
    return known(float(chdtrc(len(gains) - 1, q)))
