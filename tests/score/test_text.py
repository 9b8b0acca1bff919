from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.bleu import BLEU

from bench.score import text

from .made import quickly

ASCII = st.text(st.characters(max_codepoint=127), max_size=60)
WORDS = st.lists(
    st.sampled_from(["the", "a", "cat", "dog", "sat", "on", "mat.", "Sat,", "dog\n", "red"]),
    max_size=15,
)
SENTENCE = WORDS.map(" ".join)
SCORER = RougeScorer(["rougeL", "rougeLsum"], use_stemmer=False)

PARCEL = (
    "Your parcel left our warehouse this morning.",
    "We sent a new password to your email address.",
    "The branch opens at ten o'clock on Saturdays.",
)
ANSWERS = (
    "The parcel left our warehouse this morning.",
    "We have sent a new password to your email.",
    "The branch opens at nine o'clock.",
)


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        ("Größe und prüfen!", ["größe", "und", "prüfen"]),
        ("cafe\u0301 snake_case o'clock", ["café", "snake", "case", "o", "clock"]),
        ("订单 iPhone15已", ["订", "单", "iphone15", "已"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("ที่นี่", ["ที่", "นี่"]),
        ("می\u200cخواهم", ["میخواهم"]),
        ("한국어 텍스트", ["한국어", "텍스트"]),
        ("😀 — …", []),
    ],
)
def test_tokenize(written: str, tokens: list[str]) -> None:
    assert text.tokenize(written) == tokens


@quickly
@given(ASCII, ASCII)
def test_rouge_l_is_rouge_score_on_ascii(prediction: str, reference: str) -> None:
    wanted = SCORER.score(reference, prediction)["rougeL"].fmeasure
    assert text.rouge_l(prediction, [reference]) == pytest.approx(wanted)


@quickly
@given(SENTENCE, SENTENCE)
def test_rouge_is_rouge_score_on_words(prediction: str, reference: str) -> None:
    wanted = SCORER.score(reference, prediction)
    assert text.rouge_l(prediction, [reference]) == pytest.approx(wanted["rougeL"].fmeasure)
    assert text.rouge_lsum(prediction, [reference]) == pytest.approx(wanted["rougeLsum"].fmeasure)


@pytest.mark.parametrize(
    ("reference", "prediction", "expected"),
    [
        (
            "Your refund was issued on Monday and should arrive within five days.",
            "The refund was issued Monday, it should arrive in five days.",
            0.695652,
        ),
        ("Ваш заказ отправлен вчера вечером", "Ваш заказ отправлен сегодня вечером", 0.8),
        ("订单已经发货请耐心等待", "订单已发货请耐心等待", 0.952381),
        ("Größe und Gewicht prüfen", "Große und Gewicht prüfen", 0.75),
        ("Please restart the router.", "", 0.0),
    ],
)
def test_rouge_l_values(reference: str, prediction: str, expected: float) -> None:
    assert text.rouge_l(prediction, [reference]) == pytest.approx(expected, abs=1e-6)


def test_rouge_lsum_takes_lines_in_any_order() -> None:
    reference = "Hold the power button for ten seconds.\nThen plug the charger in."
    prediction = "Then plug the charger in.\nHold the power button for ten seconds."
    assert text.rouge_lsum(prediction, [reference]) == 1
    assert text.rouge_l(prediction, [reference]) == pytest.approx(0.583333, abs=1e-6)
    russian = "Ваш заказ отправлен.\nСпасибо."
    assert text.rouge_lsum("Спасибо.\nВаш заказ отправлен.", [russian]) == 1


@quickly
@given(st.text(max_size=40), st.text(max_size=40))
def test_rouge_bounds_symmetry_and_identity(left: str, right: str) -> None:
    score = text.rouge_l(left, [right])
    assert 0 <= score <= 1
    assert score == pytest.approx(text.rouge_l(right, [left]))
    assert text.rouge_l(left, [left]) == float(bool(text.tokenize(left)))
    assert text.rouge_l(left, [right, left]) >= score


