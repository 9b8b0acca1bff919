"""Check a dataset's rows, and how many tokens cut: started by `bench check SUITE --data`.

Reads one JSON line from stdin, {"cells": [Cell, …]}, all of one dataset; prints one Hygiene as
JSON.  Only this folder may import `datasets` and tokenizers, so it is a process of its own:

    python -m bench.worker.inspect < cells.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from bench import cache
from bench.errors import UserError
from bench.score import hygiene
from bench.score.hygiene import Example, Hygiene, Truncation
from bench.spec import Cell
from bench.worker import data
from bench.worker.data import Row

COUNTED = 2000  # rows of a split whose tokens are counted


def main() -> int:
    """Exit code 2 with one line on stderr where rows can't be had."""
    cells = [Cell.model_validate(cell) for cell in json.load(sys.stdin)["cells"]]
    try:
        found = inspect(cells)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(found.model_dump_json())
    return 0


def inspect(cells: Sequence[Cell]) -> Hygiene:
    """The rows of the cells' dataset, and what each model's budget cuts."""
    dataset = cells[0].dataset
    rows = {split: data.rows(dataset, split) for split in ("train", "validation", "test")}
    found = hygiene.inspect(
        dataset, {split: [_example(row) for row in some] for split, some in rows.items()}
    )
    cut = [_truncation(cell, rows["train"], rows["test"]) for cell in _budgets(cells)]
    known = [one for one in cut if one]
    found = found.model_copy(
        update={"truncation": known, "fingerprint": hygiene.specification(dataset)}
    )
    return found.model_copy(update={"warnings": hygiene.warnings(found, dataset)})


def _example(row: Row) -> Example:
    return Example(row.id, row.messages, row.answer, row.group)


def _budgets(cells: Sequence[Cell]) -> list[Cell]:
    """One cell for each model and pair of limits; cells without one have no tokens to count."""
    unique: dict[tuple[Any, ...], Cell] = {}
    for cell in cells:
        if cell.method.needs_model and cell.model.weights is not None:
            key = (cell.model.name, cell.budget.max_length, cell.budget.max_new_tokens)
            unique.setdefault(key, cell)
    return list(unique.values())


def _truncation(cell: Cell, train: Sequence[Row], test: Sequence[Row]) -> Truncation | None:
    """None where the tokenizer isn't here: a gated model, or one that has yet to be made."""
    from bench.worker import load

    if not cache.ready(cell.model):
        return None
    try:
        tokenizer = load.tokenizer(cell.model)
    except UserError:
        return None
    some = [data.sample(split, COUNTED) for split in (train, test)]
    encoded = [data.encode(tokenizer, cell, row) for row in some[0]]
    answers = [
        tokenizer(data.answer_text(tokenizer, cell, row), add_special_tokens=False)["input_ids"]
        for row in some[1]
    ]
    return Truncation(
        model=cell.model.name,
        max_length=cell.budget.max_length,
        max_new_tokens=cell.budget.max_new_tokens,
        train_cut=sum(bool(example and example.truncated) for example in encoded),
        train_dropped=sum(example is None for example in encoded),
        test_answers_cut=sum(len(ids) + 1 > cell.budget.max_new_tokens for ids in answers),
        test_prompts_long=sum(
            len(data.prompt_ids(tokenizer, cell, row)) > cell.budget.max_length for row in some[1]
        ),
        rows=(len(some[0]), len(some[1])),
    )


if __name__ == "__main__":
    sys.exit(main())
