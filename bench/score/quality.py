"""How good the answers of one cell are: every metric its dataset asks for, with intervals.

A new metric is one function and one line in METRICS.  Metrics named `evaluate:<id or path>` need
I/O, so the caller loads them and passes them in.

    python -m pytest tests/score/test_quality.py
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict

from bench.record import Prediction
from bench.score import labels, text
from bench.score.answers import parse_label, split_fields, text_options, true_label
from bench.score.entities import Pair, entity_pairs, format_entities, parse_entities
from bench.score.plain import normalise, strip_thinking
from bench.score.resample import FloatArray, Sums, known, mean_of
from bench.spec import DatasetSpec, Field_

External = Callable[[list[str], list[str]], float]
EXTERNAL = "evaluate:"


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Value(_Frozen):
    """A number and how many rows (or true entities) it rests on."""

    value: float | None
    n: int


class Metric(Value):
    """A score with its 95 % bootstrap interval over rows.  0..1, but bleu is 0..100."""

    low: float | None = None
    high: float | None = None
    per_example: tuple[float, ...] | None = None
    signature: str | None = None
    reason: str | None = None


class Quality(_Frozen):
    """All scores of one set of predictions, keyed `field.metric`."""

    n: int
    metrics: dict[str, Metric]
    groups: dict[str, dict[str, Value]]
    per_class: dict[str, dict[str, Metric]]
    per_type: dict[str, dict[str, Metric]]
    per_type_partial: dict[str, dict[str, Metric]]
    invalid_rate: dict[str, float | None]
    empty_rate: float | None
    truncated_rate: float | None


# ---------------------------------------------------------------- metrics


@dataclass(frozen=True)
class Column:
    """One answer field over all rows: what the model said and what is true."""

    field: Field_
    language: str
    answers: tuple[str, ...]
    references: tuple[Any, ...]

    @cached_property
    def texts(self) -> list[list[str]]:
        return [text_options(value) for value in self.references]

    @cached_property
    def predicted_labels(self) -> list[str | None]:
        return [parse_label(answer, self.field.labels) for answer in self.answers]

    @cached_property
    def true_labels(self) -> list[str]:
        return [true_label(value, self.field) for value in self.references]

    @cached_property
    def label_counts(self) -> FloatArray:
        return labels.label_counts(self.predicted_labels, self.true_labels, self.field.labels)

    @cached_property
    def predicted_entities(self) -> list[list[Pair]]:
        return [parse_entities(answer) for answer in self.answers]

    @cached_property
    def true_entities(self) -> list[list[Pair]]:
        return [entity_pairs(value) for value in self.references]


def _rouge_l(column: Column) -> Sums:
    signature = "rougeL|f1|stem:no|tok:unicode|refs:max"
    return text.mean_over_rows(text.rouge_l, column.answers, column.texts, signature)


def _rouge_lsum(column: Column) -> Sums:
    signature = "rougeLsum|f1|stem:no|tok:unicode|sentences:lines|refs:max"
    return text.mean_over_rows(text.rouge_lsum, column.answers, column.texts, signature)


def _exact_match(column: Column) -> Sums:
    signature = "exact|case:mixed|space:collapsed|refs:any"
    return text.mean_over_rows(text.exact_match, column.answers, column.texts, signature)


def _bleu(column: Column) -> Sums:
    return text.corpus_bleu(column.answers, column.texts, column.language)


def _f1(column: Column) -> Sums:
    return Sums(
        column.label_counts, labels.macro_f1_of_sums, "f1|macro|labels:occurring|invalid:wrong"
    )


def _micro_f1(column: Column) -> Sums:
    return Sums(column.label_counts, labels.micro_f1_of_sums, "f1|micro|invalid:not-predicted")


def _accuracy(column: Column) -> Sums:
    return labels.accuracy(column.predicted_labels, column.true_labels)


def _invalid_rate(column: Column) -> Sums:
    invalid = [float(label is None) for label in column.predicted_labels]
    return mean_of(invalid, "share of answers without one label")


def _entity_f1(column: Column) -> Sums:
    counts = labels.entity_counts(column.predicted_entities, column.true_entities)
    return Sums(counts, labels.entity_f1_of_sums, "entity f1|micro|match:exact")


def _entity_partial_f1(column: Column) -> Sums:
    counts = labels.entity_partial_counts(column.predicted_entities, column.true_entities)
    return Sums(counts, labels.entity_f1_of_sums, "entity f1|micro|match:shared words of a type")


# name: (type of field that it scores, function)
METRICS: dict[str, tuple[str, Callable[[Column], Sums]]] = {
    "rouge_l": ("text", _rouge_l),
    "rouge_lsum": ("text", _rouge_lsum),
    "bleu": ("text", _bleu),
    "exact_match": ("text", _exact_match),
    "f1": ("label", _f1),
    "micro_f1": ("label", _micro_f1),
    "accuracy": ("label", _accuracy),
    "invalid_rate": ("label", _invalid_rate),
    "entity_f1": ("entities", _entity_f1),
    "entity_partial_f1": ("entities", _entity_partial_f1),
}


# ---------------------------------------------------------------- checking a dataset


def validate_metrics(dataset: DatasetSpec) -> list[str]:
    """What is wrong with a dataset's metrics, labels and field names; empty if nothing."""
    problems = _twice("answer field", [field.name for field in dataset.answer])
    for field in dataset.answer:
        problems += _twice(f"field {field.name}: label", field.labels)
        problems += _twice(f"field {field.name}: metric", field.metrics)
        problems += filter(None, (_metric_problem(name, field) for name in field.metrics))
    return problems


