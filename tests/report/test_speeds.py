"""Speeds side by side: a ratio where they may be compared, the reason where not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.report import compare, speeds
from bench.report.rows import rows
from bench.store import read_suite

from .made import ENVIRONMENT, Run, add, cell

WHOLE = {"train_rows": 80, "dropped_rows": 20, "split_rows": 1000, "threads": 2}


def line(folder: Path, method: str) -> dict[str, Any]:
    (panel,) = compare.panels(rows(read_suite(folder, "made")))
    frame = speeds.table(panel)
    return dict(frame[frame["method"] == method].iloc[0])


def test_a_ratio_and_a_predicted_epoch(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "full"), Run(step_s=0.6, train=WHOLE))
    add(tmp_path, cell("m", "lora"), Run(step_s=0.5, train=WHOLE))
    add(tmp_path, cell("m", "base"))
    found = line(tmp_path, "lora")
    assert found["speed ÷ full's"] == "1.20 (1.20 to 1.20)"
    assert found["counted steps"] == "18"
    assert found["samples/s"] == "8.00"
    # Of 100 rows 80 were kept, so of 1,000 it would be 800: at 8 a second 100 s.  80 were run.
    assert found["epoch, s (predicted)"] == "100 (100 to 100)"
    assert found["of it run"] == "10 %"
    assert line(tmp_path, "full")["speed ÷ full's"] == "1"


def test_other_threads_and_versions_forbid_it(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "full"), Run(train=WHOLE))
    other = ENVIRONMENT.model_copy(update={"packages": {"torch": "2.14.0"}})
    add(tmp_path, cell("m", "lora"), Run(train=WHOLE | {"threads": 4}, environment=other))
    assert line(tmp_path, "lora")["speed ÷ full's"] == (
        "not compared: threads: 4 against 2; torch: 2.14.0 against 2.13.0; "
        "transformers: unknown against 5.24.0"
    )


def test_without_the_reference_there_is_no_ratio(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"))
    found = line(tmp_path, "lora")
    assert found["speed ÷ full's"] == "not compared: no such run"
    assert found["epoch, s (predicted)"] == "–"  # an older record: the split's size is unknown


@pytest.mark.parametrize("method", ["lora"])
def test_a_new_protocol_is_never_compared_with_an_old_one(tmp_path: Path, method: str) -> None:
    add(tmp_path, cell("m", "full"), Run(train=WHOLE))
    add(tmp_path, cell("m", method), Run(train=WHOLE | {"timing_protocol": 2}))
    assert "timing protocol: 2 against 1" in line(tmp_path, method)["speed ÷ full's"]
