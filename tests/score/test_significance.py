"""Paired tests against scipy's, on corpora too, and their error rates in small simulations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bench.score import significance
from bench.score.labels import label_counts, macro_f1_of_sums
from bench.score.resample import Sums, mean_of
from bench.score.significance import (
    ALPHA,
    Question,
    Side,
    compare,
    randomisation,
    rows_needed,
)
from bench.score.text import corpus_bleu
from bench.score.verdicts import judge

from .made import quickly

scores = st.lists(
    st.tuples(st.floats(0, 1, width=16), st.floats(0, 1, width=16)), min_size=2, max_size=12
)


def side(values: object, *more: object, seeded: bool = True) -> Side:
    return Side(tuple(mean_of(list(v)) for v in (values, *more)), seeded)  # type: ignore[call-overload]


def random_pair(n: int, seed: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Scores that share the rows' difficulty."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(0.5, 0.2, n)
    return hard + rng.normal(shift, 0.1, n), hard + rng.normal(0, 0.1, n)


# ---------------------------------------------------------------- against scipy


@quickly
@given(scores)
def test_exact_randomisation_is_scipys(pairs: list[tuple[float, float]]) -> None:
    a, b = np.array(pairs).T
    expected = stats.permutation_test(
        (a, b), lambda x, y, axis: x.mean(axis) - y.mean(axis), permutation_type="samples",
        vectorized=True, n_resamples=np.inf,
    )  # fmt: skip
    assert randomisation(side(a), side(b)) == pytest.approx(expected.pvalue, abs=1e-9)


def test_sampled_randomisation_is_near_scipys_t_test() -> None:
    a, b = random_pair(200, 1, shift=0.02)
    found = compare(side(a), side(b))
    assert found and found.p is not None
    # 9,999 rounds know a p near one half to ±0.005 (one standard error)
    assert found.p == pytest.approx(stats.ttest_rel(a, b).pvalue, abs=0.015)


def test_interval_is_scipys_paired_bootstrap() -> None:
    a, b = random_pair(150, 2, shift=0.03)
    found = compare(side(a), side(b))
    expected = stats.bootstrap(
        (a, b), lambda x, y, axis: x.mean(axis) - y.mean(axis), paired=True, method="percentile",
        n_resamples=9999, rng=np.random.default_rng(0),
    )  # fmt: skip
    assert found and found.low is not None and found.high is not None
    width = expected.confidence_interval.high - expected.confidence_interval.low
    assert found.low == pytest.approx(expected.confidence_interval.low, abs=0.05 * width)
    assert found.high == pytest.approx(expected.confidence_interval.high, abs=0.05 * width)
    assert found.se_rows == pytest.approx(expected.standard_error, rel=0.08)


def test_equivalence_is_two_one_sided_t_tests() -> None:
    a, b = random_pair(400, 3)
    found = compare(side(a), side(b), Question(margin=0.03))
    upper = stats.ttest_rel(a, b + 0.03, alternative="less").pvalue
    lower = stats.ttest_rel(a, b - 0.03, alternative="greater").pvalue
    assert found and found.p_equivalent == pytest.approx(max(upper, lower), abs=2e-3)


# ---------------------------------------------------------------- corpus metrics


def labels_pair(n: int, seed: int) -> tuple[Sums, Sums]:
    rng = np.random.default_rng(seed)
    names = ("a", "b", "c")
    true = [names[i] for i in rng.integers(0, 3, n)]
    guesses = []
    for share in (0.8, 0.6):
        right = rng.random(n) < share
        guesses.append([t if ok else names[0] for t, ok in zip(true, right, strict=True)])
    one, two = (Sums(label_counts(g, true, names), macro_f1_of_sums) for g in guesses)
    return one, two


def test_f1_is_resampled_as_a_corpus() -> None:
    """Redone by hand: the same draws, F1 of each sample's own confusion counts."""
    a, b = labels_pair(120, 4)
    found = compare(Side((a,)), Side((b,)))
    rng = np.random.default_rng(0)
    replicates = []
    for _ in range(2000):
        rows = rng.integers(0, 120, 120)
        replicates.append((a.value(rows.tolist()) or 0) - (b.value(rows.tolist()) or 0))
    low, high = np.percentile(replicates, [2.5, 97.5])
    assert found and found.low is not None and found.high is not None
    assert found.value == pytest.approx((a.value() or 0) - (b.value() or 0))
    assert found.low == pytest.approx(low, abs=0.02)
    assert found.high == pytest.approx(high, abs=0.02)
    assert found.p is not None and found.p < 0.05


