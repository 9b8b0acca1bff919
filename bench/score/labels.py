"""Labels and entities: F1, accuracy, invalid answers, per class and per type.

Everything is counted per row first, so that groups and bootstrap resamples are sums of the same
counts.  The tests compare each number with scikit-learn's.

    python -m pytest tests/score/test_labels.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np

from bench.score.entities import Pair
from bench.score.plain import normalise
from bench.score.resample import (
    FloatArray,
    Sums,
    divide,
    known,
    mean_of,
    percentile_interval,
    resampled_sums,
    unseen,
)

# ---------------------------------------------------------------- labels


class LabelScores(TypedDict):
    macro_f1: float | None
    micro_f1: float | None
    accuracy: float | None
    invalid_rate: float | None
    per_class: dict[str, float | None]


def label_counts(
    predicted: Sequence[str | None], true: Sequence[str], labels: Sequence[str]
) -> FloatArray:
    """One row per example: right, predicted and true, each with one column per label.

    An invalid answer (None) is a miss for the true class and a false positive for none.
    """
    index = {label: column for column, label in enumerate(labels)}
    counts = np.zeros((len(true), 3, len(labels)))
    for row, (guess, answer) in enumerate(zip(predicted, true, strict=True)):
        counts[row, 2, index[answer]] = 1
        if guess is not None:
            counts[row, 1, index[guess]] = 1
            counts[row, 0, index[guess]] = guess == answer
    return counts.reshape(len(true), 3 * len(labels))


def class_f1(sums: FloatArray) -> FloatArray:
    """F1 of each class; NaN for a class that was neither true nor predicted."""
    right, predicted, true = np.moveaxis(sums.reshape(*sums.shape[:-1], 3, -1), -2, 0)
    return divide(2 * right, predicted + true)


def macro_f1_of_sums(sums: FloatArray) -> FloatArray:
    """Mean F1 over the classes that occur, true or predicted.

    Classes that don't occur have no F1 (scikit-learn's zero_division=nan): counting them as 0
    would punish small groups and every bootstrap resample that misses a rare class.
    """
    scores = class_f1(sums)
    return divide(np.nansum(scores, axis=-1), (~np.isnan(scores)).sum(axis=-1))


def micro_f1_of_sums(sums: FloatArray) -> FloatArray:
    """F1 over all decisions.  Above accuracy where answers are invalid: those aren't predicted."""
    right, predicted, true = np.moveaxis(sums.reshape(*sums.shape[:-1], 3, -1), -2, 0)
    return divide(2 * right.sum(axis=-1), (predicted + true).sum(axis=-1))


def accuracy(predicted: Sequence[str | None], true: Sequence[str]) -> Sums:
    """Share of rows with the true label; invalid answers are wrong."""
    right = [float(a == b) for a, b in zip(predicted, true, strict=True)]
    return mean_of(right, "accuracy|invalid:wrong")


def invalid_rate(predicted: Sequence[str | None]) -> float | None:
    """Share of answers that give no label, or several."""
    return known(predicted.count(None) / len(predicted)) if predicted else None


def label_scores(
    predicted: Sequence[str | None], true: Sequence[str], labels: Sequence[str]
) -> LabelScores:
    """All label metrics at once, without intervals."""
    counts = label_counts(predicted, true, labels)
    return {
        "macro_f1": Sums(counts, macro_f1_of_sums).value(),
        "micro_f1": Sums(counts, micro_f1_of_sums).value(),
        "accuracy": accuracy(predicted, true).value(),
        "invalid_rate": invalid_rate(predicted),
        "per_class": per_class(counts, labels),
    }


def per_class(counts: FloatArray, labels: Sequence[str]) -> dict[str, float | None]:
    """F1 of each label."""
    scores = class_f1(counts.sum(axis=0))
    return {label: known(float(score)) for label, score in zip(labels, scores, strict=True)}


