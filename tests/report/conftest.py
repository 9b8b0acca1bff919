"""One results folder with everything that can happen to a cell, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.record import Status
from bench.report.rows import Row, rows
from bench.store import read_suite

from .made import GIB, Run, add, add_cell, add_failed, cell

BIG = "a-model-with-a-name-so-long-that-it-breaks-narrow-charts-235b-a22b-thinking-2507"
NASTY = 'needs | 9 GiB <script>alert("x")</script> `code` *bold* $x$ 内存不足\nsecond line\x1b[31m'


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project") / "results"
    small = "smollm2-135m"
    add(folder, cell(small, "base"), Run(right=0.2, wall_s=(0.0, 40.0)))
    add(folder, cell(small, "full"), Run(right=0.8, loss=(3.0, 1.2), wall_s=(150.0, 50.0)))
    for seed, right in enumerate((0.6, 0.7, 0.8)):
        add(folder, cell(small, "lora", seed), Run(right=right, peak_bytes=(3 + seed) * GIB))
    # Better and cheaper than all others, but not what it is called.
    fake = Run(right=1.0, wall_s=(1.0, 1.0), audit={"problems": ["no weight is held in 4 bit"]})
    add(folder, cell(small, "qlora"), fake)
    add(folder, cell(BIG, "base"), Run(right=0.3, wall_s=(0.0, 80.0)))
    add_failed(folder, cell(BIG, "full"), Status.OOM_HOST, NASTY, stage="train")
    add_failed(folder, cell(BIG, "lora"), Status.TIMEOUT, "over 60 s", stage="train")
    add_failed(folder, cell(BIG, "qlora"), Status.SKIPPED, "needs a GPU", memory={}, stage_s={})
    add_failed(folder, cell(BIG, "lora", 1), Status.KILLED, "signal 9", stage="load")
    add_failed(folder, cell(BIG, "lora", 2), Status.DIVERGED, "loss is NaN", stage="train")
    add_cell(folder, cell(BIG, "lora-r64"))
    return folder


@pytest.fixture(scope="session")
def made_rows(results: Path) -> list[Row]:
    return rows(read_suite(results, "made"))