def test_bleu_randomisation_is_scipys_on_the_corpus() -> None:
    rng = np.random.default_rng(5)
    words = np.array(["we", "will", "look", "at", "your", "order", "and", "call", "back", "soon"])
    references = [" ".join(rng.choice(words, 8)) for _ in range(9)]
    a = [" ".join(r.split()[: rng.integers(5, 9)]) for r in references]
    b = [" ".join(r.split()[: rng.integers(4, 8)]) for r in references]
    one, two = (corpus_bleu(x, [[r] for r in references]) for x in (a, b))
    pairs = np.arange(9)

    def statistic(x: np.ndarray, y: np.ndarray) -> float:
        total = np.concatenate([one.rows, two.rows])
        left, right = total[x.astype(int)].sum(0), total[y.astype(int)].sum(0)
        return float(one.finish(left) - one.finish(right))

    expected = stats.permutation_test(
        (pairs, pairs + 9), statistic, permutation_type="samples", n_resamples=np.inf,
        vectorized=False,
    )  # fmt: skip
    assert randomisation(Side((one,)), Side((two,))) == pytest.approx(expected.pvalue, abs=1e-9)


# ---------------------------------------------------------------- properties


@quickly
@given(scores)
def test_swapping_the_sides_mirrors_everything(pairs: list[tuple[float, float]]) -> None:
    a, b = (side(column) for column in np.array(pairs).T)
    question = Question(margin=0.05)
    one, two = compare(a, b, question), compare(b, a, question)
    assert one and two and one.low is not None and two.high is not None
    assert one.value == pytest.approx(-two.value)
    assert one.low == pytest.approx(-two.high, abs=1e-9)
    assert one.p == pytest.approx(two.p)
    assert one.p_equivalent == pytest.approx(two.p_equivalent)
    assert one.rows_needed == two.rows_needed


def test_same_input_same_bytes() -> None:
    a, b = random_pair(50, 6)
    first, again = (compare(side(a), side(b), Question(margin=0.1)) for _ in range(2))
    assert first and again and first.model_dump_json() == again.model_dump_json()


def test_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="not the same rows: 3 against 2"):
        compare(side([1, 0, 1]), side([1, 0]))


# ---------------------------------------------------------------- what must not be concluded


def test_identical_answers_on_few_rows_prove_nothing() -> None:
    """A bootstrap would give the interval 0 to 0, and a TOST "as good as", from five rows."""
    alike = [1.0, 0.0, 1.0, 1.0, 0.0]
    found = compare(side(alike), side(alike), Question(margin=0.02))
    assert found and found.p == 1.0 and found.differing == 0
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 5))
    assert judge([found])[0].words == "not resolved"
    assert found.rows_needed == 149  # ln 0.05 / ln 0.98, rounded up
    enough = compare(side(alike * 30), side(alike * 30), Question(margin=0.02))
    assert enough and judge([enough])[0].words == "no difference larger than 0.02"


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(("right", "wrong"), [(1.0, 0.0), (0.7, 0.1)])
def test_a_difference_without_noise_is_not_known_for_sure(
    seeds: int, right: float, wrong: float
) -> None:
    """A is better by as much on each row of each seed: rows that weren't seen may be otherwise."""
    a, b = (side(*[np.full(20, value)] * seeds) for value in (right, wrong))
    found = compare(a, b, Question(margin=0.1))
    assert found and found.low is not None and found.high is not None
    unseen = 1 - 0.025 ** (1 / 20)
    assert found.low == pytest.approx(found.value - unseen)
    assert found.high == pytest.approx(min(1.0, found.value + unseen))
    assert found.p is not None and found.p < 0.001
    assert found.p_equivalent is not None and found.p_equivalent > 0.9


def test_a_single_cluster_tells_nothing() -> None:
    a, b = side(np.arange(8) / 8), side(np.arange(8) / 16)
    found = compare(a, b, Question(margin=0.1, clusters=("one",) * 8))
    assert found and found.units == 1 and found.value == pytest.approx(0.21875)
    known = (found.low, found.high, found.p, found.p_equivalent, found.se_rows, found.rows_needed)
    assert known == (None,) * 6


def test_without_a_margin_nothing_is_called_equal() -> None:
    alike = [1.0, 0.0] * 500
    found = compare(side(alike), side(alike))
    assert found and found.p_equivalent is None and found.rows_needed is None
    assert judge([found])[0].words == "not resolved"
    assert found.rows_needed_reason == "the suite sets no margin"


# ---------------------------------------------------------------- clusters and seeds


