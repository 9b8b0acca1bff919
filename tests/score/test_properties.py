"""Laws that scores must keep whatever the input: bounds, symmetries, scale, monotonicity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.score import hygiene, labels, overlap, text
from bench.score.components import components
from bench.score.convergence import Goal, Point, time_to_target
from bench.score.cost import job_cost, rental
from bench.score.energy import used_j
from bench.score.mfu import flops_per_token
from bench.score.resample import Sums, mean_of
from bench.score.significance import Question, by_cluster, compare
from bench.score.speed import epoch_s, ratio
from bench.score.spread import spread
from bench.score.throughput import throughput
from bench.score.verdicts import holm, judge
from bench.spec import MethodSpec, ModelSpec, Price
from bench.suite import load_spec

from .made import LABELS, quickly, step
from .test_energy import sample
from .test_hygiene import DATA, row, splits
from .test_mfu import SUITES
from .test_significance import random_pair, side
from .test_spread import gain

WORDS = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "red", "mat"]), max_size=12)
SPACED = st.text("aBé \n\t", max_size=6)
SENTENCES = st.lists(WORDS.map(" ".join), min_size=1, max_size=6)
SCORES = st.lists(st.floats(0, 1, width=16), min_size=2, max_size=30)
GUESSES = st.lists(
    st.tuples(st.one_of(st.none(), st.sampled_from(LABELS)), st.sampled_from(LABELS)),
    min_size=1,
    max_size=15,
)
# Tests that take some 50 ms each
seldom = settings(quickly, max_examples=max(5, settings().max_examples // 5))


def evaluated(number: int, loss: float) -> Point:
    """An evaluation at step `number`, after 10 training seconds and 1000 tokens a step."""
    return Point(train_s=10.0 * number, step=number, tokens=1000 * number, value=loss)


# ---------------------------------------------------------------- text


@quickly
@given(SENTENCES, st.integers(1, 4))
def test_bleu_of_a_corpus_twice_is_bleu_of_the_corpus(true: list[str], cut: int) -> None:
    """Where every order has a match: what stands in for none doesn't grow with the corpus."""
    true = [f"{sentence} and that is all of it" for sentence in true]
    said, references = [t.rsplit(" ", cut)[0] + " no" for t in true], [[t] for t in true]
    once = text.corpus_bleu(said, references)
    assume(once.rows.sum(axis=0)[2:6].all())
    assert text.corpus_bleu(said * 2, references * 2).value() == pytest.approx(once.value())


@quickly
@given(SENTENCES, st.lists(WORDS.map(" ".join), min_size=2, max_size=3), st.randoms())
def test_the_order_of_references_does_not_matter(
    said: list[str], options: list[str], random: Any
) -> None:
    other = random.sample(options, len(options))
    one, two = ([list(refs) for _ in said] for refs in (options, other))
    assert text.corpus_bleu(said, one).value() == text.corpus_bleu(said, two).value()
    for function in (text.rouge_l, text.rouge_lsum, text.exact_match):
        assert function(said[0], options) == pytest.approx(function(said[0], other))


@quickly
@given(WORDS.map(" ".join), WORDS.map(" ".join))
def test_rouge_takes_no_notice_of_case_and_punctuation(said: str, true: str) -> None:
    dressed = f"«{said.upper()}»!"
    assert text.rouge_l(dressed, [true]) == text.rouge_l(said, [true])
    assert text.rouge_lsum(said, [true]) == pytest.approx(text.rouge_l(said, [true]))  # one line
    assert text.exact_match(said, [true]) <= text.rouge_l(said, [true]) or not said.strip()


# ---------------------------------------------------------------- labels and entities


@quickly
@given(GUESSES, st.permutations(LABELS))
def test_names_of_labels_do_not_matter(rows: list[Any], order: list[str]) -> None:
    renamed = dict(zip(LABELS, order, strict=True)) | {None: None}
    said, true = ([r[i] for r in rows] for i in (0, 1))
    one = labels.label_scores(said, true, LABELS)
    two = labels.label_scores([renamed[s] for s in said], [renamed[t] for t in true], LABELS)
    for name in ("macro_f1", "micro_f1", "accuracy", "invalid_rate"):
        assert two[name] == pytest.approx(one[name])  # type: ignore[literal-required]


@quickly
@given(GUESSES)
def test_micro_f1_is_accuracy_where_every_answer_counts(rows: list[Any]) -> None:
    said, true = ([r[i] for r in rows] for i in (0, 1))
    found = labels.label_scores(said, true, LABELS)
    micro, accuracy = found["micro_f1"], found["accuracy"]
    assert micro is not None and accuracy is not None and micro >= accuracy
    if None not in said:
        assert micro == pytest.approx(accuracy)
    perfect = labels.label_scores(true, true, LABELS)
    assert perfect["macro_f1"] == perfect["micro_f1"] == perfect["accuracy"] == 1


