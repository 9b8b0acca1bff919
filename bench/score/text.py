"""Free text: ROUGE-L, ROUGE-Lsum, corpus BLEU and exact match.

rouge_score drops every non-ASCII character and sacrebleu wants references transposed; both fail
without a word, so both are wrapped here once.  A row may have several references.

    python -m pytest tests/score/test_text.py
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, cast

import numpy as np

from bench.score.resample import FloatArray, Sums, mean_of

# Scripts written without spaces between words: Thai, Lao, Myanmar, Khmer, kana, Han.
SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
_SPACELESS = re.compile(f"[{SPACELESS}]")
_ASCII_WORD = re.compile("[a-z0-9]+")


# ---------------------------------------------------------------- ROUGE


def tokenize(text: str) -> list[str]:
    """Lower-case words; in scripts without spaces each character (with its marks) is a token.

    On ASCII exactly rouge_score's default without stemmer.  Decided per character, not by the
    dataset's language: a Chinese answer holds Latin product names, and language tags are wrong.
    """
    text = text.lower()
    if text.isascii():
        return _ASCII_WORD.findall(text)
    tokens: list[str] = []
    before = ""  # what the last character was: a "word" letter, a "lone" one, or neither
    for char in unicodedata.normalize("NFC", text):
        kind = unicodedata.category(char)
        if kind == "Cf":  # joiners and soft hyphens are invisible inside words
            continue
        if kind[0] not in "LNM" or (kind[0] == "M" and not before):
            before = ""
        elif kind[0] == "M":  # vowel signs and accents belong to the letter before
            tokens[-1] += char
        elif _SPACELESS.match(char):
            tokens.append(char)
            before = "lone"
        elif before == "word":
            tokens[-1] += char
        else:
            tokens.append(char)
            before = "word"
    return tokens


def common_subsequence_length(left: Sequence[str], right: Sequence[str]) -> int:
    """Length of the longest common subsequence.

    Bit-parallel (Hyyrö 2004) on Python integers: one pass over `right`.  rouge_score fills an
    n × m table in Python, which made a report over long answers take minutes.
    """
    positions: dict[str, int] = {}
    for index, token in enumerate(left):
        positions[token] = positions.get(token, 0) | 1 << index
    everything = (1 << len(left)) - 1
    unmatched = everything
    for token in right:
        hits = unmatched & positions.get(token, 0)
        unmatched = (unmatched + hits | unmatched - hits) & everything
    return len(left) - unmatched.bit_count()


def rouge_l(prediction: str, references: Sequence[str]) -> float:
    """ROUGE-L F1 (Lin 2004), 0..1; the best over references.  Text without letters scores 0."""
    answer = tokenize(prediction)
    return max(_rouge_l(answer, tokenize(reference)) for reference in references)


def _rouge_l(prediction: list[str], reference: list[str]) -> float:
    common = common_subsequence_length(prediction, reference)
    return 2 * common / (len(prediction) + len(reference)) if common else 0.0


def rouge_lsum(prediction: str, references: Sequence[str]) -> float:
    """Summary-level ROUGE-L F1 (Lin 2004, section 3.2), 0..1; the best over references.

    Sentences are lines, as in rouge_score: between one-line texts it is ROUGE-L.
    """
    if "\n" not in prediction and not any("\n" in reference for reference in references):
        return rouge_l(prediction, references)
    scores = _rouge_scorer().score_multi(list(references), prediction)
    return float(scores["rougeLsum"].fmeasure)


class _Tokenizer:
    def tokenize(self, text: str) -> list[str]:
        return tokenize(text)


@lru_cache(maxsize=1)
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeLsum"], tokenizer=_Tokenizer())


# ---------------------------------------------------------------- exact match


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if the prediction is one of the references, else 0.  Only whitespace is forgiven."""
    answer = _plain_spaces(prediction)
    return float(any(answer == _plain_spaces(reference) for reference in references))


def _plain_spaces(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def mean_over_rows(
    function: Callable[[str, Sequence[str]], float],
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    signature: str,
) -> Sums:
    """A per-example metric over rows."""
    pairs = zip(predictions, references, strict=True)
    return mean_of([function(prediction, options) for prediction, options in pairs], signature)


# ---------------------------------------------------------------- BLEU


def bleu_tokenizer(language: str) -> str:
    """sacrebleu's tokenizer for a language code.

    13a splits at spaces, so that a Thai or Japanese sentence would be one token.  ja-mecab needs
    two more packages; the metric's signature says which of the two gave the number.
    """
    code = re.split("[-_]", language.lower())[0]
    if code in ("zh", "yue", "wuu", "cmn"):
        return "zh"
    if code == "ja":
        return "ja-mecab" if find_spec("MeCab") and find_spec("ipadic") else "char"
    return "char" if code in ("th", "lo", "km", "my") else "13a"


def corpus_bleu(
    predictions: Sequence[str], references: Sequence[Sequence[str]], language: str = "en"
) -> Sums:
    """Corpus BLEU, 0..100 (Papineni 2002; Post 2018 for the signature).

    `references` are given per row, any number each; empty predictions stay in the corpus.
    Known limit, sacrebleu's own: a corpus of answers under four tokens scores 0.
    """
    from sacrebleu.metrics.bleu import BLEU

    tokenizer = bleu_tokenizer(language)
    corpus = BLEU(tokenize=tokenizer, force=True)
    corpus.corpus_score(list(predictions), transposed(references))
    # effective_order only silences a warning: it doesn't change the counts that we take.
    sentence = BLEU(tokenize=tokenizer, force=True, effective_order=True)
    rows = []
    for prediction, options in zip(predictions, references, strict=True):
        found = sentence.sentence_score(prediction, list(options))
        rows.append([found.sys_len, found.ref_len, *found.counts, *found.totals])
    counts = np.asarray(rows, dtype=np.float64)
    return Sums(counts, bleu_of_sums, str(corpus.get_signature()), scale=100.0)


def transposed(references: Sequence[Sequence[str]]) -> list[list[str]]:
    """References per row → sacrebleu's shape: the first reference of every row, the second, …

    None fills up rows with fewer references: sacrebleu documents it, its annotation forgets it.
    """
    most = max(len(options) for options in references)
    shape = [
        [options[index] if index < len(options) else None for options in references]
        for index in range(most)
    ]
    return cast("list[list[str]]", shape)


def bleu_of_sums(sums: FloatArray) -> FloatArray:
    """BLEU from summed (length, reference length, matches × 4, n-grams × 4), over any shape.

    sacrebleu's compute_bleu with exponential smoothing: the k-th order without a match counts as
    1 / 2^k matches; no match at all, or an order without n-grams, is 0.
    """
    length, reference_length = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2:6], sums[..., 6:10]
    smoothed = np.where(matches > 0, matches, 0.5 ** np.cumsum(matches == 0, axis=-1))
    logs = np.log(smoothed / np.maximum(totals, 1)).mean(axis=-1)
    brevity = np.minimum(0, 1 - reference_length / np.maximum(length, 1))
    score = 100 * np.exp(brevity + logs)
    possible = matches.any(axis=-1) & totals.all(axis=-1)
    return np.where(possible, score, 0.0)
