"""Which entries are tested, on which rows, and what the page says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench.report import compare, differences, pairs
from bench.report.build import build
from bench.report.compare import Entry, Panel
from bench.report.headline import headline
from bench.report.rows import rows
from bench.spec import Comparison
from bench.store import append_line, attempt_folders, read_suite

from .conftest import BIG
from .made import Run, add, cell, prediction

ASKED = Comparison(margin=0.05)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / "results"
    for method, rights in {"base": (0.2,), "full": (0.8,), "lora": (0.78, 0.8, 0.79)}.items():
        for seed, right in enumerate(rights):
            add(folder, cell("m", method, seed, comparison=ASKED), Run(right=right, rows=200))
    add(folder, cell(BIG, "full", comparison=ASKED), Run(right=0.6, rows=200))
    add(folder, cell(BIG, "lora", comparison=ASKED), Run(right=0.6, rows=150))
    return folder


@pytest.fixture(scope="module")
def panel(desk: Path) -> Panel:
    return panel_of(desk)


def panel_of(folder: Path) -> Panel:
    (found,) = pairs.tested(compare.panels(rows(read_suite(folder, "made"))))
    return found


def entry(panel: Panel, model: str, method: str) -> Entry:
    return next(e for e in panel.entries if e.model == model and e.method == method)


def test_within_a_model_all_are_tested_and_across_only_the_best(panel: Panel) -> None:
    met = {
        (p.a.model[0] + p.a.method, p.b.model[0] + p.b.method)
        for p in panel.pairs
        if p.metric == "reply.rouge_l"
    }
    assert met == {
        ("mfull", "mbase"), ("mlora", "mbase"), ("mlora", "mfull"), ("alora", "afull"),
        ("afull", "mfull"), ("alora", "mfull"),
    }  # fmt: skip
    second = [p for p in panel.pairs if p.metric == "intent.f1"]
    assert all(p.a.model == p.b.model for p in second)
    assert {p.family for p in panel.pairs} == {10}  # 5 entries: 10 pairs might have been tested


def test_a_difference_is_the_difference_of_the_scores(panel: Panel) -> None:
    """On shared rows; and the mean over seeds, as everywhere in the report."""
    pair = panel.pair(entry(panel, "m", "base"), entry(panel, "m", "lora"), "intent.accuracy")
    assert pair and pair.difference
    assert pair.difference.value == pytest.approx(0.79 - 0.2)
    assert pair.roles == ("base",) and pair.difference.seeds == (3, 1)
    assert pair.difference.scope == "rows and seeds"


def test_only_rows_that_both_answered_count(panel: Panel) -> None:
    pair = panel.pair(entry(panel, BIG, "lora"), entry(panel, BIG, "full"), "reply.bleu")
    assert pair and pair.difference and pair.difference.n == 150


def test_a_row_whose_truth_was_changed_is_another_row(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "base"), Run(rows=30))
    folder = add(tmp_path, cell("m", "full"), Run(rows=30))
    path = attempt_folders(folder)[0] / "predictions.jsonl"
    path.unlink()
    for number in range(30):
        made = prediction(number, Run(rows=30))
        if number < 10:
            made = made.model_copy(update={"reference": {"reply": "new", "intent": "other"}})
        append_line(path, made)
    found = panel_of(tmp_path)
    pair = found.pair(*found.entries, "reply.rouge_l")  # type: ignore[call-arg]
    assert pair and pair.difference and pair.difference.n == 20


def test_no_row_in_common_is_said(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "base"), Run(rows=10))
    folder = add(tmp_path, cell("m", "full"), Run(rows=10))
    path = attempt_folders(folder)[0] / "predictions.jsonl"
    path.write_text(path.read_text().replace("row-", "other-"))
    found = panel_of(tmp_path)
    text = differences.table(found, "reply.rouge_l").to_string()
    assert "not compared: no test row was answered by both" in text


def test_groups_as_clusters_are_drawn_whole(desk: Path, panel: Panel) -> None:
    asked = ASKED.model_copy(update={"cluster": "group"})
    changed = [
        replace(row, cell=row.cell.model_copy(update={"comparison": asked}))
        for row in rows(read_suite(desk, "made"))
    ]
    (clustered,) = pairs.tested(compare.panels(changed))
    assert {p.difference.units for p in clustered.pairs if p.difference} == {2}  # two tenants
    assert "200 in 2 groups" in differences.table(clustered, "reply.rouge_l").to_string()
    assert {p.difference.units for p in panel.pairs if p.difference} == {150, 200}


def test_the_headline_says_what_the_tests_say(panel: Panel) -> None:
    text = headline([panel])
    assert "overlap" not in text
    assert "It is better than " in text
    assert "m × lora: no difference from it larger than 0.05." in text


def test_without_a_margin_close_ones_are_not_resolved(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "full"), Run(right=0.8))
    add(tmp_path, cell("m", "lora"), Run(right=0.75))  # of 40 rows two differ
    text = headline([panel_of(tmp_path)])
    assert "Not resolved against it: lora." in text
    assert "larger than" not in text


def test_gains_hold_each_group_and_its_interval(panel: Panel) -> None:
    found = pairs.gains(panel, entry(panel, "m", "full"), "intent.accuracy")
    assert set(found) == {"acme", "globex"}
    for gain in found.values():
        assert gain.value == pytest.approx(0.6) and gain.n == 100
        assert gain.low is not None and 0.4 < gain.low < 0.6
    assert pairs.gains(panel, entry(panel, "m", "base"), "intent.accuracy") == {}
    assert pairs.gains(panel, entry(panel, BIG, "lora"), "intent.accuracy") == {}  # has no base


def test_noise_is_told_of_entries_with_several_seeds(panel: Panel) -> None:
    frame = differences.noise(panel)
    assert set(frame["method"]) == {"lora"}
    assert set(frame["seeds"]) == {"3"}


def test_the_page_and_the_csv_hold_the_pairs(desk: Path) -> None:
    report = build(desk, "made")
    text = report.read_text()
    assert "## Differences" in text and "δ = 0.05" in text and "worst" in text
    frame = pd.read_csv(report.parent / "differences.csv")
    line = frame.query("metric == 'reply.rouge_l' and a_method == 'lora' and b_method == 'full'")
    line = line[line["a_model"] == "m"].iloc[0]
    assert line["verdict"] == "no difference larger than 0.05"
    assert line["value"] == pytest.approx(-0.01)
    assert line["family"] == 10 and line["p_holm"] >= line["p"]
    assert np.isnan(line["se_seeds"])  # full has one seed: other seeds aren't allowed for