@quickly
@given(GUESSES)
def test_intervals_of_labels_stay_within_bounds(rows: list[Any]) -> None:
    counts = labels.label_counts([r[0] for r in rows], [r[1] for r in rows], LABELS)
    for interval in labels.class_intervals(counts):
        assert interval is None or 0 <= interval[0] <= interval[1] <= 1


ENTITIES = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["1", "2", "1 2"])), max_size=3),
    min_size=1,
    max_size=5,
)


@quickly
@given(ENTITIES)
def test_what_is_made_up_never_helps_and_what_is_found_never_hurts(true: list[Any]) -> None:
    assume(any(true))
    for counts in (labels.entity_counts, labels.entity_partial_counts):
        said: list[list[tuple[str, str]]] = [[] for _ in true]
        last = Sums(counts(said, true), labels.entity_f1_of_sums).value()
        assert last == 0
        for number, wanted in enumerate(true):
            said = [*true[: number + 1], *([] for _ in true[number + 1 :])]
            found = Sums(counts(said, true), labels.entity_f1_of_sums).value()
            assert found is not None and last is not None and found >= last - 1e-9
            last = found
            worse = Sums(
                counts([*said[:-1], [*said[-1], ("z", "9")]], true), labels.entity_f1_of_sums
            )
            assert (worse.value() or 0) < found or not wanted
        assert last == 1


# ---------------------------------------------------------------- intervals


@quickly
@given(SCORES, st.floats(0.5, 4), st.floats(-3, 3))
def test_a_means_interval_holds_it_and_moves_with_it(
    scores: list[float], factor: float, shift: float
) -> None:
    assume(len(set(scores)) > 1)
    plain, moved = mean_of(scores), mean_of([factor * s + shift for s in scores])
    low, high = plain.interval() or (0.0, 0.0)
    value = plain.value()
    assert value is not None and min(scores) - 1e-9 <= low <= high <= max(scores) + 1e-9
    assert low - 1e-9 <= value <= high + 1e-9
    assert moved.value() == pytest.approx(factor * value + shift, abs=1e-9)  # of ten decimals
    wanted = (factor * low + shift, factor * high + shift)
    assert moved.interval() == pytest.approx(wanted, abs=1e-9)


@quickly
@given(SCORES, st.data())
def test_clusters_keep_the_sum(scores: list[float], data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from("abc"), min_size=len(scores), max_size=len(scores)))
    sums = mean_of(scores)
    assert by_cluster(sums, names).value() == pytest.approx(sums.value())
    assert len(by_cluster(sums, names).rows) == len(set(names))


# ---------------------------------------------------------------- tests and verdicts


@seldom
@given(st.integers(0, 10**6), st.floats(-0.1, 0.1))
def test_a_difference_lies_in_its_interval_and_a_margin_only_adds(seed: int, shift: float) -> None:
    a, b = random_pair(30, seed, shift)
    found = compare(side(a), side(b), Question(margin=0.05))
    wider = compare(side(a), side(b), Question(margin=0.5))
    assert found and wider and found.low is not None and found.high is not None
    assert found.low <= found.value <= found.high
    assert found.p is not None and 0 < found.p <= 1
    assert found.p_equivalent is not None and wider.p_equivalent is not None
    assert wider.p_equivalent <= found.p_equivalent
    assert (found.rows_needed or 0) >= (wider.rows_needed or 0)
    assert (wider.value, wider.low, wider.p) == (found.value, found.low, found.p)


@seldom
@given(st.integers(0, 10**6), st.permutations(range(30)))
def test_the_order_of_rows_moves_a_difference_by_resampling_noise_alone(
    seed: int, order: list[int]
) -> None:
    a, b = random_pair(30, seed, 0.05)
    one, two = compare(side(a), side(b)), compare(side(a[order]), side(b[order]))
    assert one and two and one.p is not None and two.p is not None
    assert two.value == pytest.approx(one.value)
    assert two.se_rows == pytest.approx(one.se_rows, rel=0.1)
    assert two.p == pytest.approx(one.p, abs=0.03)


@seldom
@given(st.integers(0, 10**6))
def test_better_one_way_is_worse_the_other_way(seed: int) -> None:
    a, b = random_pair(40, seed, 0.05)
    one, two = compare(side(a), side(b)), compare(side(b), side(a))
    assert one and two
    opposite = {"better": "worse", "worse": "better"}
    (first,), (second,) = judge([one]), judge([two])
    assert second.outcome == opposite.get(first.outcome, first.outcome)


P_VALUES = st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=8)


