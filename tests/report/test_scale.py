"""Many cells: the report stays fast, small and readable.

A smaller one here; `make test-scale` times 2,000 cells.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from bench.report.build import build
from bench.report.parallel import mapped

from . import scale

FULL = int(os.environ.get("ADAPTBENCH_SCALE", "0"))


def test_many_entries_stay_small_and_readable(tmp_path: Path) -> None:
    for asked in scale.cells(60, models=15, datasets=1, seeds=1):
        scale.write(tmp_path, asked, rows=8)
    page = build(tmp_path, "many").with_name("index.html")
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < 2_000_000
    shown = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert shown.count("<tr>") < 150  # summary first, details folded
    # Outlines stand for text; matplotlib keeps the text as comments.
    quality = (page.parent / "charts" / "quality.desk0.svg").read_text(encoding="utf-8")
    assert "with the best scores" in quality


def test_processes_give_what_a_loop_gives() -> None:
    items = list(range(500))
    assert mapped(lambda n: n * n, items, least=2) == mapped(lambda n: n * n, items, least=10**9)


def test_an_error_in_a_process_is_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        mapped(lambda n: 1 // n, list(range(500)), least=2)
    assert mapped(lambda n: n, [1, 2], least=2) == [1, 2]  # and the next call works


@pytest.mark.skipif(not FULL, reason="minutes of writing: make test-scale")
def test_report_of_thousands_within_a_minute(tmp_path: Path) -> None:
    """Of CPU time on two cores, so that other work on the machine doesn't decide."""
    for asked in scale.cells(FULL, models=FULL // 50, datasets=3):
        scale.write(tmp_path, asked)
    started, busy = time.perf_counter(), sum(os.times()[:4])
    page = build(tmp_path, "many").with_name("index.html")
    cpu_s = sum(os.times()[:4]) - busy
    print(f"{FULL} cells: {cpu_s:.0f} s of CPU, {time.perf_counter() - started:.0f} s of wall")
    print(f"page: {page.stat().st_size / 1e6:.1f} MB")
    assert cpu_s < 120
