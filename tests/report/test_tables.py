"""Tables print what rows hold, a dash for what is unknown, and survive any text."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pandas as pd
import pytest

from bench.report import compare, details, frames, show, tables
from bench.report import summary as summaries
from bench.report.rows import Row, rows
from bench.store import read_suite

from .made import GIB, Run, add, add_cell, cell


def summary(made: list[Row]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(frames.csv(summaries.summary(made)))))


def test_summary_has_one_line_a_cell_with_hand_checked_numbers(tmp_path: Path) -> None:
    run = Run(
        right=0.7, wall_s=(100.0, 50.0), peak_bytes=4 * GIB, audit={"total_params": 6_738_415_616}
    )
    add(tmp_path, cell("m", "lora"), run)
    (line,) = summary(rows(read_suite(tmp_path, "made")))
    expected = {
        "model": "m",
        "status": "ok",
        "compared": "True",
        "intent.accuracy": "0.7",
        "test_rows_scored": "40",
        "tokens_per_s": "200.0",
        "step_s": "0.5",
        "padding_share": "0.2",
        "steps": "20",
        "tokens": "2000",
        "training_steps_s": "10.0",
        "cost_usd": "0.015",
        "cost_low_usd": "0.0075",
        "cost_high_usd": "0.03",
        "training_steps_cost_usd": "0.001",
        "train_peak_host_gib": "5.0",
        "train_peak_host_above_baseline_gib": "4.0",
        "train_peak_reserved_gib": "",
        "total_params": "6738415616",
        "attempt": "attempt-001",
    }
    assert {key: line[key] for key in expected} == expected
    assert line["events"].endswith("/attempt-001/events.jsonl")
    assert (tmp_path / "made" / "report" / line["events"]).resolve().exists()


def test_summary_leaves_the_unknown_empty(tmp_path: Path) -> None:
    add_cell(tmp_path, cell("m", "lora"))
    (line,) = summary(rows(read_suite(tmp_path, "made")))
    assert (line["status"], line["reason"]) == ("not run", "no attempt was made")
    for column in ("cost_usd", "tokens_per_s", "steps", "train_wall_s", "trainable_share"):
        assert line[column] == ""


def test_every_failed_cell_is_in_the_failures_with_its_reason(made_rows: list[Row]) -> None:
    frame = tables.failures(made_rows)
    assert sorted(frame["status"]) == [
        "diverged", "invalid", "killed", "not run", "oom_host", "skipped", "timeout",
    ]  # fmt: skip
    assert "no weight is held in 4 bit" in set(frame["why"])


def test_foreign_text_breaks_no_table(made_rows: list[Row]) -> None:
    text = frames.markdown(tables.failures(made_rows))
    lines = text.splitlines()
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert len(bars) == 1  # every line has the same number of cells
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert "内存不足 second line" in text
    assert "\x1b" not in text


def test_people_see_a_dash_where_nothing_is_known(made_rows: list[Row]) -> None:
    (panel,) = compare.panels(made_rows)
    frame = tables.entries(panel)
    line = frame[(frame["status"] == "skipped")].iloc[0]
    assert [line["reply.rouge_l"], line["cost, USD"], line["peak, GiB"]] == [show.NONE] * 3
    assert line["Pareto"] == ""


def test_partly_failed_seeds_are_told(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"))
    add_cell(tmp_path, cell("m", "lora", 1))
    (panel,) = compare.panels(rows(read_suite(tmp_path, "made")))
    assert list(tables.entries(panel)["status"]) == ["ok (1 of 2 seeds)"]


def test_all_tables_render(made_rows: list[Row]) -> None:
    (panel,) = compare.panels(made_rows)
    made: list[pd.DataFrame] = [
        table(panel)
        for table in (tables.entries, tables.quality, details.rates, tables.memory, tables.time)
    ]
    made += [
        details.groups(panel, "intent.f1"),
        details.classes(panel),
        tables.weights(made_rows),
        tables.sources(made_rows),
    ]
    for frame in made:
        assert len(frames.markdown(frame).splitlines()) == len(frame) + 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (0.002134, "0.00213"), (0.99996, "1.00"), (41.26, "41.3"),
     (523.4, "523"), (5230.2, "5,230"), (-0.5, "-0.500")],
)  # fmt: skip
def test_numbers(value: float | None, text: str) -> None:
    assert show.number(value) == text


def test_scores_and_differences() -> None:
    assert [show.score(v) for v in (None, 0.0, 0.4126, 1.0, 41.26)] == [
        "–", "0.000", "0.413", "1.000", "41.3",
    ]  # fmt: skip
    assert [show.signed(v) for v in (None, 0.123, -0.001, -3.44)] == ["–", "+0.12", "0.00", "−3.4"]
    assert [show.share(v) for v in (None, 0.0, 0.0123, 1.0)] == ["–", "0 %", "1.2 %", "100 %"]


def test_words_keep_their_underscores() -> None:
    assert show.markdown("oom_host __init__") == r"oom_host \_\_init\_\_"