@quickly
@given(P_VALUES, st.integers(0, 20), st.randoms())
def test_holm_only_raises_and_keeps_the_order(
    p_values: list[float | None], family: int, random: Any
) -> None:
    corrected = holm(p_values, family)
    known = [(p, q) for p, q in zip(p_values, corrected, strict=True) if p is not None]
    assert [q is None for q in corrected] == [p is None for p in p_values]
    count = max(len(known), family)
    for p, q in known:
        assert q is not None and p - 1e-9 <= q <= min(1.0, count * p) + 1e-9
    ordered = [q for _, q in sorted(known)]
    assert ordered == sorted(ordered)  # type: ignore[type-var]
    places = random.sample(range(len(p_values)), len(p_values))
    assert holm([p_values[i] for i in places], family) == [corrected[i] for i in places]


# ---------------------------------------------------------------- seeds and groups


@quickly
@given(
    st.integers(2, 4).flatmap(
        lambda n: st.lists(
            st.lists(st.floats(0, 1, width=16), min_size=n, max_size=n), min_size=2, max_size=4
        )
    ),
    st.floats(0.5, 3),
)
def test_components_scale_with_the_square_and_take_no_notice_of_a_shift(
    table: list[list[float]], factor: float
) -> None:
    one = components([mean_of(line) for line in table])
    two = components([mean_of([factor * x + 1 for x in line]) for line in table])
    assert one and two
    for name in ("rows", "seeds", "rest"):
        first, second = getattr(one, name), getattr(two, name)
        assert first >= 0 and second == pytest.approx(factor**2 * first, abs=1e-6)


@seldom
@given(st.lists(st.floats(-0.3, 0.3), min_size=2, max_size=5), st.floats(-1, 1))
def test_spread_is_between_the_extremes_and_takes_no_notice_of_a_shift(
    means: list[float], shift: float
) -> None:
    gains = {str(g): gain(mean, 20, g) for g, mean in enumerate(means)}
    moved = {g: d.model_copy(update={"value": d.value + shift}) for g, d in gains.items()}
    one, two = spread(gains), spread(moved)
    values = {g: d.value for g, d in gains.items()}
    assert one and two and one.gap == pytest.approx(max(values.values()) - min(values.values()))
    assert values[one.lowest] == min(values.values())
    assert two.gap == pytest.approx(one.gap) and two.p_alike == pytest.approx(one.p_alike)


# ---------------------------------------------------------------- time and money

SECONDS = st.lists(st.floats(0.1, 10), min_size=3, max_size=15)


@quickly
@given(SECONDS, st.floats(0.5, 4), st.integers(1, 8))
def test_twice_the_time_is_half_the_speed(
    seconds: list[float], factor: float, devices: int
) -> None:
    steps = [step(i, s) for i, s in enumerate(seconds)]
    slower = [step(i, s * factor) for i, s in enumerate(seconds)]
    one, two = throughput(steps, devices=devices), throughput(slower, devices=devices)
    assert one.tokens_per_s and two.tokens_per_s and one.low and one.high and two.low
    assert two.tokens_per_s == pytest.approx(one.tokens_per_s / factor)
    assert two.low == pytest.approx(one.low / factor)
    assert one.low <= one.tokens_per_s <= one.high
    assert one.tokens_per_s_per_device == pytest.approx(one.tokens_per_s / devices)
    assert one.padding_share == two.padding_share and two.spread == pytest.approx(one.spread)


@quickly
@given(SECONDS, st.integers(1, 10_000))
def test_an_epoch_grows_with_its_rows(seconds: list[float], rows: int) -> None:
    steps = [step(i, s) for i, s in enumerate(seconds)]
    one, two = epoch_s(steps, rows), epoch_s(steps, 3 * rows)
    assert one and two and one.low and one.high and two.value == pytest.approx(3 * one.value)
    assert one.low - 1e-6 <= one.value <= one.high + 1e-6 or len(set(seconds)) > 1


@quickly
@given(SECONDS, SECONDS)
def test_a_ratio_turned_round_is_its_inverse(one: list[float], two: list[float]) -> None:
    forwards = ratio([np.array(one)], [np.array(two)])
    backwards = ratio([np.array(two)], [np.array(one)])
    assert forwards and backwards
    assert forwards.value * backwards.value == pytest.approx(1, rel=1e-6)
    itself = ratio([np.array(one)], [np.array(one)])
    assert itself and itself.low is not None and itself.high is not None
    assert itself.value == 1 and itself.low <= 1 <= itself.high


@quickly
@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=10), st.floats(0.1, 9), st.floats(0, 3))
def test_a_harder_target_is_never_met_earlier(
    losses: list[float], loss: float, easier: float
) -> None:
    points = [evaluated(i, value) for i, value in enumerate(losses)]
    hard = time_to_target(points, Goal(value=loss))
    easy = time_to_target(points, Goal(value=loss + easier)).reached
    assert hard.reached is None or (easy is not None and easy.train_s <= hard.reached.train_s)
    longer = time_to_target([*points, evaluated(99, 0.01)], Goal(value=loss)).reached
    assert longer is not None and (hard.reached is None or longer == hard.reached)
    if hard.reached and hard.missed and hard.interpolated:
        assert hard.missed.train_s <= hard.interpolated.train_s <= hard.reached.train_s


