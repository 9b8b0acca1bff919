"""Random inputs through other programs: sacrebleu's command line, rouge_score, sklearn, scipy.

What each scorer's own test compares (a mean's bootstrap, exact randomisation of means and of BLEU,
TOST, Clopper and Pearson) isn't repeated here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score
from sklearn.preprocessing import MultiLabelBinarizer

from bench.score import labels, text
from bench.score.quality import score
from bench.score.resample import Sums
from bench.score.significance import Side, randomisation
from bench.score.spread import spread
from bench.score.throughput import median_interval

from .made import LABELS, dataset, field, prediction, quickly
from .test_spread import gain

WORDS = {
    "en": [
        "the",
        "parcel",
        "left",
        "at",
        "10.30,",
        "didn't",
        "it?",
        "#4",
        "(soon)",
        "A-1",
        "café.",
    ],
    "zh": ["订", "单", "已", "经", "发", "货", "请", "您", "等", "待", "iPhone", "15", "。"],
    "th": ["ส่ง", "แล้ว", "ครับ", "ขอบคุณ", "12", "box"],
}


# ---------------------------------------------------------------- sacrebleu's command line


@pytest.mark.parametrize(("language", "tokenizer"), [("en", "13a"), ("zh", "zh"), ("th", "char")])
def test_bleu_is_what_sacrebleu_prints(language: str, tokenizer: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(len(language + tokenizer))
    glue = " " if language == "en" else ""

    def lines(shortest: int) -> list[str]:
        sizes = rng.integers(shortest, 14, 40)
        return [glue.join(rng.choice(WORDS[language], size)) for size in sizes]

    one, two = lines(4), lines(1)
    # half of the answers share most of a reference; one is empty
    predictions = [r[: 2 * len(r) // 3] if i % 2 else r for i, r in enumerate(one)]
    predictions[7], predictions[8] = "", two[8]
    files = {"hypothesis": predictions, "one": one, "two": two}
    for name, rows in files.items():
        (tmp_path / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "one", "two", "-i", "hypothesis", "-m", "bleu"]
    command += ["-w", "10", "--force", "--tokenize", tokenizer]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    references = [list(pair) for pair in zip(one, two, strict=True)]
    found = text.corpus_bleu(predictions, references, language)
    assert 1 < told["score"] < 99
    assert found.value() == pytest.approx(told["score"], abs=1e-8)
    for part in ("nrefs", "case", "eff", "tok", "smooth", "version"):
        assert f"{part}:{told[part]}" in (found.signature or "")


# ---------------------------------------------------------------- rouge_score

PIECES = st.lists(
    st.sampled_from(["The", "cat", "sat", "on", "a", "mat", "mats", ".", ",", "\n", "it's", "2"]),
    max_size=14,
).map(" ".join)
ROUGE = RougeScorer(["rougeL", "rougeLsum"], use_stemmer=False)


@quickly
@given(PIECES, st.lists(PIECES, min_size=1, max_size=3))
def test_rouge_with_several_references_is_rouge_scores(said: str, references: list[str]) -> None:
    each = [ROUGE.score(reference, said) for reference in references]
    assert text.rouge_l(said, references) == pytest.approx(max(e["rougeL"].fmeasure for e in each))
    wanted = ROUGE.score_multi(references, said)["rougeLsum"].fmeasure
    assert text.rouge_lsum(said, references) == pytest.approx(wanted)


# ---------------------------------------------------------------- scikit-learn


@quickly
@given(
    st.lists(
        st.tuples(st.sampled_from([*LABELS, "I can't say", "billing or delivery"]),
                  st.sampled_from(LABELS)),
        min_size=1, max_size=20,
    )
)  # fmt: skip
def test_from_answer_to_score_as_scikit_learn_has_it(rows: list[tuple[str, str]]) -> None:
    """The whole way: free text is read, an invalid answer is wrong."""
    made = dataset(field("intent", "label", "f1", "micro_f1", "accuracy", "invalid_rate"))
    found = score(made, [prediction(said, {"intent": true}) for said, true in rows])
    said, true = (list(side) for side in zip(*rows, strict=True))
    options: dict[str, Any] = {"labels": LABELS, "zero_division": np.nan}
    values = {name: metric.value for name, metric in found.metrics.items()}
    assert values["intent.accuracy"] == pytest.approx(accuracy_score(true, said))
    assert values["intent.f1"] == pytest.approx(f1_score(true, said, average="macro", **options))
    assert values["intent.micro_f1"] == pytest.approx(
        f1_score(true, said, average="micro", **options)
    )
    invalid = np.mean([s not in LABELS for s in said])
    assert values["intent.invalid_rate"] == pytest.approx(invalid)
    for label, value in zip(LABELS, f1_score(true, said, average=None, **options), strict=True):
        metric = found.per_class["intent"][label]
        assert metric.n == true.count(label)
        assert metric.value == (None if np.isnan(value) else pytest.approx(value))


PAIRS = st.frozensets(
    st.tuples(st.sampled_from(["order", "date"]), st.sampled_from(["1", "2", "x y"])), max_size=4
)


@quickly
@given(st.lists(st.tuples(PAIRS, PAIRS), min_size=1, max_size=8))
def test_strict_entity_f1_is_scikit_learns_micro_f1(rows: list[Any]) -> None:
    """Pairs without repetition are a multi-label problem."""
    said, true = ([sorted(row[side]) for row in rows] for side in (0, 1))
    found = labels.entity_f1_of_sums(labels.entity_counts(said, true).sum(axis=0))
    binary = MultiLabelBinarizer().fit([*said, *true])
    if not binary.classes_.size:
        assert np.isnan(found)
        return
    # One more column, of a pair that is nowhere: scikit-learn takes a single one for a binary label
    one, two = (np.pad(binary.transform(side), ((0, 0), (0, 1))) for side in (true, said))
    assert found == pytest.approx(f1_score(one, two, average="micro", zero_division=0))


# ---------------------------------------------------------------- scipy


def entity_sums(n: int, right: float, seed: int) -> Sums:
    """Two entities a row; a share of them is found, some others are made up."""
    rng = np.random.default_rng(seed)
    true = [[("a", str(i)), ("b", str(i))] for i in range(n)]
    said = [[pair for pair in row if rng.random() < right] for row in true]
    said = [[*row, ("c", "x")] if rng.random() < 0.3 else row for row in said]
    return Sums(labels.entity_counts(said, true), labels.entity_f1_of_sums)


def test_entity_f1s_interval_is_scipys_bootstrap_of_the_corpus() -> None:
    sums = entity_sums(60, 0.7, 1)
    expected = stats.bootstrap(
        (np.arange(60),), lambda index: sums.value(index.astype(int).tolist()) or 0.0,
        vectorized=False, method="percentile", n_resamples=3000, rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    width = expected.high - expected.low
    assert sums.interval() == pytest.approx((expected.low, expected.high), abs=0.1 * width)


def test_entity_f1s_randomisation_is_scipys_on_the_corpus() -> None:
    one, two = entity_sums(9, 0.9, 2), entity_sums(9, 0.4, 3)
    both, rows = np.concatenate([one.rows, two.rows]), np.arange(9)

    def statistic(x: np.ndarray, y: np.ndarray) -> float:
        left, right = both[x.astype(int)].sum(0), both[y.astype(int)].sum(0)
        return float(one.finish(left) - one.finish(right))

    expected = stats.permutation_test(
        (rows, rows + 9), statistic, permutation_type="samples", n_resamples=np.inf,
        vectorized=False,
    )  # fmt: skip
    assert randomisation(Side((one,)), Side((two,))) == pytest.approx(expected.pvalue, abs=1e-9)


def test_a_medians_interval_is_scipys_bootstrap() -> None:
    rates = np.random.default_rng(4).gamma(20, 5, 80)
    expected = stats.bootstrap(
        (rates,), np.median, method="percentile", n_resamples=4000, rng=np.random.default_rng(0)
    ).confidence_interval
    width = expected.high - expected.low
    assert median_interval(rates) == pytest.approx((expected.low, expected.high), abs=0.15 * width)


def test_cochrans_q_is_weighted_least_squares() -> None:
    """As scipy and linear algebra have it: the residual of fitting one mean to all gains."""
    gains = {str(g): gain(0.02 * g, 40, g) for g in range(4)}
    values = np.array([g.value for g in gains.values()])
    weights = 1 / np.array([g.se_rows for g in gains.values()]) ** 2
    design = np.sqrt(weights)[:, None]
    _, residual, *_ = np.linalg.lstsq(design, design[:, 0] * values, rcond=None)
    over = spread(gains)
    assert over and over.p_alike == pytest.approx(stats.chi2.sf(residual[0], 3), rel=1e-6)
