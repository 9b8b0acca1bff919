"""Answers without a model, and answers of an untuned model that was shown examples."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bench import store
from bench.errors import UserError
from bench.score.quality import score
from bench.spec import Cell, DatasetSpec, MethodSpec
from bench.suite import load_spec
from bench.worker import data, few_shot, methods
from bench.worker.data import Row
from bench.worker.methods.majority import medoid

from ..conftest import ROOT, environment

Cells = dict[tuple[str, str], Cell]


def method(name: str) -> MethodSpec:
    return load_spec(MethodSpec, ROOT / "suites" / "methods" / f"{name}.yaml")


@pytest.fixture(scope="module")
def desk() -> DatasetSpec:
    return load_spec(DatasetSpec, ROOT / "suites" / "datasets" / "support-desk.yaml")


def row(question: str, **answer: Any) -> Row:
    messages = [
        {"role": "system", "content": "Answer."},
        {"role": "user", "content": question},
    ]
    values = {"reply": "Hello.", "intent": "fee", "entities": {}} | answer
    return Row(id=question, group="a", messages=messages, answer=values)


# ---------------------------------------------------------------- without a model


def test_majority_is_the_most_frequent_label_and_the_most_central_text(desk: DatasetSpec) -> None:
    train = [
        row("1", intent="refund", reply="your refund is on its way today"),
        row("2", intent="refund", reply="your refund is on its way"),
        row("3", intent="status", reply="your parcel is on its way", entities={"order": "1"}),
        row("4", intent="fee", reply="no"),
    ]
    answer = methods.module("majority").answerer(desk, train)
    assert answer(row("5")) == answer(row("6"))
    assert answer(row("5")) == "reply: your refund is on its way\nintent: refund\nentities: none"


def test_of_equally_frequent_labels_the_first_listed(desk: DatasetSpec) -> None:
    train = [row("1", intent="fee"), row("2", intent="cancel")]
    assert "intent: cancel" in methods.module("majority").answerer(desk, train)(row("3"))


def test_a_canned_reply_beats_a_central_one() -> None:
    assert medoid(["a b c d", "a b c", "x y", "x y", "x y"]) == "x y"


def test_copy_is_the_question(desk: DatasetSpec) -> None:
    answer = methods.module("copy").answerer(desk, [])
    assert answer(row("Where is my order 12?")) == "Where is my order 12?"


@pytest.mark.parametrize("name", ["majority", "copy"])
def test_a_trivial_cell_runs_without_torch_and_is_scored_as_any(
    cells: Cells, tmp_path: Path, name: str
) -> None:
    old = cells["tiny-llama", "base"]
    cell = Cell.model_validate(old.model_dump() | {"method": method(name).model_dump()})
    assert not cell.method.trains and not cell.method.needs_model
    folder = store.cell_folder(tmp_path, cell)
    store.write_json(folder / "cell.json", cell)
    attempt = store.new_attempt(folder)
    code = (
        "import sys; from bench.worker.__main__ import main; main(['generate', sys.argv[1]]);"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, str(attempt)]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, timeout=120)
    end = store.Attempt(attempt).events[-1]
    assert (end["event"], end["status"], end["facts"]["rows"]) == ("phase_end", "ok", 8)
    found = score(cell.dataset, store.Attempt(attempt).predictions)
    assert found.n == 8
    if name == "majority":
        assert found.invalid_rate["intent"] == 0.0
        assert found.metrics["reply.rouge_l"].value


# ---------------------------------------------------------------- examples in the prompt


def test_examples_come_from_train_and_never_from_test(desk: DatasetSpec) -> None:
    train = data.rows(desk, "train")
    test = [train[3], train[5], *data.rows(desk, "test")]  # two leaked rows
    shown = few_shot.examples(desk, train, test, 200)
    asked = {data.last_user_message(row).lower() for row in test}
    assert len({row.id for row in shown}) == 200
    assert {row.id for row in shown} <= {row.id for row in train}
    assert not {data.last_user_message(row).lower() for row in shown} & asked


def test_examples_are_the_same_each_time_and_show_every_label(desk: DatasetSpec) -> None:
    train, test = data.rows(desk, "train"), data.rows(desk, "test")
    shown = few_shot.examples(desk, train, test, 6)
    assert [row.id for row in shown] == [row.id for row in few_shot.examples(desk, train, test, 6)]
    assert set(Counter(row.answer["intent"] for row in shown).values()) == {1}


def test_too_many_examples_are_refused(desk: DatasetSpec) -> None:
    with pytest.raises(UserError, match="2 examples are wanted, but train has 1 rows"):
        few_shot.examples(desk, [row("A "), row("b")], [row("a")], 2)


def test_the_prompt_keeps_its_instructions_first_and_its_question_last(desk: DatasetSpec) -> None:
    asked = few_shot.with_examples(row("now?"), [row("then?", intent="refund")], desk)
    assert [message["role"] for message in asked.messages] == [
        "system", "user", "assistant", "user",
    ]  # fmt: skip
    assert asked.messages[2]["content"] == "reply: Hello.\nintent: refund\nentities: none"
    assert asked.messages[3]["content"] == "now?"
    assert asked.answer == row("now?").answer  # scored against its own truth


def test_shots_are_part_of_the_question_but_no_shots_change_no_id(cells: Cells) -> None:
    old = cells["tiny-llama", "base"]
    few = old.model_copy(update={"method": old.method.model_copy(update={"shots": 4})})
    assert few.id != old.id
    assert "shots" not in old.identity()["method"]


def test_only_the_untuned_model_takes_examples() -> None:
    with pytest.raises(ValidationError, match="full takes no `shots`"):
        MethodSpec(name="x", kind="full", learning_rate=1e-4, shots=2)


def test_a_model_that_is_shown_examples_reads_them(cells: Cells, tokenizer: Any) -> None:
    """The real path from rows to token ids: longer by the examples, ending in the question."""
    old = cells["tiny-llama", "base"]
    cell = old.model_copy(update={"method": old.method.model_copy(update={"shots": 2})})
    rows = data.rows(cell.dataset, "test", 2)
    plain = [data.prompt_ids(tokenizer, cell, r) for r in rows]
    shown = [data.prompt_ids(tokenizer, cell, r) for r in few_shot.prompted(cell, rows)]
    for short, long in zip(plain, shown, strict=True):
        assert len(long) > len(short) + 40
        assert tokenizer.decode(long).endswith(tokenizer.decode(short[-10:]))
