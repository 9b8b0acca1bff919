"""Advice keeps constraints, gives reasons, and never hides what isn't known."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.record import Status
from bench.report import answer, compare, pairs
from bench.report.advice import Advice
from bench.report.build import advices
from bench.report.rows import rows
from bench.spec import Comparison, Constraints
from bench.store import read_suite

from . import scale
from .made import Run, add, add_failed, cell, gpu_target


def advice(results: Path, asked: Constraints | None = None) -> Advice:
    panels = pairs.tested(compare.panels(rows(read_suite(results, "made"))))
    (found,) = advices(panels, asked)
    return found


def reasons(found: Advice) -> dict[str, str]:
    return {r.option.entry.method: "; ".join(r.reasons) for r in found.rejected}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """full 0.9 for 0.03 $, lora 0.6 for 0.015 $, qlora invalid, an untuned base of 0.2."""
    folder = tmp_path_factory.mktemp("advice")
    add(folder, cell("m", "base"), Run(right=0.2, rows=200, wall_s=(0.0, 20.0)))
    add(folder, cell("m", "full"), Run(right=0.9, rows=200, wall_s=(200.0, 100.0)))
    add(folder, cell("m", "lora"), Run(right=0.6, rows=200, wall_s=(100.0, 50.0)))
    fake = Run(right=1.0, rows=200, wall_s=(1.0, 1.0), audit={"problems": ["not in 4 bit"]})
    add(folder, cell("m", "qlora"), fake)
    return folder


def test_the_best_that_is_what_it_is_called(results: Path) -> None:
    found = advice(results)
    assert found.take and found.take.entry.method == "full"
    assert found.second and found.second.entry.method == "lora"
    assert "not in 4 bit" in reasons(found)["qlora"]
    text = " ".join(answer.sentences(found))
    assert "take full" in text and "$0.0300" in text and "untuned model: +0.7" in text


@pytest.mark.parametrize(
    ("asked", "take", "rejected", "why"),
    [
        ({"max_usd": 0.02}, "lora", "full", "$0.0300 a run is more than $0.0200"),
        ({"max_hours": 0.05}, "lora", "full", "5.00 min a run is more than 3.00 min"),
        ({"min_score": 0.8}, "full", "lora", "does not reach 0.800"),
        ({"max_loss_vs_full": 0.1}, "full", "lora", "loses 0.300 against full, more than 0.100"),
        ({"max_usd": 0.001}, None, "lora", "is more than $0.00100"),
        ({"targets": ["elsewhere"]}, None, "full", "cpu is not among your machines"),
        ({"max_latency_ms": 200}, None, "full", "its latency was not measured"),
        ({"monthly_tokens": 1e9}, None, "full", "its cost of serving was not measured"),
    ],
)
def test_constraints(
    results: Path, asked: dict[str, object], take: str | None, rejected: str, why: str
) -> None:
    found = advice(results, Constraints.model_validate(asked))
    assert (found.take.entry.method if found.take else None) == take
    assert why in reasons(found)[rejected]
    if take is None:
        assert "nothing can be recommended" in answer.sentences(found)[0]


def test_an_unresolved_winner_is_called_so(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "full"), Run(right=0.7, rows=20, wall_s=(200.0, 100.0)))
    add(tmp_path, cell("m", "lora"), Run(right=0.6, rows=20, wall_s=(100.0, 50.0)))
    found = advice(tmp_path)
    assert found.take and found.take.entry.method == "full"
    assert [option.entry.method for option in found.open] == ["lora"]
    text = " ".join(answer.sentences(found))
    assert "Not settled" in text and "can't tell it from lora" in text
    changes = " ".join(answer.changes(found))
    assert "acceptable: lora" in changes and "More seeds" in changes and "A margin" in changes


def test_as_good_within_the_margin_and_cheaper_is_taken(tmp_path: Path) -> None:
    margin = Comparison(margin=0.1)
    for method, wall in (("full", 200.0), ("lora", 100.0)):
        asked = cell("m", method, comparison=margin)
        add(tmp_path, asked, Run(right=0.7, rows=200, wall_s=(wall, 10.0)))
    better = cell("m", "qlora", comparison=margin)
    add(tmp_path, better, Run(right=0.71, rows=200, wall_s=(300.0, 10.0)))
    found = advice(tmp_path)
    assert found.best and found.best.entry.method == "qlora"
    assert found.take and found.take.entry.method == "lora"
    text = " ".join(answer.sentences(found))
    assert "no difference larger than the margin, and lora is cheaper" in text
    assert "no difference larger than 0.1" in text


def test_a_full_run_that_failed_is_said(tmp_path: Path) -> None:
    add_failed(tmp_path, cell("m", "full"), Status.OOM_HOST, "needs 40 GiB", stage="train")
    add(tmp_path, cell("m", "lora"))
    found = advice(tmp_path)
    assert "oom_host: needs 40 GiB" in reasons(found)["full"]
    assert "can't be held against full" in " ".join(answer.sentences(found))


def test_plans_alone_rank_what_fits_and_say_that_quality_is_unknown(tmp_path: Path) -> None:
    for method in ("base", "full", "lora", "qlora"):
        asked = cell("m", method, target=gpu_target("1xl40s-48gb", device_memory_gib=44.4))
        asked = asked.model_copy(
            update={"model": asked.model.model_copy(update={"params": 14_000_000_000})}
        )
        scale.write(tmp_path, asked, run=False)
    found = advice(tmp_path)
    assert not found.measured
    assert [option.entry.method for option in found.accepted] == ["lora", "qlora"]
    assert "does not fit: gpu in backward" in reasons(found)["full"]
    text = " ".join(answer.sentences(found))
    assert "quality is unknown" in text and "take" not in text
    assert "full on 1xl40s-48gb would fit with: micro\\_batch 1" in " ".join(
        answer.changes(found)
    ).replace("micro_batch", "micro\\_batch")
    grid = answer.grid(found)
    assert list(grid["method"]) == ["lora", "qlora", "full"]


def test_a_planned_cell_beside_measured_ones_is_rejected_for_its_quality(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"))
    scale.write(tmp_path, cell("m", "full"), run=False)
    assert "planned only" in reasons(advice(tmp_path))["full"]
