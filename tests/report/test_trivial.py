"""Trivial answers in the report: a floor that others are tested against."""

from __future__ import annotations

from pathlib import Path

from bench.report import compare, pairs
from bench.report.headline import headline
from bench.report.rows import rows
from bench.report.threats import threats
from bench.spec import MethodSpec
from bench.store import read_suite

from .made import Run, add, cell


def test_a_floor_is_tested_against_and_named(tmp_path: Path) -> None:
    floor = MethodSpec(name="majority", kind="majority", optimizer=None)
    few = MethodSpec(name="base-4shot", kind="base", optimizer=None, shots=4)
    add(tmp_path, cell("m", "base", method=few), Run(right=0.3))
    add(tmp_path, cell("m", "base"), Run(right=0.2))
    add(tmp_path, cell("m", "majority", method=floor), Run(right=0.25, wall_s=(0.0, 1.0)))
    add(tmp_path, cell("m", "lora"), Run(right=0.9))
    (panel,) = pairs.tested(compare.panels(rows(read_suite(tmp_path, "made"))))
    by_name = {entry.method: entry for entry in panel.entries}
    lora = panel.pair(by_name["lora"], by_name["majority"], panel.metric)
    assert lora and lora.a.method == "lora" and lora.roles == ("trivial", "best is A")
    assert lora.verdict and lora.verdict.outcome == "better"
    assert panel.base(by_name["lora"]) is by_name["base"]  # zero-shot, although few-shot is first
    said = "\n".join(threats([panel]))
    assert "m × base isn't shown to be better than majority" in said
    assert "m × lora isn't" not in said
    assert "Cheapest model run is base" in headline([panel])  # of what looks at the prompt