def test_rouge_l_is_fast_on_long_answers() -> None:
    long = " ".join(str(i % 97) for i in range(2000))
    started = time.perf_counter()
    text.rouge_l(long, [long[::-1]])
    assert time.perf_counter() - started < 0.5  # rouge_score needs over a second


def test_exact_match() -> None:
    assert text.exact_match(" Blue\n sky ", ["Blue sky"]) == 1
    assert text.exact_match("blue sky", ["Blue sky"]) == 0
    assert text.exact_match("b", ["a", "b"]) == 1


def test_bleu_values() -> None:
    one = [[reference] for reference in PARCEL]
    assert text.corpus_bleu(ANSWERS, one).value() == pytest.approx(62.723718, abs=1e-6)
    empty = text.corpus_bleu((*ANSWERS, ""), [*one, ["Thank you for waiting."]])
    assert empty.value() == pytest.approx(51.353837, abs=1e-6)


def test_bleu_tokenizers() -> None:
    assert [text.bleu_tokenizer(code) for code in ("en", "zh", "zh-TW", "th", "de_DE")] == [
        "13a",
        "zh",
        "zh",
        "char",
        "13a",
    ]
    found = text.corpus_bleu(
        ["返金は五日以内に処理されます"], [["返金は三日以内に処理されます"]], "ja"
    )
    assert f"tok:{text.bleu_tokenizer('ja')}" in (found.signature or "")
    chinese = text.corpus_bleu(
        ["订单已发货请耐心等待配送员联系您"], [["订单已经发货请您耐心等待配送员联系"]], "zh"
    )
    assert chinese.value() == pytest.approx(65.57068, abs=1e-6)
    assert "tok:zh" in (chinese.signature or "")


@quickly
@given(
    st.lists(
        st.tuples(SENTENCE, st.lists(SENTENCE, min_size=1, max_size=3)), min_size=1, max_size=6
    )
)
def test_bleu_is_sacrebleu(rows: list[tuple[str, list[str]]]) -> None:
    predictions, references = [row[0] for row in rows], [row[1] for row in rows]
    metric = BLEU(force=True)
    wanted = metric.corpus_score(predictions, text.transposed(references))
    found = text.corpus_bleu(predictions, references)
    assert found.value() == pytest.approx(wanted.score, abs=1e-8)
    assert found.signature == str(metric.get_signature())


def test_transposed() -> None:
    assert text.transposed([["a", "b"], ["c"]]) == [["a", "c"], ["b", None]]


@quickly
@given(st.lists(SENTENCE, min_size=2, max_size=6), st.randoms())
def test_bleu_of_itself_and_order(rows: list[str], random: object) -> None:
    references = [[row] for row in rows]
    score = text.corpus_bleu(rows, references).value()
    assert score == pytest.approx(100) or score == 0  # 0: nothing of four tokens
    backwards = text.corpus_bleu(rows[::-1], references).value()
    forwards = text.corpus_bleu(rows, references[::-1]).value()
    assert backwards == pytest.approx(forwards)
    assert 0 <= (backwards or 0) <= 100


def test_bleu_interval_resamples_the_corpus() -> None:
    rng = np.random.default_rng(0)
    words = np.array(["the", "a", "cat", "dog", "sat", "on", "mat", "red", "big"])
    references = [" ".join(rng.choice(words, 12)) for _ in range(40)]
    predictions = [
        " ".join(rng.permutation(r.split()[:10])) if i % 3 else r for i, r in enumerate(references)
    ]
    found = text.corpus_bleu(predictions, [[r] for r in references])
    low, high = found.interval() or (0.0, 0.0)
    theirs = BLEU(force=True).corpus_score(predictions, [references], n_bootstrap=1000)
    assert low < (found.value() or 0) < high
    assert (high - low) / 2 == pytest.approx(theirs._ci, rel=0.15)
