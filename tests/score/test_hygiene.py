"""Each fault of a dataset is found, and a clean one gives no warning."""

from __future__ import annotations

from typing import Any

import pytest

from bench.score.hygiene import Example, Hygiene, Truncation, inspect, warnings
from bench.spec import DatasetSpec

from .made import LABELS, dataset, field

DATA = dataset(field("reply"), field("kind", "label", "f1"), format="lines")
WORDS = ("parcel", "invoice", "router", "garden", "window", "coffee", "engine", "pillow", "ticket")


def row(number: int, **fields: Any) -> Example:
    """Texts without common words, so that none resembles another."""
    words = [WORDS[(number * k + k) % 9] + str(number * 7 + k) for k in range(1, 7)]
    values: dict[str, Any] = {
        "id": f"r{number}",
        "messages": [
            {"role": "system", "content": f"Say one of {', '.join(LABELS)}."},
            {"role": "user", "content": " ".join(words)},
        ],
        "answer": {"reply": f"answer {number}", "kind": LABELS[number % 3]},
        "group": "ab"[number % 2],
    }
    return Example(**(values | fields))


def splits(*, train: list[Example] | None = None, test: list[Example] | None = None) -> Any:
    return {
        "train": train if train is not None else [row(n) for n in range(60)],
        "validation": [row(n) for n in range(60, 70)],
        "test": test if test is not None else [row(n) for n in range(100, 140)],
    }


def check(data: DatasetSpec = DATA, **rows: Any) -> Hygiene:
    return inspect(data, splits(**rows))


def asking(text: str, number: int = 500, **fields: Any) -> Example:
    return row(number, messages=[*row(0).messages[:1], {"role": "user", "content": text}], **fields)


TEST = [row(n) for n in range(100, 140)]
TRAIN = [row(n) for n in range(60)]


def test_a_clean_dataset_gives_no_warning() -> None:
    """Although every prompt shares its instructions, and those name every label."""
    found = check()
    assert found.warnings == []
    assert found.splits["test"].rows == 40
    assert found.splits["train"].labels["kind"] == dict.fromkeys(LABELS, 20)
    assert found.splits["test"].groups == {"a": 20, "b": 20}


def test_rows_that_train_holds_are_found() -> None:
    asked = row(3).messages[1]["content"]
    near = asked.replace(asked.split()[5], "other")
    found = check(test=[*TEST, asking(asked.upper(), 3), asking(near, 501), asking(asked, 502)])
    assert (found.duplicates, found.near_duplicates, found.contradicted) == (2, 1, 1)
    assert [(t.test, t.train) for t in found.twins] == [
        ("r3", "r3"),
        ("r502", "r3"),
        ("r501", "r3"),
    ]
    assert found.warnings[:2] == [
        "2 of 43 test prompts stand in train, 1 with another answer",
        "1 of 43 test prompts nearly stand in train",
    ]
    assert "1 of 43 test prompts repeat another: fewer rows than it looks" in found.warnings


def test_prompts_that_name_their_label_are_leaks() -> None:
    test = [asking(f"{row(n).messages[1]['content']} {LABELS[n % 3]}", n) for n in range(100, 140)]
    found = check(test=test)
    assert found.leaks == {"reply": 0, "kind": 40}
    assert found.warnings == ["40 of 40 test prompts give away their own kind"]


def test_a_label_that_is_merely_mentioned_now_and_then_is_no_leak() -> None:
    found = check(test=[*TEST, asking("qwert uiopa billing", 102)])
    assert found.leaks["kind"] <= 1 and found.warnings == []


def test_a_reply_in_its_own_prompt_is_a_leak() -> None:
    reply = "the order comes back on friday"
    leak = asking(f"history: {reply} end", answer={"reply": reply, "kind": LABELS[0]})
    assert check(test=[*TEST, leak]).warnings == ["1 of 41 test prompts give away their own reply"]


def test_empty_and_unknown_answers_are_told_by_split() -> None:
    empty = row(800, answer={"reply": " ", "kind": LABELS[0]})
    odd = row(801, answer={"reply": "x", "kind": "complaint"})
    found = check(train=[*TRAIN, odd], test=[*TEST, empty])
    assert found.warnings == [
        "train: 1 rows have a kind that isn't in its list of labels",
        "test: 1 of 41 rows have an empty reply",
    ]


def test_labels_and_groups_that_train_lacks() -> None:
    train = [r for r in TRAIN if r.answer["kind"] != LABELS[1]]
    found = check(
        train=[row(n) for n in range(60) if n % 3 != 1], test=[*TEST, row(141, group="z")]
    )
    assert len(train) == 40
    assert found.warnings == [
        "kind: test asks for labels that train never shows: delivery",
        "groups that train doesn't have: z",
    ]


def test_rare_labels_are_named() -> None:
    few = [row(n) for n in range(100, 140) if n % 3 != 1] + [row(100)]
    assert "kind: fewer than 10 test rows each for" in "".join(check(test=few).warnings)


def test_one_label_that_nearly_all_rows_have_is_told() -> None:
    test = [
        row(n, answer={"reply": f"a {n}", "kind": LABELS[n % 10 == 0]}) for n in range(100, 140)
    ]
    assert (
        f"kind: always saying {LABELS[0]} would be right on 36 of 40 test rows"
        in check(test=test).warnings
    )


def test_lengths_are_those_of_what_varies() -> None:
    found = check().splits["test"].lengths
    assert found["prompt_words"].minimum == found["prompt_words"].maximum == 6
    assert found["prompt_words"].bins == [0, 0, 40]  # 6 lies in [4, 8)
    assert sum(found["answer_characters"].bins) == 40


@pytest.mark.parametrize("limit", [True, False])
def test_what_tokens_cut_is_told(limit: bool) -> None:
    cut = Truncation(
        model="m", max_length=64, max_new_tokens=16, train_cut=3 * limit, train_dropped=limit,
        test_answers_cut=2 * limit, test_prompts_long=limit, rows=(60, 40),
    )  # fmt: skip
    found = check().model_copy(update={"truncation": [cut]})
    assert warnings(found, DATA) == limit * [
        "m: 3 of 60 train answers are cut at 64 tokens",
        "m: 1 of 60 train prompts fill 64 tokens alone and are dropped",
        "m: 1 of 40 test prompts are longer than 64 tokens, longer than all that is trained on",
        "m: 2 of 40 true test answers are longer than 16 tokens, so no model can give them",
    ]
