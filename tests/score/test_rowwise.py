"""Rows' own scores: their means and sums give the metrics of the whole, with other programs."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sklearn.metrics import f1_score

from bench.score.quality import score
from bench.score.rowwise import row_scores

from .made import LABELS, dataset, field, prediction, quickly

DATA = dataset(
    field("reply", "text", "rouge_l", "bleu", "exact_match"),
    field("intent", "label", "f1", "accuracy"),
    field("slots", "entities", "entity_f1", "entity_partial_f1"),
    format="lines",
)
WORDS = st.lists(st.sampled_from(["we", "sent", "your", "order", "today"]), max_size=6).map(
    " ".join
)
SLOTS = st.dictionaries(st.sampled_from(["order", "product"]), WORDS, max_size=2)
ROWS = st.lists(
    st.tuples(WORDS, WORDS, st.sampled_from([*LABELS, "?"]), st.sampled_from(LABELS), SLOTS, SLOTS),
    min_size=1,
    max_size=8,
)


@quickly
@given(ROWS)
def test_columns_give_the_metrics_back(rows: list[tuple]) -> None:  # type: ignore[type-arg]
    some = [
        prediction(
            f"reply: {said}\nintent: {guess}\nslots: "
            + "; ".join(f"{kind}={value}" for kind, value in found.items()),
            {"reply": reply, "intent": true, "slots": slots},
            id=str(number),
        )
        for number, (said, reply, guess, true, found, slots) in enumerate(rows)
    ]
    table, whole = pd.DataFrame(row_scores(DATA, some)), score(DATA, some).metrics
    assert list(table["id"]) == [row.id for row in some]
    for mean in ("reply.rouge_l", "reply.exact_match", "intent.accuracy"):
        assert table[mean].mean() == pytest.approx(whole[mean].value)
    said = table["intent.said"].fillna("none of them")
    occurring = sorted({*said, *table["intent.true"]} - {"none of them"})
    f1 = f1_score(table["intent.true"], said, labels=occurring, average="macro", zero_division=0)
    assert f1 == pytest.approx(whole["intent.f1"].value)
    pairs = table[["slots.predicted", "slots.true"]].to_numpy().sum()
    if pairs:
        strict, partial = 2 * table["slots.right"].sum(), 2 * table["slots.partial"].sum()
        assert strict / pairs == pytest.approx(whole["slots.entity_f1"].value)
        assert partial / pairs == pytest.approx(whole["slots.entity_partial_f1"].value)
    counts = table["reply.bleu.counts"].str.split(expand=True).astype(float).sum()
    bleu = BLEU.compute_bleu(
        correct=counts[2:6].to_list(), total=counts[6:10].to_list(),
        sys_len=int(counts[0]), ref_len=int(counts[1]), smooth_method="exp",
    )  # fmt: skip
    assert bleu.score == pytest.approx(whole["reply.bleu"].value, abs=1e-6)


def test_no_rows() -> None:
    assert row_scores(DATA, []) == []
