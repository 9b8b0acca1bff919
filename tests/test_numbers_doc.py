"""docs/numbers.md: its code runs as printed, and finds the numbers of the committed report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.report import compare, fits, show
from bench.report.rows import rows
from bench.score.components import components
from bench.score.resample import mean_of
from bench.store import cell_folder, read_suite

from .conftest import ROOT
from .report import scale

DOC = (ROOT / "docs" / "numbers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
REPORT = ROOT / "results" / "quick" / "report"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the code of the page leaves in its variables."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for block in BLOCKS:
            exec(block, found)
    return found


@pytest.fixture(scope="module")
def summary() -> pd.DataFrame:
    return pd.read_csv(REPORT / "summary.csv").set_index("method")


def difference(a: str, b: str, metric: str) -> pd.Series:
    frame = pd.read_csv(REPORT / "differences.csv").query("metric == @metric")
    return frame[(frame["a_method"] == a) & (frame["b_method"] == b)].iloc[0]


def markdown_row(title: str, *cells: str) -> list[str]:
    """The first line of the table under a title that begins with these cells."""
    table = (REPORT / "report.md").read_text(encoding="utf-8").partition(f"**{title}**")[2]
    for line in table.splitlines():
        found = [cell.strip() for cell in line.strip("|").split("|")]
        if found[: len(cells)] == list(cells):
            return found
    raise AssertionError(f"no row {cells} under {title}")


def test_blocks_are_short() -> None:
    assert BLOCKS and max(len(block.splitlines()) for block in BLOCKS) <= 12


def test_scores_and_their_intervals(names: dict[str, Any], summary: pd.DataFrame) -> None:
    row = summary.loc["lora"]
    assert names["accuracy"] == pytest.approx(row["intent.accuracy"])
    assert names["low"] == pytest.approx(row["intent.accuracy_low"], abs=0.04)  # one row: 0.031
    assert names["high"] == pytest.approx(row["intent.accuracy_high"], abs=0.04)
    assert names["f1_value"] == pytest.approx(row["intent.f1"], abs=1e-5)
    assert names["macro_f1"] == pytest.approx(row["intent.f1"], abs=1e-5)
    assert list(names["f1_interval"]) == pytest.approx(
        [row["intent.f1_low"], row["intent.f1_high"]], abs=0.03
    )
    assert names["entity_f1"] == pytest.approx(row["entities.entity_f1"], abs=1e-5)
    assert names["shared_words_f1"] >= names["entity_f1"]
    assert names["bleu"] == pytest.approx(row["reply.bleu"], abs=1e-3)
    assert len(names["by_group"]) == 4


def test_labels_and_rates(names: dict[str, Any], summary: pd.DataFrame) -> None:
    for label, value in names["f1_of_label"].items():
        row = markdown_row("Each label", "smollm2-135m", "lora", "intent", label)
        assert float(row[5]) == pytest.approx(value, abs=5e-4)
    base = summary.loc["base"]
    assert names["invalid_share"] == pytest.approx(base["intent_invalid_share"])
    assert names["cut_off_share"] == pytest.approx(base["truncated_share"])
    shown = markdown_row("Answers that could not count", "smollm2-135m", "base")[3]
    values = (base["intent_invalid_share"], *names["invalid_interval"])
    assert [float(x) for x in re.findall(r"[\d.]+", shown)] == pytest.approx(
        [100 * value for value in values], abs=0.5
    )


def test_differences(names: dict[str, Any]) -> None:
    row = difference("lora", "base", "intent.accuracy")
    assert names["gain"].mean() == pytest.approx(row["value"])
    assert list(names["interval"]) == pytest.approx([row["low"], row["high"]], abs=0.035)
    assert names["p"] == pytest.approx(row["p_rows"], abs=0.01)
    assert len(names["gain"]) == row["n"]


def test_equivalence_rows_needed_and_holm(names: dict[str, Any]) -> None:
    row = difference("lora", "full", "reply.rouge_l")
    assert row["margin"] == names["delta"]
    assert names["p_equivalent"] == pytest.approx(row["p_equivalent"], abs=0.02)
    assert names["rows_needed"] == pytest.approx(row["rows_needed"], rel=0.1)
    assert list(names["p_holm"]) == pytest.approx(list(names["tests"]["p_holm"]), abs=1e-5)


def test_groups(names: dict[str, Any]) -> None:
    row = markdown_row("reply.rouge_l, gain over the untuned model", "smollm2-135m", "lora")
    assert row[-3] == names["worst"]
    assert float(row[-2]) == pytest.approx(names["spread"], abs=5e-4)
    assert float(row[-1]) == pytest.approx(names["p_alike"], abs=0.06)


def test_speed_memory_and_money(names: dict[str, Any], summary: pd.DataFrame) -> None:
    row = summary.loc["lora"]
    assert names["tokens_per_s"] == pytest.approx(row["tokens_per_s"], rel=1e-5)
    assert names["usd"] == pytest.approx(row["cost_usd"], rel=1e-5)
    assert names["usd_range"] == pytest.approx(
        [row["cost_low_usd"], row["cost_high_usd"]], rel=1e-5
    )
    assert names["peak_gib"] == pytest.approx(row["train_peak_host_above_baseline_gib"], rel=1e-5)
    assert names["trainable_share"] == pytest.approx(row["trainable_share"], rel=1e-5)
    assert names["target"] == pytest.approx(row["target_loss_nats"], rel=1e-5)
    assert names["reached_s"] == pytest.approx(summary.loc["full"]["time_to_target_s"], rel=1e-5)
    between = summary.loc["full"]["time_to_target_interpolated_s"]
    assert names["interpolated_s"] == pytest.approx(between, rel=1e-5)
    shown = markdown_row("Speed against the reference", "smollm2-135m", "lora")
    assert float(re.findall(r"[\d.]+", shown[5])[0]) == pytest.approx(
        names["speed_ratio"], abs=0.005
    )
    assert float(shown[6].split()[0]) == pytest.approx(names["epoch_s"], rel=0.002)


def test_intervals_of_speed_and_restricted_means(
    names: dict[str, Any], summary: pd.DataFrame
) -> None:
    row = summary.loc["lora"]
    assert list(names["speed_interval"]) == pytest.approx(
        [row["tokens_per_s_low"], row["tokens_per_s_high"]], rel=0.03
    )
    for method in ("full", "lora", "qlora"):
        shown = markdown_row("Time to target", "smollm2-135m", method)[-1]
        value, cut = (float(number) for number in re.findall(r"[\d.]+", shown))
        assert names["restricted_s"][method] == pytest.approx(value, rel=2e-3)
        assert names["cut_s"] == pytest.approx(cut, rel=2e-3)


def test_noise_of_rows_and_seeds(names: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(0.5, 0.2, 30) + rng.normal(0, 0.1, (3, 1)) + rng.normal(0, 0.1, (3, 30))
    found = components([mean_of(list(line)) for line in table])
    assert found
    expected = [found.sd_rows, found.sd_seeds]
    assert list(names["noise"](pd.DataFrame(table))) == pytest.approx(expected, rel=1e-6)


def test_predicted_against_measured(names: dict[str, Any], tmp_path: Path) -> None:
    asked = next(c for c in scale.cells(40, 4) if c.method.name == "lora")
    scale.write(tmp_path, asked)
    made = rows(read_suite(tmp_path, "many"))
    panels = compare.panels(made)
    (shown,) = fits.errors(panels).to_dict("records")
    (entry,) = panels[0].entries
    assert entry.speed and entry.cost
    found = names["off_by"](cell_folder(tmp_path, asked), entry.speed.value, entry.cost.value)
    told = [shown[f"{name} off by"] for name in ("reserved, GiB", "tokens/s", "cost, USD")]
    assert [f"{'+' if off > 0 else '−'}{show.share(abs(off))}" for off in found] == told


def test_a_claim(names: dict[str, Any]) -> None:
    page = (ROOT / "results" / "prod" / "report" / "report.md").read_text(encoding="utf-8")
    line = next(row for row in page.splitlines() if names["claim"]["text"] in row)
    _, _, verdict, here, *_ = (cell.strip() for cell in line.split("|"))
    assert verdict == names["verdict"]
    told = [float(number) for number in re.findall(r"×([\d.]+)", here)]
    for number in told:
        assert any(number == pytest.approx(ratio, rel=2e-3) for ratio in names["ratios"])
    assert len(told) == 3 and len(names["ratios"]) == 4


def test_constants_of_the_page_are_those_of_the_code() -> None:
    from bench.score import resample, significance

    assert f"{resample.RESAMPLES:,} resamples" in DOC
    assert f"{significance.RESAMPLES:,} resamples" in DOC
    assert f"{significance.ROUNDS:,} rounds" in DOC
    assert pytest.approx(0.05) == significance.ALPHA and significance.POWER == 0.8


def test_paths_of_the_page_exist() -> None:
    for path in re.findall(r"`((?:bench|tests)/[\w/]+\.py)`", DOC):
        assert (ROOT / Path(path)).is_file(), path