def _twice(what: str, names: Sequence[str]) -> list[str]:
    seen: dict[str, str] = {}
    problems = []
    for name in names:
        if (first := seen.setdefault(normalise(name), name)) is not name:
            problems.append(f"{what} {name!r} reads the same as {first!r}")
    return problems


def _metric_problem(name: str, field: Field_) -> str | None:
    if name.startswith(EXTERNAL):
        return None if name != EXTERNAL else f"field {field.name}: `{EXTERNAL}` needs an id or path"
    if name not in METRICS:
        close = difflib.get_close_matches(name, METRICS, n=len(METRICS), cutoff=0.5)
        listed = ", ".join([*close, *(other for other in METRICS if other not in close)])
        return (
            f"field {field.name}: unknown metric {name!r}; known: {listed}, {EXTERNAL}<id or path>"
        )
    if METRICS[name][0] != field.type:
        fitting = ", ".join(other for other, (kind, _) in METRICS.items() if kind == field.type)
        return f"field {field.name} is of type {field.type}: {name} doesn't score it, but {fitting}"
    return None


# ---------------------------------------------------------------- scoring


def score(
    dataset: DatasetSpec,
    predictions: Sequence[Prediction],
    *,
    extra: Mapping[str, External] | None = None,
) -> Quality:
    """Every metric of every field, overall and per group: see `scored`."""
    return scored(dataset, predictions, extra=extra)[0]


def scored(
    dataset: DatasetSpec,
    predictions: Sequence[Prediction],
    *,
    extra: Mapping[str, External] | None = None,
) -> tuple[Quality, dict[str, Sums]]:
    """All scores, and the built-in metrics' per-row counts, for paired tests of two methods.

    `extra` holds the `evaluate:…` metrics, each called with one string per row and once more per
    group; a missing or failing one becomes a Metric without a value, with the reason.
    """
    if problems := validate_metrics(dataset):
        raise ValueError(f"dataset {dataset.name}: " + "; ".join(problems))
    columns = read(dataset, predictions)
    scorers = {
        f"{column.field.name}.{name}": _scorer(name, column, extra or {})
        for column in columns
        for name in column.field.metrics
    }
    label_columns = [column for column in columns if column.field.type == "label"]
    entity_columns = [column for column in columns if column.field.type == "entities"]
    found = Quality(
        n=len(predictions),
        metrics={key: scorer.overall() for key, scorer in scorers.items()},
        groups={
            group: {key: Value(value=s.value(rows), n=len(rows)) for key, s in scorers.items()}
            for group, rows in _groups(predictions).items()
        },
        per_class={column.field.name: _per_class(column) for column in label_columns},
        per_type={c.field.name: _per_type(c, labels.entity_counts) for c in entity_columns},
        per_type_partial={
            c.field.name: _per_type(c, labels.entity_partial_counts) for c in entity_columns
        },
        invalid_rate={
            column.field.name: labels.invalid_rate(column.predicted_labels)
            for column in label_columns
        },
        empty_rate=_share([not strip_thinking(row.prediction)[0] for row in predictions]),
        truncated_rate=_share([_truncated(row) for row in predictions]),
    )
    return found, {key: s.sums for key, s in scorers.items() if isinstance(s, _BuiltIn)}


def _truncated(row: Prediction) -> bool:
    return row.finish_reason == "length" or strip_thinking(row.prediction)[1]


def statistics(dataset: DatasetSpec, predictions: Sequence[Prediction]) -> dict[str, Sums]:
    """The built-in metrics as per-row counts, for paired tests between two methods."""
    return {
        f"{column.field.name}.{name}": METRICS[name][1](column)
        for column in read(dataset, predictions)
        for name in column.field.metrics
        if name in METRICS
    }


