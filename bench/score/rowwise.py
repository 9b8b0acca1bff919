"""Every test row's own scores, so that anything over rows can be recomputed without this project.

A mean metric is the mean of its column.  F1 and BLEU aren't means of rows: what was read, the
entities' counts and BLEU's ten counts stand beside them, and their sums give the metric.

    python -m pytest tests/score/test_rowwise.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.record import Prediction
from bench.score import labels, quality
from bench.score.resample import known
from bench.spec import DatasetSpec


def row_scores(dataset: DatasetSpec, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """One mapping a row, in the order given: id, group, each metric of this row alone (None where
    undefined), and

        <label field>.said, .true            as read; empty where the answer gives no one label
        <entities field>.right, .partial, .predicted, .true      pairs; partial: shared words
        <text field>.bleu.counts             length, reference length, 4 × matches, 4 × n-grams
    """
    lines: list[dict[str, Any]] = [
        {"id": row.id, "group": row.group, "finish_reason": row.finish_reason}
        for row in predictions
    ]
    if not predictions:
        return lines
    for name, sums in quality.statistics(dataset, predictions).items():
        for line, counts, value in zip(lines, sums.rows, sums.finish(sums.rows), strict=True):
            line[name] = known(float(value))
            if name.endswith(".bleu"):
                line[f"{name}.counts"] = " ".join(f"{count:g}" for count in counts)
    for column in quality.read(dataset, predictions):
        _add_reading(column, lines)
    return lines


def _add_reading(column: quality.Column, lines: Sequence[dict[str, Any]]) -> None:
    name = column.field.name
    if column.field.type == "label":
        for line, said, true in zip(
            lines, column.predicted_labels, column.true_labels, strict=True
        ):
            line |= {f"{name}.said": said, f"{name}.true": true}
    if column.field.type == "entities":
        pairs = column.predicted_entities, column.true_entities
        strict, partial = labels.entity_counts(*pairs), labels.entity_partial_counts(*pairs)
        for line, whole, part in zip(lines, strict, partial, strict=True):
            line[f"{name}.right"], line[f"{name}.partial"] = int(whole[0]), known(float(part[0]))
            line[f"{name}.predicted"], line[f"{name}.true"] = int(whole[1]), int(whole[2])
