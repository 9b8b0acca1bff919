"""Are the server's answers those of the model that was trained?

Greedy answers of the same weights differ a little: batches, kernels and merging round otherwise,
and from the first token that differs the rest goes its own way.  Other weights differ from the
start.  So openings are compared, and the share of equal answers is reported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

OPENING = 32  # characters; about eight tokens
LEAST = 0.5  # share of equal openings below which it isn't the trained model that answers
FEWEST = 4  # rows from which that is decided


@dataclass(frozen=True)
class Agreement:
    rows: int
    same_answers: float | None
    same_openings: float | None

    @property
    def problem(self) -> str | None:
        if self.rows < FEWEST or self.same_openings is None or self.same_openings >= LEAST:
            return None
        return (
            f"not the model that was evaluated: of {self.rows} rows only "
            f"{self.same_openings:.0%} begin as the generate phase answered them"
        )


def agreement(served: Mapping[str, str], generated: Mapping[str, str], whole: bool) -> Agreement:
    """Row id → answer, of both.  `whole`: both were allowed the same number of tokens; else the
    served ones are beginnings."""
    pairs = [
        (_plain(text), _plain(generated[row])) for row, text in served.items() if row in generated
    ]
    if not pairs:
        return Agreement(0, None, None)
    same = sum(a == b if whole else b.startswith(a) for a, b in pairs)
    opening = sum(_opens_alike(a, b, whole) for a, b in pairs)
    return Agreement(len(pairs), same / len(pairs), opening / len(pairs))


def _opens_alike(served: str, generated: str, whole: bool) -> bool:
    length = OPENING if whole else min(OPENING, len(served))
    return served[:length] == generated[:length]


def _plain(text: str) -> str:
    """Servers take thinking tags and white space around them apart."""
    return "".join(re.sub(r"</?think>", "", text).split())
