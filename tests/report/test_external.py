"""`evaluate:` metrics: a number where the module loads, one clear line where it doesn't."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.report import compare, tables
from bench.report.external import Metric, NotAvailable, externals, the_number
from bench.report.headline import headline
from bench.report.rows import rows
from bench.store import read_suite

from .made import add, cell, dataset

ANSWER = [{"name": "reply", "type": "text", "metrics": ["evaluate:metrics/polite.py", "rouge_l"]}]


class FakeEvaluate(SimpleNamespace):
    """Stands in for the package, which takes seconds to import: loads local paths only."""

    loads = 0

    def load(self, name: str) -> Any:
        self.loads += 1
        if not Path(name).exists():
            raise FileNotFoundError(f"Couldn't find a module script at {name}.\nmore")
        return SimpleNamespace(compute=lambda predictions, references: {"polite": 0.25})


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch) -> FakeEvaluate:
    fake = FakeEvaluate()
    monkeypatch.setitem(sys.modules, "evaluate", fake)
    return fake


def test_a_local_metric_is_found_in_the_project(tmp_path: Path, evaluate: FakeEvaluate) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "polite.py").touch()
    metric = Metric("metrics/polite.py", tmp_path)
    assert metric(["a"], ["b"]) == 0.25
    assert metric(["a"], ["b"]) == 0.25
    assert evaluate.loads == 1


def test_without_the_hub_the_reason_is_one_line_and_asked_once(
    tmp_path: Path, evaluate: FakeEvaluate
) -> None:
    metric = Metric("wer", tmp_path)
    for _ in range(2):
        with pytest.raises(NotAvailable, match="isn't reachable from here") as caught:
            metric(["a"], ["b"])
        assert "\n" not in str(caught.value)
    assert evaluate.loads == 1


def test_without_the_package_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "evaluate", None)
    with pytest.raises(NotAvailable, match="pip install"):
        Metric("wer", tmp_path)(["a"], ["b"])


def test_a_missing_metric_is_a_reason_in_the_report(tmp_path: Path, evaluate: FakeEvaluate) -> None:
    asked = dataset(answer=ANSWER, format="plain")
    add(tmp_path, cell("m", "base", dataset=asked))
    made = rows(read_suite(tmp_path, "made"), externals([asked], tmp_path))
    (panel,) = compare.panels(made)
    line = tables.quality(panel).iloc[0]
    assert (line["metric"], line["value"]) == ("reply.evaluate:metrics/polite.py", "–")
    assert "no file metrics/polite.py in the project" in line["note"]
    # The next metric with a value is weighed instead, and that is said.
    assert panel.metric == "reply.rouge_l"
    assert "(reply.evaluate:metrics/polite.py has no value)" in headline([panel])


@pytest.mark.parametrize(
    ("found", "number"),
    [
        (0.5, 0.5),
        ({"wer": 0.5, "n": 3}, 0.5),
        ({"score": 2, "counts": [1]}, 2.0),
        ({"x": 1.5}, 1.5),
    ],
)
def test_the_one_number(found: Any, number: float) -> None:
    assert the_number(found, "metrics/wer.py") == number


def test_several_numbers_are_refused() -> None:
    with pytest.raises(NotAvailable, match="rouge1, rouge2"):
        the_number({"rouge1": 0.1, "rouge2": 0.2}, "rouge")