def test_clusters_widen_what_their_rows_repeat() -> None:
    """Ten copies of each row carry the information of one."""
    a, b = random_pair(30, 10, shift=0.03)
    alone = compare(side(a), side(b))
    copies = [side(np.repeat(column, 10)) for column in (a, b)]
    naive = compare(*copies)
    honest = compare(*copies, Question(clusters=tuple(np.repeat(np.arange(30), 10).tolist())))
    assert alone and naive and honest and honest.se_rows and alone.se_rows and naive.se_rows
    assert honest.se_rows == pytest.approx(alone.se_rows)
    assert honest.p == pytest.approx(alone.p)
    assert naive.se_rows < 0.4 * honest.se_rows
    assert (honest.n, honest.units) == (300, 30)


def test_one_seed_speaks_for_its_rows_only() -> None:
    a, b = random_pair(50, 11)
    one = compare(side(a), side(b))
    several = compare(side(a, a + 0.2, a - 0.2), side(b, b, b))
    assert one and several
    assert one.scope == "rows" and one.se_seeds is None
    assert several.scope == "rows and seeds"
    assert several.se_seeds == pytest.approx(0.2 / 3**0.5)


def test_seed_noise_can_undo_what_rows_show() -> None:
    """Sure on these rows with these runs; with other seeds it may turn round."""
    rng = np.random.default_rng(12)
    a, b = random_pair(2000, 12)
    runs = [a + shift + rng.normal(0, 0.02, 2000) for shift in (0.0, 0.06, 0.03)]
    found = compare(side(*runs), side(b, seeded=False), Question(margin=0.01))
    assert found and found.p is not None and found.p_rows is not None
    assert found.p_rows < 0.001
    assert found.p > ALPHA
    assert found.low is not None and found.low < 0
    assert found.rows_needed is None and "more seeds" in (found.rows_needed_reason or "")


def test_seedless_sides_need_no_seeds() -> None:
    a, b = random_pair(50, 13)
    found = compare(side(a, seeded=False), side(b, seeded=False))
    assert found and found.scope == "rows"


# ---------------------------------------------------------------- error rates


def test_false_alarms_and_coverage(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 experiments without a difference: a few per cent of false alarms, intervals that cover.

    Binomial bounds, 200 at 5 %: beyond 20 the rate isn't 5 % (p < 0.002)."""
    monkeypatch.setattr(significance, "ROUNDS", 499)
    monkeypatch.setattr(significance, "RESAMPLES", 500)
    alarms = missed = equivalent = 0
    for seed in range(200):
        a, b = random_pair(40, 1000 + seed)
        found = compare(side(a), side(b), Question(margin=0.02, scale=0.1))
        assert found and found.p is not None and found.low is not None and found.high is not None
        alarms += found.p < ALPHA
        missed += not found.low <= 0 <= found.high
        shifted = compare(side(a + 0.02), side(b), Question(margin=0.02, scale=0.1))
        assert shifted and shifted.p_equivalent is not None
        equivalent += shifted.p_equivalent < ALPHA  # the truth lies on the margin: 5 % at most
    assert 1 <= alarms <= 20
    assert 1 <= missed <= 24  # percentile intervals of 40 rows are a little narrow
    assert equivalent <= 20


def test_the_promised_rows_give_the_promised_power(monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question(margin=0.02, scale=0.1)
    pilot = compare(*(side(x) for x in random_pair(2000, 77)), question)
    assert pilot and pilot.rows_needed
    sigma2, factor = 2 * 0.1**2, (1.6449 + 1.2816) ** 2
    # The variance of 2,000 rows, by 2,000 resamples: ±4.5 % (one standard error)
    assert pilot.rows_needed == pytest.approx(factor * sigma2 / 0.02**2, rel=0.14)
    monkeypatch.setattr(significance, "ROUNDS", 199)
    monkeypatch.setattr(significance, "RESAMPLES", 500)
    shown = 0
    for seed in range(60):
        found = compare(*(side(x) for x in random_pair(pilot.rows_needed, seed)), question)
        shown += bool(found and found.p_equivalent is not None and found.p_equivalent < ALPHA)
    assert 38 <= shown <= 57  # 60 at 80 %: outside with probability below 0.5 %


def test_rows_needed_scales_with_clusters() -> None:
    noise = significance.Noise(rows=0.01, seeds=None, df=9, units=10, differing=10)
    one, _ = rows_needed(noise, 10, Question(margin=0.1))
    ten, _ = rows_needed(noise, 100, Question(margin=0.1))
    assert one == 86 and ten == 857