@quickly
@given(
    st.dictionaries(st.sampled_from(["train", "generate"]), st.floats(0, 1e5), min_size=1),
    st.integers(1, 8), st.integers(1, 4), st.floats(0, 10), st.floats(1, 3),
)  # fmt: skip
def test_a_bill_adds_up(
    wall: dict[str, float], devices: int, nodes: int, usd: float, factor: float
) -> None:
    price = Price(
        usd_per_device_hour=usd, low_usd=usd / factor, high_usd=usd * factor,
        provider="x", date="x", source="x",
    )  # fmt: skip
    whole = job_cost(wall, price, devices=devices, nodes=nodes)
    parts = [rental(s, price, devices=devices, nodes=nodes).usd for s in wall.values()]
    assert whole.job.usd == pytest.approx(sum(parts))
    assert whole.job.low_usd <= whole.job.usd + 1e-9 and whole.job.usd <= whole.job.high_usd + 1e-9
    assert whole.job.usd == pytest.approx(whole.device_hours * usd)


# ---------------------------------------------------------------- data


@seldom
@given(st.permutations(range(40)), st.integers(0, 5))
def test_hygiene_counts_what_was_put_in_whatever_the_order(order: list[int], copies: int) -> None:
    made = splits()
    test = [made["test"][i] for i in order] + [row(n) for n in range(copies)]
    found = hygiene.inspect(DATA, {**made, "test": test})
    assert found.duplicates == copies and found.near_duplicates == found.contradicted == 0
    for lengths in found.splits["test"].lengths.values():
        assert sum(lengths.bins) == len(test)
        assert lengths.minimum <= lengths.median <= lengths.p95 <= lengths.maximum
    assert sum(found.splits["test"].labels["kind"].values()) == len(test)


@quickly
@given(st.text(max_size=30), st.text(max_size=30))
def test_similarity_is_symmetric_and_full_with_itself(one: str, two: str) -> None:
    left, right = overlap.shingles(one), overlap.shingles(two)
    assert overlap.jaccard(left, right) == overlap.jaccard(right, left)
    assert overlap.jaccard(left, left) == 1
    assert 0 <= overlap.jaccard(left, right) <= 1


# ---------------------------------------------------------------- energy, arithmetic, rates


@quickly
@given(st.floats(1, 1000), st.floats(0, 1), st.floats(0, 1))
def test_energy_of_two_stretches_is_that_of_both(watts: float, first: float, second: float) -> None:
    """100 samples a second apart; whatever the stretch, watts × seconds."""
    samples = [sample(100.0 + s, watts * s) for s in range(101)]
    start, middle, end = (100 + 100 * share for share in sorted([0.0, first * second, first]))
    parts = [used_j(samples, start, middle), used_j(samples, middle, end)]
    assert all(part is not None for part in parts)
    whole = used_j(samples, start, end)
    assert whole == pytest.approx(sum(part or 0 for part in parts), abs=1e-6)
    assert whole == pytest.approx(watts * (end - start), abs=1e-6)


@quickly
@given(st.integers(0, 10**8), st.integers(0, 10**8), st.floats(1, 8192))
def test_more_trained_weights_never_need_less_arithmetic(one: int, two: int, tokens: float) -> None:
    llama = load_spec(ModelSpec, SUITES / "models" / "llama-2-7b.yaml")
    full, lora = (load_spec(MethodSpec, SUITES / "methods" / f"{m}.yaml") for m in ("full", "lora"))
    few, many = (flops_per_token(llama, lora, tokens, size) for size in sorted((one, two)))
    whole = flops_per_token(llama, full, tokens)
    assert few is not None and many is not None and whole is not None
    assert few <= many < whole
    assert flops_per_token(llama, lora, tokens + 1, min(one, two)) > few


@quickly
@given(st.lists(st.one_of(st.none(), st.sampled_from(LABELS)), min_size=1, max_size=30))
def test_what_has_no_label_is_counted_and_wrong(said: list[str | None]) -> None:
    true = [label or LABELS[0] for label in said]
    share = labels.invalid_rate(said)
    assert share == pytest.approx(said.count(None) / len(said))
    assert labels.accuracy(said, true).value() == pytest.approx(1 - share)


@quickly
@given(SPACED, st.lists(SPACED, min_size=1, max_size=4))
def test_an_exact_match_is_one_of_the_references(said: str, true: list[str]) -> None:
    same = any(" ".join(said.split()) == " ".join(one.split()) for one in true)
    assert text.exact_match(said, true) == float(same)
    assert text.exact_match(said, [*true, said]) == 1.0
