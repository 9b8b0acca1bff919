"""Which test rows were seen in training, word for word or nearly: an exact similarity join.

Two texts are near duplicates where the Jaccard similarity of their character 5-grams is at least
`NEAR`.  Prefix filtering (Bayardo, Ma and Srikant 2007) finds every such pair without comparing all
with all, so nothing is missed as MinHash would: rare 5-grams of a text are looked up first, and a
similar text must share one of its rarest.

    python -m pytest tests/score/test_overlap.py
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from bench.score.plain import normalise

NEAR = 0.7  # one word of ten changed gives about 0.75
SIZE = 5


class Match(NamedTuple):
    """A row, the row it resembles most, and how much (1: the same but for case and spaces)."""

    left: int
    right: int
    similarity: float


def matches(left: Sequence[str], right: Sequence[str], near: float = NEAR) -> list[Match]:
    """The nearest text of `right` for each of `left` that has a near duplicate there; of equals the
    first."""
    texts = [[normalise(text) for text in side] for side in (left, right)]
    index = _Index(texts[1], near, _frequency([*texts[0], *texts[1]]))
    found = (index.nearest(number, text) for number, text in enumerate(texts[0]))
    return [match for match in found if match]


def repeated(texts: Sequence[str]) -> int:
    """Texts that stand in the list more than once, counted without their first."""
    counts = Counter(map(normalise, texts))
    return sum(counts.values()) - len(counts)


@lru_cache(maxsize=4096)
def shingles(text: str) -> frozenset[str]:
    """Character 5-grams; a shorter text is its own only one."""
    if len(text) <= SIZE:
        return frozenset([text])
    return frozenset(text[start : start + SIZE] for start in range(len(text) - SIZE + 1))


def jaccard(one: frozenset[str], two: frozenset[str]) -> float:
    return len(one & two) / len(one | two)


def _frequency(texts: Sequence[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(shingles(text))
    return counts


class _Index:
    """Texts by their rarest 5-grams."""

    def __init__(self, texts: Sequence[str], near: float, frequency: Counter[str]) -> None:
        self.texts, self.near, self.frequency = texts, near, frequency
        self.places: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            for shingle in self._prefix(shingles(text)):
                self.places.setdefault(shingle, []).append(number)

    def nearest(self, number: int, text: str) -> Match | None:
        own = shingles(text)
        numbers = {n for shingle in self._prefix(own) for n in self.places.get(shingle, ())}
        best: Match | None = None
        for candidate in sorted(numbers):
            similarity = jaccard(own, shingles(self.texts[candidate]))
            if similarity >= self.near and (best is None or similarity > best.similarity):
                best = Match(number, candidate, similarity)
        return best

    def _prefix(self, own: frozenset[str]) -> list[str]:
        """Of n shingles the n − ⌈near · n⌉ + 1 rarest: a similar set has one of them too."""
        ordered = sorted(own, key=lambda shingle: (self.frequency[shingle], shingle))
        return ordered[: len(own) - math.ceil(round(self.near * len(own), 9)) + 1]