def class_intervals(counts: FloatArray) -> list[tuple[float, float] | None]:
    """95 % bootstrap interval of each class's F1 over rows; None below two rows, or where no
    resample holds the class.  Where nothing varies, the rows that have the class decide."""
    if len(counts) < 2:
        return [None] * (counts.shape[1] // 3)
    drawn = class_f1(resampled_sums(counts))
    having = (counts.reshape(len(counts), 3, -1)[:, 1:] > 0).any(axis=1).sum(axis=0)
    return [
        unseen(percentile_interval(column[~np.isnan(column)]), int(n))
        for column, n in zip(drawn.T, having, strict=True)
    ]


# ---------------------------------------------------------------- entities


def entity_counts(
    predicted: Sequence[Sequence[Pair]], true: Sequence[Sequence[Pair]]
) -> FloatArray:
    """One row per example: pairs right, predicted, true.  A pair twice must be found twice."""
    rows = np.zeros((len(true), 3))
    for row, (found, wanted) in enumerate(zip(predicted, true, strict=True)):
        left, right = _counted(found), _counted(wanted)
        rows[row] = ((left & right).total(), left.total(), right.total())
    return rows


def entity_partial_counts(
    predicted: Sequence[Sequence[Pair]], true: Sequence[Sequence[Pair]]
) -> FloatArray:
    """Like `entity_counts`, but a pair of the right type counts for the words that it shares.

    Each predicted pair is matched with at most one true pair, so that the shared part, a word F1
    (SQuAD's, Rajpurkar 2016), is as large as it can be.
    """
    rows = np.zeros((len(true), 3))
    for row, (found, wanted) in enumerate(zip(predicted, true, strict=True)):
        rows[row] = (_overlap(found, wanted), len(found), len(wanted))
    return rows


def entity_f1_of_sums(sums: FloatArray) -> FloatArray:
    """Micro F1 = 2 · right / (predicted + true); NaN where there is no entity at all."""
    return divide(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


Counts = Callable[[Sequence[Sequence[Pair]], Sequence[Sequence[Pair]]], FloatArray]


def sums_by_type(
    predicted: Sequence[Sequence[Pair]],
    true: Sequence[Sequence[Pair]],
    counts: Counts = entity_counts,
) -> dict[str, Sums]:
    """F1 of each entity type, true or predicted, as per-row counts; strict unless `counts` says."""
    kinds = sorted({normalise(kind) for row in [*predicted, *true] for kind, _ in row})
    return {
        kind: Sums(counts(_only(predicted, kind), _only(true, kind)), entity_f1_of_sums)
        for kind in kinds
    }


def per_type(
    predicted: Sequence[Sequence[Pair]], true: Sequence[Sequence[Pair]]
) -> dict[str, tuple[float | None, int]]:
    """Strict F1 and number of true pairs of each entity type."""
    return {
        kind: (sums.value(), int(sums.rows[:, 2].sum()))
        for kind, sums in sums_by_type(predicted, true).items()
    }


def _only(rows: Sequence[Sequence[Pair]], kind: str) -> list[list[Pair]]:
    return [[pair for pair in row if normalise(pair[0]) == kind] for row in rows]


def _counted(pairs: Sequence[Pair]) -> Counter[Pair]:
    return Counter((normalise(kind), normalise(value)) for kind, value in pairs)


def _overlap(predicted: Sequence[Pair], true: Sequence[Pair]) -> float:
    """The best total word F1 over one-to-one matchings."""
    if not predicted or not true:
        return 0.0
    from scipy.optimize import linear_sum_assignment

    shared = np.array([[_word_f1(left, right) for right in true] for left in predicted])
    return float(shared[linear_sum_assignment(shared, maximize=True)].sum())


def _word_f1(left: Pair, right: Pair) -> float:
    if normalise(left[0]) != normalise(right[0]):
        return 0.0
    if normalise(left[1]) == normalise(right[1]):
        return 1.0
    ours, theirs = Counter(normalise(left[1]).split()), Counter(normalise(right[1]).split())
    return 2 * (ours & theirs).total() / max(1, ours.total() + theirs.total())