def read(dataset: DatasetSpec, predictions: Sequence[Prediction]) -> list[Column]:
    """The answers, read field by field."""
    answers = [split_fields(row.prediction, dataset) for row in predictions]
    return [
        Column(
            field,
            dataset.language,
            tuple(answer[field.name] or "" for answer in answers),
            tuple(_reference(row, field) for row in predictions),
        )
        for field in dataset.answer
    ]


def _reference(row: Prediction, field: Field_) -> Any:
    if field.name not in row.reference:
        raise ValueError(f"prediction {row.id} has no reference for field {field.name}")
    return row.reference[field.name]


def _groups(predictions: Sequence[Prediction]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(predictions):
        if row.group is not None:
            groups.setdefault(row.group, []).append(index)
    return dict(sorted(groups.items()))


def _share(flags: Sequence[bool]) -> float | None:
    return known(sum(flags) / len(flags)) if flags else None


def _per_class(column: Column) -> dict[str, Metric]:
    scores = labels.per_class(column.label_counts, column.field.labels)
    bounds = labels.class_intervals(column.label_counts)
    return {
        label: _metric(value, interval, column.true_labels.count(label))
        for (label, value), interval in zip(scores.items(), bounds, strict=True)
    }


def _per_type(column: Column, counts: labels.Counts) -> dict[str, Metric]:
    """n: the true entities of a type; the interval is over rows."""
    found = labels.sums_by_type(column.predicted_entities, column.true_entities, counts)
    return {
        kind: _metric(sums.value(), _interval(sums), int(sums.rows[:, 2].sum()))
        for kind, sums in found.items()
    }


def _interval(sums: Sums) -> tuple[float, float] | None:
    """Of the rows that have the type, true or predicted: the others say nothing about it."""
    return Sums(sums.rows[sums.rows.any(axis=1)], sums.finish).interval()


def _metric(value: float | None, interval: tuple[float, float] | None, n: int) -> Metric:
    low, high = interval or (None, None)
    return Metric(value=value, low=low, high=high, n=n)


# ---------------------------------------------------------------- one metric over rows and groups


@dataclass(frozen=True)
class _BuiltIn:
    sums: Sums

    def overall(self) -> Metric:
        value = self.sums.value()
        low, high = self.sums.interval() or (None, None)
        return Metric(
            value=value,
            low=low,
            high=high,
            n=len(self.sums.rows),
            per_example=self.sums.per_example,
            signature=self.sums.signature,
            reason=None if value is not None else "nothing to score in these rows",
        )

    def value(self, rows: Sequence[int]) -> float | None:
        return self.sums.value(rows)


@dataclass(frozen=True)
class _External:
    name: str
    function: External | None
    answers: Sequence[str]
    references: Sequence[str]

    def overall(self) -> Metric:
        value, reason = self._call(range(len(self.answers)))
        return Metric(value=value, n=len(self.answers), signature=self.name, reason=reason)

    def value(self, rows: Sequence[int]) -> float | None:
        return self._call(rows)[0]

    def _call(self, rows: Sequence[int]) -> tuple[float | None, str | None]:
        if self.function is None:
            return None, f"{self.name} was not loaded"
        answers, references = ([side[i] for i in rows] for side in (self.answers, self.references))
        try:
            value = known(float(self.function(answers, references)))
        except Exception as error:  # someone else's code: its failure is a result, not a crash
            return None, f"{self.name} failed: {type(error).__name__}: {error}"
        return value, None if value is not None else f"{self.name} gave no finite number"


@dataclass(frozen=True)
class _NoRows:
    def overall(self) -> Metric:
        return Metric(value=None, n=0, reason="no predictions")

    def value(self, rows: Sequence[int]) -> float | None:
        return None


def _scorer(
    name: str, column: Column, extra: Mapping[str, External]
) -> _BuiltIn | _External | _NoRows:
    if not column.answers:
        return _NoRows()
    if name in METRICS:
        return _BuiltIn(METRICS[name][1](column))
    return _External(name, extra.get(name), *_as_strings(column))


def _as_strings(column: Column) -> tuple[list[str], list[str]]:
    """Predictions and references as one string a row: labels as parsed, entities as a line, the
    first of several reference texts."""
    if column.field.type == "label":
        return [label or "" for label in column.predicted_labels], column.true_labels
    if column.field.type == "entities":
        found, wanted = column.predicted_entities, column.true_entities
        return [format_entities(row) for row in found], [format_entities(row) for row in wanted]
    return list(column.answers), [options[0] for options in column.texts]
