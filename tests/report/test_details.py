"""Labels, types, rates and groups below the metrics; every row's scores for programs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from bench.report import compare, details, export
from bench.report.compare import Panel
from bench.report.rows import rows
from bench.store import append_line, read_suite

from ..conftest import bench
from .made import LABELS, Run, add, cell, dataset, prediction

SLOTS = {"name": "slots", "type": "entities", "metrics": ["entity_f1"]}
ANSWER = [*[f.model_dump() for f in dataset().answer], SLOTS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two seeds whose answers hold half of one entity, all of another, and one nobody asked for."""
    for seed, right in enumerate((0.5, 0.9)):
        made = cell("m", "lora", seed, dataset=dataset(answer=ANSWER))
        path = add(tmp_path, made, Run(right=right)) / "attempt-001" / "predictions.jsonl"
        path.unlink()
        for number in range(40):
            one = prediction(number, Run(right=right))
            one.prediction += f"\nslots: product=blue; order={number}; colour=red"
            one.reference |= {"slots": {"product": "blue router", "order": str(number)}}
            append_line(path, one)
    return tmp_path


@pytest.fixture
def panel(folder: Path) -> Panel:
    (found,) = compare.panels(rows(read_suite(folder, "made")))
    return found


def test_each_label_has_its_rows_and_interval(panel: Panel) -> None:
    made = details.classes(panel)
    assert list(made["label"]) == list(LABELS)
    assert list(made["rows"]) == ["14", "13", "13"]
    assert all(" to " in bounds for bounds in made["95 % interval"])


def test_types_are_scored_exactly_and_by_shared_words(panel: Panel) -> None:
    made = details.types(panel).set_index("type")
    assert list(made.index) == ["order", "product"]  # colour is in no row; the metric counts it
    assert made.loc["order", "F1, exact"] == "1.000"
    assert made.loc["product", "F1, exact"] == "0.000"
    assert made.loc["product", "F1, shared words"] == "0.667"
    assert made.loc["product", "entities"] == "40"


def test_shares_have_their_exact_interval(panel: Panel) -> None:
    (line,) = details.rates(panel).to_dict("records")
    assert line["rows"] == "40" and line["empty"] == "0 % (0 % to 8.8 %)"


def test_groups_have_intervals_over_their_rows(panel: Panel) -> None:
    (line,) = details.groups(panel, "intent.accuracy").to_dict("records")
    assert line["acme (n = 20)"].startswith("0.700 (")


def test_every_row_of_every_cell_is_there(folder: Path) -> None:
    made = export.scores(folder, "made")
    assert len(made) == 80 and set(made["seed"]) == {0, 1}
    summary = export.table(folder, "made")
    for seed, group in made.groupby("seed"):
        (line,) = summary[summary["seed"] == seed].to_dict("records")
        assert group["intent.accuracy"].mean() == pytest.approx(line["intent.accuracy"])


def test_export_writes_rows_by_the_files_name(folder: Path) -> None:
    for name, read in (("rows.csv", pd.read_csv), ("rows.parquet", pd.read_parquet)):
        done = bench("export", "made", "--results", str(folder), "--scores", str(folder / name))
        assert done.returncode == 0 and "80 test rows" in done.stdout, done.stderr
        assert len(read(folder / name)) == 80
