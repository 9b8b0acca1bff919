"""The whole report: complete, the same bytes every time, and honest about what failed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.errors import UserError
from bench.record import Status
from bench.report.build import build

from .conftest import BIG
from .made import Run, add, add_cell, add_failed, cell, gpu_target

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from bench.report.__main__ import main
code = main(sys.argv[1:])
heavy = {"torch", "transformers", "evaluate", "bench.fit", "bench.worker", "bench.run"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def report(results: Path) -> Path:
    return build(results, "made").parent


def bytes_of(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def cli(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", CODE, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_redrawing_gives_the_same_bytes_in_another_process(report: Path, results: Path) -> None:
    before = bytes_of(report)
    (report / "charts" / "memory.gone.png").write_bytes(b"of an earlier report")
    done = cli("made", "--results", "results", cwd=results.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "results/made/report/report.md"
    after = bytes_of(report)
    assert sorted(after) == sorted(before)
    assert [name for name in after if after[name] != before[name]] == []


def test_every_chart_is_there_twice_and_shown(report: Path) -> None:
    kinds = ("cost-quality", "quality", "forest", "groups", "memory", "loss", "speed")
    names = {path.name for path in (report / "charts").iterdir()}
    stems = [*(f"{kind}.desk" for kind in kinds), "fit"]
    assert names == {f"{stem}.{ending}" for stem in stems for ending in ("png", "svg")}
    page = (report / "report.md").read_text()
    for link in re.findall(r"\]\(([^)]+)\)", page):
        assert (report / link).exists(), link


def test_nothing_in_the_files_changes_by_itself(report: Path) -> None:
    for path in (report / "charts").iterdir():
        data = path.read_bytes()
        for word in (b"matplotlib v", b"Software", b"<dc:date>", b"tIME", b"Matplotlib"):
            assert word not in data, (path.name, word)


def test_foreign_text_breaks_no_chart(report: Path) -> None:
    for path in (report / "charts").glob("*.svg"):
        names = {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}
        assert "script" not in names


def test_failed_cells_are_on_the_charts(report: Path) -> None:
    # Text is drawn as outlines; matplotlib keeps it as comments.
    memory = (report / "charts" / "memory.desk.svg").read_text()
    assert "oom_host in train" in memory and "timeout" in memory and "not run" in memory
    assert "oom_host" in (report / "charts" / "quality.desk.svg").read_text()
    assert "Without a point" in (report / "charts" / "cost-quality.desk.svg").read_text()


def test_the_target_line_is_drawn(report: Path) -> None:
    assert "target 1.6" in (report / "charts" / "loss.desk.svg").read_text()


def test_the_page_says_what_failed_and_where_numbers_come_from(report: Path) -> None:
    page = (report / "report.md").read_text()
    failures = page.partition("## What did not work")[2].partition("## What ran")[0]
    for reason in ("over 60 s", "signal 9", "loss is NaN", "needs a GPU", "no attempt was made"):
        assert reason in failures
    assert page.count(BIG) > 5
    assert "Example Cloud, 2026-09-20" in page
    assert "Commit: 0123456789ab" in page
    assert "/attempt-001/events.jsonl)" in page
    assert "host RSS above baseline" in page


def test_only_failed_cells(tmp_path: Path) -> None:
    asked = cell("m", "full", target=gpu_target())
    add_failed(tmp_path, asked, Status.OOM_GPU, "CUDA out of memory", memory={}, stage_s={})
    add_cell(tmp_path, cell("m", "lora", target=gpu_target()))
    folder = add_cell(tmp_path, cell("m", "qlora", target=gpu_target()))
    (folder / "attempt-001").mkdir()
    page = build(tmp_path, "made").read_text()
    assert "0 of 3 cells worked" in page
    assert "CUDA out of memory" in page
    assert "No chart “Cost against quality”" in page


def test_one_cell_without_scores(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "base"), Run(rows=0))
    page = build(tmp_path, "made").read_text()
    assert "no predictions" in page
    assert "All 1 cell worked" in page


def test_missing_results_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no results in"):
        build(tmp_path, "made")
