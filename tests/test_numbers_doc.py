"""docs/numbers.md: its code runs as printed, and finds the numbers of the report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.report.build import build

from .conftest import ROOT
from .report.made import Run, add, cell

DOC = (ROOT / "docs" / "numbers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What the code of the page leaves in its variables, and the report's folder."""
    project = tmp_path_factory.mktemp("project")
    add(project / "results", cell("m", "base"), Run(right=0.4, rows=120))
    add(project / "results", cell("m", "lora"), Run(right=0.6, rows=120, loss=(3.0, 1.2)))
    report = build(project / "results", "made").parent
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        for block in BLOCKS:
            exec(block.replace("results/quick", "results/made"), names)
    return names, report


def line(found: tuple[dict[str, Any], Path], method: str = "lora") -> pd.Series:
    frame = pd.read_csv(found[1] / "summary.csv")
    return frame[frame["method"] == method].iloc[0]


def test_blocks_are_short() -> None:
    assert BLOCKS and max(len(block.splitlines()) for block in BLOCKS) <= 12


def test_scores_and_their_intervals(found: tuple[dict[str, Any], Path]) -> None:
    names, row = found[0], line(found)
    assert names["accuracy"] == pytest.approx(row["intent.accuracy"])
    assert names["low"] == pytest.approx(row["intent.accuracy_low"], abs=0.02)
    assert names["high"] == pytest.approx(row["intent.accuracy_high"], abs=0.02)
    assert names["f1_value"] == pytest.approx(row["intent.f1"], abs=1e-5)
    assert list(names["f1_interval"]) == pytest.approx(
        [row["intent.f1_low"], row["intent.f1_high"]], abs=0.02
    )
    assert set(names["by_group"].index) == {"acme", "globex"}


def test_differences(found: tuple[dict[str, Any], Path]) -> None:
    names = found[0]
    frame = pd.read_csv(found[1] / "differences.csv").query("metric == 'intent.accuracy'")
    row = frame[frame["a_method"] == "lora"].iloc[0]
    assert names["gain"].mean() == pytest.approx(row["value"])
    assert list(names["interval"]) == pytest.approx([row["low"], row["high"]], abs=0.015)
    assert names["p"] == pytest.approx(row["p_rows"], abs=0.005)
    assert len(names["gain"]) == row["n"]


def test_speed_and_money(found: tuple[dict[str, Any], Path]) -> None:
    names, row = found[0], line(found)
    assert names["tokens_per_s"] == pytest.approx(row["tokens_per_s"])
    assert names["usd"] == pytest.approx(row["cost_usd"])
    assert names["s_per_row"] == pytest.approx(0.5 / 4)
    assert names["reached"] == pytest.approx(row["time_to_target_s"])
    assert names["interpolated"] == pytest.approx(row["time_to_target_interpolated_s"])


def test_constants_of_the_page_are_those_of_the_code() -> None:
    from bench.score import resample, significance

    assert f"{resample.RESAMPLES:,} resamples" in DOC
    assert f"{significance.RESAMPLES:,} resamples" in DOC
    assert f"{significance.ROUNDS:,} rounds" in DOC
    assert pytest.approx(0.05) == significance.ALPHA and significance.POWER == 0.8
