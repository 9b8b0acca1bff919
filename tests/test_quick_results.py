"""The committed results of `quick`: adapting taught something, and the report is theirs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bench import store
from bench.score.quality import Quality, score

from .conftest import ROOT, bench


@pytest.fixture(scope="module")
def qualities() -> dict[str, Quality]:
    found = store.read_suite(ROOT / "results", "quick")
    latest = {r.cell.method.name: (r.cell.dataset, r.latest) for r in found}
    return {
        name: score(dataset, attempt.predictions)
        for name, (dataset, attempt) in latest.items()
        if attempt is not None
    }


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("metric", ["reply.rouge_l", "reply.bleu", "intent.f1"])
def test_adapting_beats_the_untuned_model(
    qualities: dict[str, Quality], method: str, metric: str
) -> None:
    value = qualities[method].metrics[metric].value
    base = qualities["base"].metrics[metric].value
    assert value is not None and base is not None and value > base + 0.1


@pytest.mark.parametrize("suite", ["quick", "prod"])  # measured, and only planned
def test_the_committed_report_is_what_the_results_give(suite: str, tmp_path: Path) -> None:
    """The text; that charts are redrawn byte for byte is tested where they were drawn."""
    shutil.copytree(ROOT / "results" / suite, tmp_path / suite)
    report = tmp_path / suite / "report"
    before = (report / "report.md").read_bytes()
    page = _without_charts(report / "index.html")
    (report / "report.md").unlink()
    (report / "index.html").unlink()
    done = bench("report", suite, "--results", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (report / "report.md").read_bytes() == before
    assert _without_charts(report / "index.html") == page


def _without_charts(page: Path) -> str:
    return re.sub(r"<svg.*?</svg>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
