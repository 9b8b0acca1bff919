"""Claims: the shipped files load, and each kind gets the verdict that the numbers give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.errors import UserError
from bench.report import claims, compare, pairs
from bench.report.claims import Finding
from bench.report.rows import rows
from bench.spec import Claim, ClaimFile
from bench.store import read_suite

from . import scale
from .made import Run, add, cell, gpu_target

ROOT = Path(__file__).parents[2]


def judged(results: Path, measure: dict[str, Any], expect: dict[str, Any], **more: Any) -> Finding:
    claim = {"id": "c", "text": "It is so.", "measure": measure, "expect": expect} | more
    source = {"title": "An article"}
    file = ClaimFile.model_validate({"name": "f", "source": source, "claims": [claim]})
    panels = pairs.tested(compare.panels(rows(read_suite(results, "made"))))
    (found,) = claims.judge([file], panels)
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("claims")
    for method, right, wall in (("base", 0.2, 0.0), ("full", 0.8, 300.0), ("qlora", 0.6, 100.0)):
        add(folder, cell("m", method), Run(right=right, rows=100, wall_s=(wall, 0.0)))
    asked = cell("big", "qlora", target=gpu_target("1xl40s-48gb", device_memory_gib=44.4))
    asked = asked.model_copy(update={"model": asked.model.model_copy(update={"params": 10**10})})
    scale.write(folder, asked, run=False)
    return folder


def test_shipped_claims_load_and_are_all_judged() -> None:
    files = claims.read(ROOT / "suites" / "claims")
    panels = compare.panels(rows(read_suite(ROOT / "results", "quick")))
    found = claims.judge(files, panels)
    assert len(found) == sum(len(file.claims) for file in files) == 17
    assert {finding.verdict for finding in found} == {"can't be tested here"}
    assert all(finding.reason for finding in found)


@pytest.mark.parametrize(
    ("measure", "expect", "verdict"),
    [
        ({"what": "usd", "method": "full", "against": "qlora"}, {"low": 2.9, "high": 3.1},
         "confirmed"),
        ({"what": "usd", "method": "full", "against": "qlora"}, {"low": 8}, "contradicted"),
        ({"what": "score", "method": "qlora", "against": "base", "combine": "difference",
          "metric": "accuracy"}, {"low": 0.39, "high": 0.41}, "confirmed"),
        ({"what": "same_score", "method": "qlora", "against": "full"}, {"holds": True},
         "contradicted"),
        ({"what": "lowest_group_gain", "method": "qlora", "metric": "accuracy"}, {"low": 0.3},
         "confirmed"),
        ({"what": "fits", "method": "qlora"}, {"holds": True}, "confirmed"),
        ({"what": "device_gib", "method": "qlora", "unsharded": True}, {"high": 5},
         "can't be tested here"),
        ({"what": "weights_gb", "method": "qlora"}, {"low": 19, "high": 21}, "partly"),
        ({"what": "serving_usd_per_million_tokens", "method": "full"}, {"high": 1},
         "can't be tested here"),
    ],
)  # fmt: skip
def test_verdicts(
    results: Path, measure: dict[str, Any], expect: dict[str, Any], verdict: str
) -> None:
    found = judged(results, measure, expect)
    assert found.verdict == verdict, found
    assert found.reason or found.figures


def test_private_data_get_a_figure_but_no_verdict(results: Path) -> None:
    measure = {"what": "score", "method": "qlora"}
    found = judged(results, measure, {"low": 0.1}, untestable="its data are private")
    assert found.verdict == "can't be tested here" and found.figures
    assert "private" in found.reason


def test_another_model_gives_a_figure_beside_but_no_verdict(results: Path) -> None:
    measure = {"what": "usd", "method": "full", "against": "qlora"}
    found = judged(results, measure, {"low": 2}, models=["llama-2-70b"])
    assert found.verdict == "can't be tested here"
    assert "no llama-2-70b" in found.reason and found.figures[0].value == pytest.approx(3.0)


def test_a_claim_must_expect_something(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give `low`"):
        Claim.model_validate(
            {"id": "c", "text": "t", "measure": {"what": "usd", "method": "full"}, "expect": {}}
        )
    (tmp_path / "bad.yaml").write_text("name: bad\nsource: {title: x}\nclaims: []\n")
    with pytest.raises(UserError, match=r"bad\.yaml:3: claims"):
        claims.read(tmp_path)
