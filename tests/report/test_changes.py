"""bench compare and bench export: what moved, whether it may be compared, what is written."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from bench.errors import UserError
from bench.report import changes

from ..conftest import bench
from .made import ENVIRONMENT, Run, add, cell


def pair(folder: Path, a: Run, b: Run) -> changes.Comparison:
    for name, run in (("a", a), ("b", b)):
        add(folder / name, cell("m", "lora"), run)
    panels = [changes.load(str(folder / name / "made"), folder) for name in ("a", "b")]
    return changes.changes(*panels)


def test_a_drop_beyond_noise(tmp_path: Path) -> None:
    found = pair(tmp_path, Run(right=0.9, rows=200), Run(right=0.5, rows=200))
    (change,) = found.changes
    assert change.verdict and change.verdict.outcome == "worse"
    assert change.found and change.found.value == pytest.approx(-0.4, abs=0.1)
    assert not found.obstacles
    assert changes.table(found)["beyond noise"][0].startswith("yes: worse")


def test_no_change_is_within_noise(tmp_path: Path) -> None:
    found = pair(tmp_path, Run(), Run())
    assert changes.table(found)["beyond noise"][0].startswith("no: ")


def test_another_machine_and_other_versions_are_said_and_speeds_not_compared(
    tmp_path: Path,
) -> None:
    other = ENVIRONMENT.model_copy(update={"cpu": "Xeon", "packages": {"torch": "2.12"}})
    found = pair(tmp_path, Run(), Run(environment=other))
    text = "; ".join(found.obstacles)
    assert "different machines" in text and "torch: 2.13.0 → 2.12" in text
    assert changes.table(found)["tokens/s"][0].startswith("not compared")


def test_other_data_are_said(tmp_path: Path) -> None:
    a, b = ({"rows_fingerprint": name} for name in ("aaaa", "bbbb"))
    found = pair(tmp_path, Run(generate=a), Run(generate=b))
    assert "different test rows: aaaa against bbbb" in "; ".join(found.obstacles)


def test_nothing_in_common_is_one_line(tmp_path: Path) -> None:
    add(tmp_path / "a", cell("m", "lora"))
    add(tmp_path / "b", cell("other", "lora"))
    panels = [changes.load(str(tmp_path / name / "made"), tmp_path) for name in ("a", "b")]
    with pytest.raises(UserError, match="nothing to compare"):
        changes.changes(*panels)


def test_export_keeps_types(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "base"))
    file = tmp_path / "cells.parquet"
    done = bench("export", "made", "--results", str(tmp_path), "--parquet", str(file))
    assert done.returncode == 0, done.stderr
    frame = pd.read_parquet(file)
    assert frame["intent.accuracy"][0] == pytest.approx(0.7)
    assert pd.api.types.is_integer_dtype(frame["seed"].dtype)
