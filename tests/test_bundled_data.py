"""The bundled support desk: reproducible, without leaks, short, and readable by the scorer."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from bench.score.answers import format_answer, split_fields
from bench.score.entities import entity_pairs, parse_entities
from bench.score.overlap import matches
from bench.spec import DatasetSpec
from bench.suite import load_spec

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "data" / "support-desk"
ROWS = {"train": 480, "validation": 60, "test": 120}


def rows(split: str) -> list[dict[str, Any]]:
    with open(FOLDER / f"{split}.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate", FOLDER / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def dataset() -> DatasetSpec:
    return load_spec(DatasetSpec, ROOT / "suites" / "datasets" / "support-desk.yaml")


def test_regenerated_bytes_are_the_committed_ones(tmp_path: Path) -> None:
    generator().main(tmp_path)
    for split in ROWS:
        name = f"{split}.jsonl"
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), name


@pytest.mark.parametrize(("split", "number"), ROWS.items())
def test_tenants_have_equal_shares_and_all_intents(split: str, number: int) -> None:
    found = rows(split)
    assert len(found) == number
    assert set(Counter(row["tenant"] for row in found).values()) == {number // 4}
    assert len({(row["tenant"], row["intent"]) for row in found}) == 4 * 6


def test_tenants_differ_in_their_mix() -> None:
    common = {}
    for tenant in {row["tenant"] for row in rows("train")}:
        mix = Counter(row["intent"] for row in rows("train") if row["tenant"] == tenant)
        common[tenant] = mix.most_common(1)[0][0]
    assert len(set(common.values())) == 4


def test_no_message_id_or_order_number_twice() -> None:
    every = [row for split in ROWS for row in rows(split)]
    for values in (
        [row["id"] for row in every],
        [row["message"] for row in every],
        [row["entities"]["order"] for row in every if "order" in row["entities"]],
    ):
        assert len(values) == len(set(values))


def test_no_test_message_resembles_one_of_train() -> None:
    asked = {
        split: [f"{row['tenant']}: {row['message']}" for row in rows(split)]
        for split in ("train", "test")
    }
    assert matches(asked["test"], asked["train"]) == []
    assert len(matches(asked["train"], asked["train"])) == 480  # the join finds what is there


def test_half_of_test_uses_phrasings_that_train_never_does() -> None:
    tenants = generator().TENANTS.values()
    unseen = [
        max(literal_parts(text), key=len)
        for tenant in tenants
        for desk in tenant.desks
        for text in desk.unseen
    ]
    hits = {
        split: sum(any(part in row["message"] for part in unseen) for row in rows(split))
        for split in ROWS
    }
    assert hits == {"train": 0, "validation": 0, "test": 60}


def literal_parts(text: str) -> list[str]:
    """The literal pieces between a template's slots."""
    return [literal for literal, *_ in Formatter().parse(text)]


def test_replies_and_messages_hold_the_entities() -> None:
    for split in ROWS:
        for row in rows(split):
            for value in row["entities"].values():
                assert value in row["message"] and value in row["reply"], row["id"]


def test_the_answer_reads_back(dataset: DatasetSpec) -> None:
    for row in rows("test"):
        fields = split_fields(format_answer(row, dataset), dataset)
        assert fields["reply"] == row["reply"]
        assert fields["intent"] == row["intent"]
        assert parse_entities(fields["entities"] or "") == entity_pairs(row["entities"])


def test_rows_are_short() -> None:
    """A CPU trains on them.  Tokens can't be counted without the model, so characters are."""
    for split in ROWS:
        for row in rows(split):
            assert len(row["message"]) <= 80 and len(row["reply"]) <= 96, row["id"]


@pytest.mark.parametrize("name", ["support-desk", "bitext-verticals"])
def test_every_label_stands_in_the_prompt(name: str) -> None:
    dataset = load_spec(DatasetSpec, ROOT / "suites" / "datasets" / f"{name}.yaml")
    prompt = " ".join(message.content for message in dataset.messages)
    words = set(prompt.replace(",", " ").replace(".", " ").split())
    for field in dataset.answer:
        assert set(field.labels) <= words
        assert field.name in prompt.replace(":", " ").split()
