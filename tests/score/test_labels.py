from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from bench.score import labels
from bench.score.resample import Sums

from .made import LABELS, quickly

ROWS = st.lists(
    st.tuples(st.sampled_from((*LABELS, None)), st.sampled_from(LABELS)), min_size=1, max_size=25
)
PAIRS = st.lists(
    st.tuples(st.sampled_from(["order", "item"]), st.sampled_from(["1", "a b", "b c", "a"])),
    max_size=4,
)
ENTITY_ROWS = st.lists(st.tuples(PAIRS, PAIRS), min_size=1, max_size=8)
TRUE = (
    "billing",
    "billing",
    "delivery",
    "delivery",
    "technical",
    "technical",
    "billing",
    "delivery",
)
PARSED = ("billing", "billing", "delivery", "billing", "technical", "technical", None, None)


def test_values() -> None:
    scores = labels.label_scores(PARSED, TRUE, LABELS)
    assert scores == {
        "macro_f1": pytest.approx(0.722222, abs=1e-6),
        "micro_f1": pytest.approx(0.714286, abs=1e-6),
        "accuracy": 0.625,
        "invalid_rate": 0.25,
        "per_class": {
            "billing": pytest.approx(0.666667, abs=1e-6),
            "delivery": 0.5,
            "technical": 1.0,
        },
    }


@quickly
@given(ROWS)
def test_scikit_learn_agrees(rows: list[tuple[str | None, str]]) -> None:
    predicted, true = [row[0] for row in rows], [row[1] for row in rows]
    scores = labels.label_scores(predicted, true, LABELS)
    written = [guess or "invalid" for guess in predicted]
    options: dict[str, Any] = {"labels": list(LABELS), "zero_division": np.nan}
    assert scores["accuracy"] == pytest.approx(accuracy_score(true, written))
    assert scores["micro_f1"] == pytest.approx(f1_score(true, written, average="micro", **options))
    assert scores["macro_f1"] == pytest.approx(f1_score(true, written, average="macro", **options))
    each = f1_score(true, written, average=None, **options)
    assert [scores["per_class"][name] for name in LABELS] == [
        None if np.isnan(value) else pytest.approx(value) for value in each
    ]


@quickly
@given(ROWS, st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(rows: list[tuple[str | None, str]], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    both = [
        labels.label_scores([r[0] for r in some], [r[1] for r in some], LABELS)
        for some in (rows, shuffled)
    ]
    assert both[0] == both[1]
    for name in ("macro_f1", "micro_f1", "accuracy", "invalid_rate"):
        assert 0 <= both[0][name] <= 1  # type: ignore[literal-required]


def test_a_perfect_part_of_the_classes_scores_one() -> None:
    scores = labels.label_scores(["billing"], ["billing"], LABELS)
    assert scores["macro_f1"] == scores["micro_f1"] == scores["accuracy"] == 1
    assert scores["per_class"]["delivery"] is None


def strict(predicted: Any, true: Any) -> float | None:
    return Sums(labels.entity_counts(predicted, true), labels.entity_f1_of_sums).value()


def partial(predicted: Any, true: Any) -> float | None:
    return Sums(labels.entity_partial_counts(predicted, true), labels.entity_f1_of_sums).value()


def test_entity_values() -> None:
    true = [[("order", "4821"), ("product", "blue router")], [("order", "7")], []]
    found = [[("Order", "4821."), ("product", "router")], [("order", "7"), ("order", "7")], []]
    assert strict(found, true) == pytest.approx(2 * 2 / (4 + 3))
    assert partial(found, true) == pytest.approx(2 * (2 + 2 / 3) / (4 + 3))
    assert labels.per_type(found, true) == {
        "order": (pytest.approx(0.8), 2),
        "product": (0.0, 1),
    }
    assert strict([[]], [[]]) is None


def test_partial_matches_each_pair_once() -> None:
    assert partial([[("a", "x y")]], [[("a", "x"), ("a", "y")]]) == pytest.approx(2 * (2 / 3) / 3)
    # greedy in the order given would pair "x y" with "x y z" and leave "x" nothing
    assert partial([[("a", "x y"), ("a", "x y z")]], [[("a", "x y z"), ("a", "x y")]]) == 1


@quickly
@given(ENTITY_ROWS)
def test_entity_properties(rows: list[Any]) -> None:
    found, true = [row[0] for row in rows], [row[1] for row in rows]
    score, soft = strict(found, true), partial(found, true)
    if score is None or soft is None:
        assert not any(found) and not any(true)
        return
    assert 0 <= score <= soft + 1e-9 <= 1 + 1e-9
    assert strict(true, found) == score
    assert strict([row[::-1] for row in found], true) == score
    assert partial([row[::-1] for row in found], true) == pytest.approx(soft)
    if any(true):
        assert strict(true, true) == partial(true, true) == 1
