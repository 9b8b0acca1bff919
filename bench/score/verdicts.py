"""From many paired tests to what may be said: Holm's correction, and a verdict in words.

    better, worse                    the corrected p of the difference is below 5 %
    no difference larger than δ      the corrected p of the equivalence test is below 5 %
    not resolved                     neither: more rows (or seeds) would be needed to tell

A difference can be both sure and smaller than δ: "better, by less than δ".

    python -m pytest tests/score/test_verdicts.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from bench.score.resample import known
from bench.score.significance import ALPHA, Difference

Outcome = Literal["better", "worse", "equivalent", "not resolved"]


def holm(p_values: Sequence[float | None], family: int | None = None) -> list[float | None]:
    """p-values corrected for their number (Holm 1979), in the order given; None stays None.

    `family` counts tests that could have been made too: choosing whom to test after having seen
    the scores ("against the best") must not be free.
    """
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    count = max(len(order), family or 0)
    found: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(order):
        highest = max(highest, min(1.0, (count - rank) * p))
        found[index] = known(highest)
    return found


class Verdict(BaseModel):
    """A difference with its corrected p-values, and what may be said about it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    difference: Difference
    p: float | None
    p_equivalent: float | None
    outcome: Outcome

    @property
    def within_margin(self) -> bool:
        return self.p_equivalent is not None and self.p_equivalent < ALPHA

    @property
    def words(self) -> str:
        margin = self.difference.margin
        if self.outcome in ("better", "worse"):
            return self.outcome + (f", by less than {margin:g}" if self.within_margin else "")
        if self.outcome == "equivalent":
            return f"no difference larger than {margin:g}"
        return "not resolved"


def judge(differences: Sequence[Difference], family: int | None = None) -> list[Verdict]:
    """All tests of one family, corrected together; equivalences are a family of their own."""
    corrected = holm([d.p for d in differences], family)
    equivalent = holm([d.p_equivalent for d in differences], family)
    return [
        Verdict(difference=d, p=p, p_equivalent=q, outcome=_outcome(d, p, q))
        for d, p, q in zip(differences, corrected, equivalent, strict=True)
    ]


def _outcome(difference: Difference, p: float | None, p_equivalent: float | None) -> Outcome:
    if p is not None and p < ALPHA and difference.value:
        return "better" if (difference.value > 0) == difference.higher_is_better else "worse"
    if p_equivalent is not None and p_equivalent < ALPHA:
        return "equivalent"
    return "not resolved"
