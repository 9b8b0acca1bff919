"""The similarity join finds exactly what comparing all with all finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.score.overlap import NEAR, jaccard, matches, repeated, shingles
from bench.score.plain import normalise

from .made import quickly

# Few words, so that similar texts are common.
texts = st.lists(
    st.lists(st.sampled_from(["order", "refund", "a", "of", "today", "née"]), max_size=8).map(
        " ".join
    ),
    max_size=8,
)


@quickly
@given(texts, texts)
def test_nothing_is_missed_and_nothing_made_up(left: list[str], right: list[str]) -> None:
    found = {m.left: m for m in matches(left, right)}
    for number, text in enumerate(left):
        own = shingles(normalise(text))
        close = [jaccard(own, shingles(normalise(other))) for other in right]
        best = max(close, default=0.0)
        if best < NEAR:
            assert number not in found
        else:
            assert found[number].similarity == best
            assert found[number].right == close.index(best)


def test_case_and_spaces_make_no_other_text() -> None:
    (match,) = matches(["Where is  my order?"], ["x", "where is my ORDER?"])
    assert match == (0, 1, 1.0)


def test_one_word_of_ten_is_near_and_half_is_not() -> None:
    train = ["please tell me where the blue parcel of last monday is"]
    near = "please tell me where the blue parcel of last tuesday is"
    other = "please tell me where my invoice for two new chairs went"
    assert [m.left for m in matches([near, other], train)] == [0]


def test_repeats_are_counted_without_the_first() -> None:
    assert repeated(["a", "A ", "b", "a", "c"]) == 2
    assert repeated([]) == 0
