"""What is trained on is what is generated from, token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.errors import UserError
from bench.spec import Cell, DatasetSpec
from bench.worker import data

from .conftest import changed

Cells = dict[tuple[str, str], Cell]


@pytest.fixture
def cell(cells: Cells) -> Cell:
    return cells["tiny-llama", "lora"]


def test_examples_begin_with_the_prompt_and_end_with_the_end(cell: Cell, tokenizer: Any) -> None:
    row = data.rows(cell.dataset, "test", 1)[0]
    encoded = data.encode(tokenizer, cell, row)
    assert encoded is not None
    prompt = data.prompt_ids(tokenizer, cell, row)
    assert encoded.input_ids[: len(prompt)] == prompt
    assert encoded.labels[: len(prompt)] == [-100] * len(prompt)
    answer = encoded.input_ids[len(prompt) :]
    assert encoded.labels[len(prompt) :] == answer  # every answer token is learnt, the end too
    assert answer[-1] == tokenizer.eos_token_id
    text = tokenizer.decode(answer[:-1])
    assert text == data.answer_text(tokenizer, cell, row)
    assert row.answer["reply"] in text and row.messages[-1]["content"] not in text


def test_long_examples_are_cut_and_hopeless_ones_dropped(cell: Cell, tokenizer: Any) -> None:
    row = data.rows(cell.dataset, "test", 1)[0]
    prompt = len(data.prompt_ids(tokenizer, cell, row))
    short = changed(cell, budget={"max_length": prompt + 3})
    encoded = data.encode(tokenizer, short, row)
    assert encoded and encoded.truncated and len(encoded.input_ids) == prompt + 3
    assert data.encode(tokenizer, changed(cell, budget={"max_length": prompt}), row) is None


def test_samples_are_the_same_every_time(cell: Cell) -> None:
    some = data.rows(cell.dataset, "test", 10)
    assert [row.id for row in some] == [row.id for row in data.rows(cell.dataset, "test", 10)]
    everything = [row.id for row in data.rows(cell.dataset, "test")]
    assert [i for i in everything if i in {row.id for row in some}] == [row.id for row in some]
    assert data.fingerprint(some) != data.fingerprint(some[:-1])


def test_absent_entities_are_absent(cell: Cell) -> None:
    """Arrow gives each row the keys of all rows; a reference must not hold them as None."""
    for row in data.rows(cell.dataset, "train", 50):
        assert None not in row.answer["entities"].values()


# ---------------------------------------------------------------- any dataset


def dataset(tmp_path: Path, rows: list[dict[str, Any]], **more: Any) -> DatasetSpec:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    source = [{"files": [str(path)]}]
    fields: dict[str, Any] = {
        "name": "made",
        "licence": "Apache-2.0",
        "train": source,
        "validation": source,
        "test": source,
        "messages": [{"role": "user", "content": "{{ question }}"}],
        "answer": [{"name": "reply", "type": "text", "column": "text", "metrics": ["rouge_l"]}],
    }
    return DatasetSpec.model_validate(fields | more)


def test_columns_are_renamed_and_missing_ones_named(tmp_path: Path) -> None:
    rows = [{"q": "Why?", "text": "So."}]
    found = data.rows(dataset(tmp_path, rows, columns={"question": "q"}), "train")
    assert found[0].messages == [{"role": "user", "content": "Why?"}]
    with pytest.raises(UserError, match=r"no column 'nope'.*There are: q, text"):
        data.rows(dataset(tmp_path, rows, columns={"question": "nope"}), "train")
    with pytest.raises(UserError, match=r"prompt template: 'question' is undefined"):
        data.rows(dataset(tmp_path, rows), "train")


def test_templates_can_do_no_harm(tmp_path: Path) -> None:
    evil = [{"role": "user", "content": "{{ ''.__class__.__mro__ }}"}]
    with pytest.raises(UserError, match="prompt template"):
        data.rows(dataset(tmp_path, [{"text": "x"}], messages=evil), "train")


def test_a_split_keeps_duplicates_together(tmp_path: Path) -> None:
    rows = [{"question": f"q{i % 100}", "text": "a"} for i in range(300)]
    split = {"validation": 0.2, "test": 0.2}
    made = dataset(tmp_path, rows, split=split, validation=[], test=[])
    parts = {
        name: {row.messages[0]["content"] for row in data.rows(made, name)}
        for name in ("train", "validation", "test")
    }
    assert sum(len(part) for part in parts.values()) == 100  # no prompt stands in two splits
    assert 5 < len(parts["test"]) < 40 and 5 < len(parts["validation"]) < 40


def test_a_split_by_column_keeps_its_values_together(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "text": "a", "who": f"w{i % 20}"} for i in range(200)]
    split = {"validation": 0.2, "test": 0.2, "by": "who"}
    made = dataset(tmp_path, rows, split=split, validation=[], test=[], group="who")
    groups = [{row.group for row in data.rows(made, n)} for n in ("train", "validation", "test")]
    assert sum(len(group) for group in groups) == 20


def test_sources_name_their_groups(tmp_path: Path) -> None:
    rows = [{"question": "q", "text": "a"}]
    path = tmp_path / "rows.jsonl"
    train = [{"files": [str(path)], "group": name} for name in ("north", "south")]
    prompt = [{"role": "user", "content": "{{ group }}: {{ question }}"}]
    found = data.rows(dataset(tmp_path, rows, train=train, messages=prompt), "train")
    assert [(row.group, row.messages[0]["content"]) for row in found] == [
        ("north", "north: q"),
        ("south", "south: q"),
    ]
    assert len({row.id for row in found}) == 2


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_other_files_load(tmp_path: Path, ending: str) -> None:
    import pandas as pd

    frame = pd.DataFrame({"question": ["Why?"], "text": ["So."]})
    path = tmp_path / f"rows.{ending}"
    if ending == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    source = [{"files": [str(path)]}]
    made = dataset(tmp_path, [], train=source, validation=source, test=source)
    assert data.rows(made, "test")[0].answer == {"reply": "So."}


def test_an_unreachable_hub_is_one_line(tmp_path: Path) -> None:
    source = [{"hub": "nobody/nothing-here", "revision": "main"}]
    made = dataset(tmp_path, [], train=source, validation=source, test=source)
    with pytest.raises(UserError, match="nobody/nothing-here can't be loaded") as caught:
        data.rows(made, "train")
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- reasoning traces


def thinking(cell: Cell, made: DatasetSpec) -> Cell:
    parts = cell.model_dump()
    parts["dataset"] = made.model_dump()
    parts["model"]["thinking"] = True
    return Cell.model_validate(parts)


def test_reasoning_is_trained_on(tmp_path: Path, cell: Cell, tokenizer: Any) -> None:
    rows = [{"question": "2+2?", "text": "4", "trace": "two and two"}]
    made = dataset(tmp_path, rows, reasoning="trace")
    row = data.rows(made, "train")[0]
    whole = "<think>\ntwo and two\n</think>\n\n4"
    assert data.answer_text(tokenizer, thinking(cell, made), row) == whole


def test_a_template_that_opens_the_trace_is_not_opened_twice(
    tmp_path: Path, cell: Cell, tokenizer: Any
) -> None:
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "<|assistant|>{% endif %}", "<|assistant|><think>\n{% endif %}"
    )
    rows = [{"question": "2+2?", "text": "4", "trace": "two and two"}]
    made = dataset(tmp_path, rows, reasoning="trace")
    row = data.rows(made, "train")[0]
    assert data.answer_text(tokenizer, thinking(cell, made), row) == "two and two\n</think>\n\n4"
    plain = dataset(tmp_path, rows)
    row = data.rows(plain, "train")[0]
    assert data.answer_text(tokenizer, thinking(cell, plain), row) == "\n</think>\n\n4"


def test_a_broken_line_is_found(tmp_path: Path) -> None:
    rows = tmp_path / "broken.jsonl"
    rows.write_text('{"question": "a", "text": "b"}\n\n{"question": \n')
    made = dataset(tmp_path, [{"question": "a", "text": "b"}], train=[{"files": [str(rows)]}])
    with pytest.raises(UserError, match=r"broken\.jsonl:3 is not JSON"):
        data.rows(made, "train")
