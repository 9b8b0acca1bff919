"""Is the data fit to compare on?  What a sceptic checks first, on rows and without a tokenizer.

    duplicates   test rows that train holds, the same or nearly; rows repeated within test
    leakage      prompts that give their own answer away
    references   empty ones, and labels that the dataset's list doesn't have
    balance      labels and groups of each split; those that test asks and train never shows
    lengths      characters and words of prompts and answers, as histograms

`bench check SUITE --data` runs it; the report repeats the warnings.

    python -m pytest tests/score/test_hygiene.py
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from bench.score.answers import format_answer, parse_label, text_options, true_label
from bench.score.entities import entity_pairs
from bench.score.overlap import matches, repeated
from bench.score.plain import normalise
from bench.spec import DatasetSpec, Field_

SHOWN = 5  # examples of what was found
FEW_ROWS = 10  # a label with fewer test rows has an F1 of its own that says little
DOMINANT = 0.8  # share of test rows with one label: always saying it then scores as much
LEAKING = 0.5  # share of prompts that name their own label and no other
LONG_ENOUGH = 20  # characters of a reply that stands in its own prompt: shorter ones may by chance


@dataclass(frozen=True)
class Example:
    """A row: its messages and true values."""

    id: str
    messages: Sequence[Mapping[str, str]]
    answer: Mapping[str, Any]
    group: str | None = None


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Twin(_Frozen):
    """A test row and the train row that it resembles."""

    test: str
    train: str
    similarity: float


class Lengths(_Frozen):
    """Quantiles and a histogram: `bins[i]` rows have a length in [2^i, 2^(i+1)); 0 counts as 1."""

    minimum: int
    median: float
    p95: float
    maximum: int
    bins: list[int]


class Split(_Frozen):
    """One split by itself."""

    rows: int
    repeated: int = Field(description="Rows whose prompt stands in the split already.")
    empty: dict[str, int] = Field(description="Answer field: rows with nothing in it.")
    unknown: dict[str, int] = Field(description="Label field: rows whose label isn't listed.")
    labels: dict[str, dict[str, int]]
    groups: dict[str, int]
    lengths: dict[str, Lengths]


class Truncation(_Frozen):
    """Token counts of one model against the budget; from the worker, where a tokenizer is."""

    model: str
    max_length: int
    max_new_tokens: int
    train_cut: int = Field(description="Train rows whose answer is cut at max_length.")
    train_dropped: int = Field(description="Train rows whose prompt alone fills max_length.")
    test_answers_cut: int = Field(description="True test answers longer than max_new_tokens.")
    test_prompts_long: int | None = Field(
        None, description="Test prompts of more than max_length tokens; they are asked whole."
    )
    rows: tuple[int, int] = Field(description="Train and test rows that were counted.")


class Hygiene(_Frozen):
    """Everything that was found about a dataset."""

    schema_version: int = 1
    dataset: str
    fingerprint: str | None = Field(None, description="Hash of the dataset's specification.")
    splits: dict[str, Split]
    duplicates: int = Field(description="Test rows whose prompt train holds, word for word.")
    near_duplicates: int = Field(description="Further test rows that train nearly holds.")
    contradicted: int = Field(description="Duplicates whose answer in train is another one.")
    twins: list[Twin]
    leaks: dict[str, int] = Field(description="Answer field: test prompts that give it away.")
    truncation: list[Truncation] = []
    warnings: list[str]


def inspect(dataset: DatasetSpec, splits: Mapping[str, Sequence[Example]]) -> Hygiene:
    """Check `train`, `validation` and `test` rows."""
    fixed = _fixed_messages([row for rows in splits.values() for row in rows])
    asked = {name: [_varying(row, fixed) for row in rows] for name, rows in splits.items()}
    train, test = splits["train"], splits["test"]
    found = matches(asked["test"], asked["train"])
    same = [m for m in found if _same(asked["test"][m.left], asked["train"][m.right])]
    other = [
        m for m in same if not _same_answer(dataset, test[m.left].answer, train[m.right].answer)
    ]
    ranked = sorted(found, key=lambda m: (-m.similarity, m.left))[:SHOWN]
    hygiene = Hygiene(
        dataset=dataset.name,
        splits={name: _split(dataset, splits[name], asked[name]) for name in splits},
        duplicates=len(same),
        near_duplicates=len(found) - len(same),
        contradicted=len(other),
        twins=[
            Twin(test=test[m.left].id, train=train[m.right].id, similarity=round(m.similarity, 4))
            for m in ranked
        ],
        leaks={
            field.name: sum(
                _leaks(field, row.answer[field.name], text)
                for row, text in zip(test, asked["test"], strict=True)
            )
            for field in dataset.answer
            if field.type != "entities"  # extraction: the values are meant to stand in the prompt
        },
        warnings=[],
    )
    return hygiene.model_copy(update={"warnings": warnings(hygiene, dataset)})


def specification(dataset: DatasetSpec) -> str:
    """A dataset's file as a hash: what was checked is what was asked, or it isn't."""
    text = json.dumps(dataset.identity(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---------------------------------------------------------------- prompts


def _fixed_messages(rows: Sequence[Example]) -> frozenset[str]:
    """Messages that every row has: instructions, which make no row like another."""
    counts = Counter(text for row in rows for text in {m["content"] for m in row.messages})
    return frozenset(text for text, count in counts.items() if len(rows) > 1 and count == len(rows))


def _varying(row: Example, fixed: frozenset[str]) -> str:
    return "\n".join(m["content"] for m in row.messages if m["content"] not in fixed)


def _same(one: str, two: str) -> bool:
    return normalise(one) == normalise(two)


def _same_answer(dataset: DatasetSpec, one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    try:
        return format_answer(one, dataset) == format_answer(two, dataset)
    except ValueError:  # a label that isn't in the list: told apart elsewhere
        return dict(one) == dict(two)


def _leaks(field: Field_, value: Any, prompt: str) -> bool:
    """Whether the prompt names the true label and no other, or holds the reply word for word."""
    if field.type == "label":
        try:
            return parse_label(prompt, field.labels) == true_label(value, field)
        except ValueError:
            return False
    replies = (normalise(text) for text in text_options(value))
    return any(len(text) >= LONG_ENOUGH and text in normalise(prompt) for text in replies)


# ---------------------------------------------------------------- one split


def _split(dataset: DatasetSpec, rows: Sequence[Example], asked: Sequence[str]) -> Split:
    labels, unknown = _labels(dataset, rows)
    answers = ["\n".join(_plain(row.answer[f.name]) for f in dataset.answer) for row in rows]
    return Split(
        rows=len(rows),
        repeated=repeated(asked),
        empty={f.name: sum(_empty(f, row.answer[f.name]) for row in rows) for f in dataset.answer},
        unknown=unknown,
        labels=labels,
        groups=dict(sorted(Counter(row.group for row in rows if row.group is not None).items())),
        lengths={
            "prompt_characters": _lengths([len(text) for text in asked]),
            "prompt_words": _lengths([len(text.split()) for text in asked]),
            "answer_characters": _lengths([len(text) for text in answers]),
            "answer_words": _lengths([len(text.split()) for text in answers]),
        }
        if rows
        else {},
    )


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "; ".join(f"{k}={v}" for k, v in entity_pairs(value)) or str(text_options(value)[0])


def _labels(
    dataset: DatasetSpec, rows: Sequence[Example]
) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """(rows of each listed label, rows of unlisted ones), by field."""
    counts: dict[str, dict[str, int]] = {}
    unknown: dict[str, int] = {}
    for field in (f for f in dataset.answer if f.type == "label"):
        counts[field.name] = dict.fromkeys(field.labels, 0)
        unknown[field.name] = 0
        for row in rows:
            try:
                counts[field.name][true_label(row.answer[field.name], field)] += 1
            except ValueError:
                unknown[field.name] += 1
    return counts, unknown


def _empty(field: Field_, value: Any) -> bool:
    """No text in any of the references.  No entity is an answer, not an empty one."""
    if field.type == "entities":
        return value is None
    return not any(text.strip() for text in text_options(value))


def _lengths(values: Sequence[int]) -> Lengths:
    powers = [max(1, value).bit_length() - 1 for value in values]
    return Lengths(
        minimum=min(values),
        median=float(np.median(values)),
        p95=float(np.percentile(values, 95)),
        maximum=max(values),
        bins=[powers.count(power) for power in range(max(powers) + 1)],
    )


# ---------------------------------------------------------------- warnings


def warnings(found: Hygiene, dataset: DatasetSpec) -> list[str]:
    """What should be mended, or known, before any score is believed; one sentence each."""
    return [*_of_overlap(found), *_of_answers(found, dataset), *_of_lengths(found)]


def _of_overlap(found: Hygiene) -> list[str]:
    rows = found.splits["test"].rows
    told = []
    if found.duplicates:
        more = f", {found.contradicted} with another answer" if found.contradicted else ""
        told.append(f"{found.duplicates} of {rows} test prompts stand in train{more}")
    if found.near_duplicates:
        told.append(f"{found.near_duplicates} of {rows} test prompts nearly stand in train")
    if again := found.splits["test"].repeated:
        told.append(f"{again} of {rows} test prompts repeat another: fewer rows than it looks")
    for name, count in found.leaks.items():
        if count > LEAKING * rows or (count and name not in found.splits["test"].labels):
            told.append(f"{count} of {rows} test prompts give away their own {name}")
    return told


def _of_answers(found: Hygiene, dataset: DatasetSpec) -> list[str]:
    told = []
    for split, facts in found.splits.items():
        for name, count in facts.empty.items():
            if count:
                told.append(f"{split}: {count} of {facts.rows} rows have an empty {name}")
        for name, count in facts.unknown.items():
            if count:
                told.append(f"{split}: {count} rows have a {name} that isn't in its list of labels")
    for name in found.splits["test"].labels:
        told += _of_label(name, found.splits["train"], found.splits["test"])
    train, test = found.splits["train"], found.splits["test"]
    if strangers := sorted(set(test.groups) - set(train.groups)):
        told.append(f"groups that train doesn't have: {', '.join(strangers)}")
    return told


def _of_label(name: str, train: Split, test: Split) -> Iterator[str]:
    """Balance: labels that train lacks, that test hardly has, that nearly all test rows have."""
    counts = test.labels[name]
    unseen = [label for label, n in counts.items() if n and not train.labels[name][label]]
    rare = [label for label, n in counts.items() if n < FEW_ROWS]
    most = max(counts, key=lambda label: counts[label])
    if unseen:
        yield f"{name}: test asks for labels that train never shows: {', '.join(unseen)}"
    if rare:
        yield f"{name}: fewer than {FEW_ROWS} test rows each for {', '.join(rare)}"
    if counts[most] >= DOMINANT * max(1, test.rows):
        share = f"{counts[most]} of {test.rows}"
        yield f"{name}: always saying {most} would be right on {share} test rows"


def _of_lengths(found: Hygiene) -> list[str]:
    told = []
    for cut in found.truncation:
        train, test = cut.rows
        if cut.train_cut:
            told.append(
                f"{cut.model}: {cut.train_cut} of {train} train answers are cut at "
                f"{cut.max_length} tokens"
            )
        if cut.train_dropped:
            told.append(
                f"{cut.model}: {cut.train_dropped} of {train} train prompts fill "
                f"{cut.max_length} tokens alone and are dropped"
            )
        if cut.test_prompts_long:
            told.append(
                f"{cut.model}: {cut.test_prompts_long} of {test} test prompts are longer than "
                f"{cut.max_length} tokens, longer than all that is trained on"
            )
        if cut.test_answers_cut:
            told.append(
                f"{cut.model}: {cut.test_answers_cut} of {test} true test answers are longer than "
                f"{cut.max_new_tokens} tokens, so no model can give them"
            )
    return told
