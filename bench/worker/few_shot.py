"""Examples in the prompt: what an untuned model reaches when it is shown a few answers.

The examples come from train, are the same for every test row, cell and seed, and take turns among
the labels (or the groups), so that a few of them show as much as they can.  A train row that asks
what a test row asks is never shown.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from bench.errors import UserError
from bench.score.answers import format_answer, true_label
from bench.score.plain import normalise
from bench.spec import Cell, DatasetSpec
from bench.worker import data
from bench.worker.data import Row, last_user_message


def prompted(cell: Cell, rows: Sequence[Row]) -> list[Row]:
    """The rows with the method's examples before their question."""
    if not cell.method.shots:
        return list(rows)
    train = data.rows(cell.dataset, "train", cell.budget.max_train_rows)
    test = data.rows(cell.dataset, "test")
    shown = examples(cell.dataset, train, test, cell.method.shots)
    return [with_examples(row, shown, cell.dataset) for row in rows]


def examples(
    dataset: DatasetSpec, train: Sequence[Row], test: Sequence[Row], count: int
) -> list[Row]:
    """`count` rows of train.  Raises UserError where too few are left."""
    asked = {normalise(last_user_message(row)) for row in test}
    fit = [row for row in train if normalise(last_user_message(row)) not in asked]
    if len(fit) < count:
        raise UserError(
            f"dataset {dataset.name}: {count} examples are wanted, but train has {len(fit)} rows "
            "that test doesn't ask too"
        )
    random.Random(data.SAMPLE_SEED).shuffle(fit)
    kinds: dict[str, list[Row]] = {}
    for row in fit:
        kinds.setdefault(_kind(dataset, row), []).append(row)
    chosen: list[Row] = []
    while len(chosen) < count:
        chosen += [kinds[kind].pop() for kind in sorted(kinds) if kinds[kind]]
    return chosen[:count]


def _kind(dataset: DatasetSpec, row: Row) -> str:
    label = next((field for field in dataset.answer if field.type == "label"), None)
    return true_label(row.answer[label.name], label) if label else row.group or ""


def with_examples(row: Row, shown: Sequence[Row], dataset: DatasetSpec) -> Row:
    """System message first, then each example's turns with its answer, then the row's own."""
    messages = [message for message in row.messages if message["role"] == "system"]
    for example in shown:
        messages += _turns(example)
        messages.append({"role": "assistant", "content": format_answer(example.answer, dataset)})
    return replace(row, messages=messages + _turns(row))


def _turns(row: Row) -> list[dict[str, str]]:
    return [message for message in row.messages if message["role"] != "system"]
