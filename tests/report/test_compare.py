"""Who is beside whom, and who wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.record import Status
from bench.report import compare
from bench.report.compare import Entry, Panel
from bench.report.headline import headline
from bench.report.measures import Estimate
from bench.report.rows import Row, rows
from bench.report.threats import threats
from bench.spec import Comparison
from bench.store import read_suite

from .made import ENVIRONMENT, Run, add, cell, dataset, gpu_target, target


@pytest.fixture(scope="module")
def panel(made_rows: list[Row]) -> Panel:
    (found,) = compare.panels(made_rows)
    return found


def entry(panel: Panel, method: str) -> Entry:
    return next(e for e in panel.entries if e.model == "smollm2-135m" and e.method == method)


def test_quality_is_the_mean_over_seeds_and_keeps_each(panel: Panel) -> None:
    lora = entry(panel, "lora")
    quality = lora.quality("intent.accuracy")
    assert quality and quality.value == pytest.approx(0.7)
    assert lora.seeds("intent.accuracy") == [(0, 0.6), (1, 0.7), (2, 0.8)]
    assert quality.low is not None and quality.low < 0.6
    assert quality.high is not None and quality.high > 0.8


def test_the_pareto_set_leaves_out_what_is_invalid(panel: Panel) -> None:
    # base 0.2 for 40 s, lora 0.7 for 150 s, full 0.8 for 200 s; the long model's base is beaten
    # by none: 0.3 for 80 s.  qlora has 1.0 for 2 s, but isn't what it is called.
    front = compare.pareto(panel)
    assert [(e.model[:5], e.method) for e in front] == [
        ("smoll", "base"), ("a-mod", "base"), ("smoll", "lora"), ("smoll", "full"),
    ]  # fmt: skip
    assert entry(panel, "qlora").status == "invalid"
    assert entry(panel, "qlora").quality("intent.accuracy") is None


def test_a_score_of_zero_is_a_score(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "base"), Run(right=0.0, wall_s=(0.0, 10.0)))
    (panel,) = compare.panels(rows(read_suite(tmp_path, "made")))
    assert len(compare.pareto(panel)) == 1
    assert len(compare.ranked(panel, "reply.rouge_l")) == 1


def test_gains_are_over_the_same_models_base(panel: Panel) -> None:
    gain = compare.group_gain(panel, entry(panel, "full"), "acme", "intent.accuracy")
    assert gain == pytest.approx(0.8 - 0.2)
    assert compare.group_gain(panel, entry(panel, "qlora"), "acme", "intent.accuracy") is None
    assert compare.group_rows(panel, "acme") == 20


def test_overlap() -> None:
    one, other = Estimate(0.5, 0.4, 0.6), Estimate(0.65, 0.6, 0.7)
    assert compare.overlap(one, other) is True
    assert compare.overlap(one, Estimate(0.65, 0.61, 0.7)) is False
    assert compare.overlap(one, Estimate(0.65)) is None


@pytest.mark.parametrize(
    ("metric", "sign"),
    [("reply.rouge_l", 1), ("reply.evaluate:wer", -1), ("reply.evaluate:metrics/wer.py", -1)],
)
def test_direction(metric: str, sign: int) -> None:
    assert compare.sign(metric) == sign


def test_headline_repeats_numbers_and_claims_no_significance(panel: Panel) -> None:
    text = headline([panel])
    assert "best is smollm2-135m × full with 0.800" in text
    assert "Cheapest model run is smollm2-135m × base with 0.200" in text
    assert "so that order is open" in text
    assert "6 of 13 cells worked" in text
    assert "significant" not in text


def test_headline_without_scores(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"), Run(rows=0))
    assert "nothing to compare" in headline(compare.panels(rows(read_suite(tmp_path, "made"))))


def test_without_a_price_device_hours_are_weighed(tmp_path: Path) -> None:
    free = target().model_copy(
        update={
            "price": target().price.model_copy(update={"usd_per_device_hour": 0.0, "low_usd": 0.0})
        }
    )
    add(tmp_path, cell("m", "base", target=free), Run(wall_s=(0.0, 3600.0)))
    (panel,) = compare.panels(rows(read_suite(tmp_path, "made")))
    effort = panel.effort(panel.entries[0])
    assert not panel.priced and effort and effort.value == pytest.approx(1.0)
    assert "device-hours" in headline([panel])


# ---------------------------------------------------------------- threats


def told(results: Path) -> str:
    return "\n".join(threats(compare.panels(rows(read_suite(results, "made")))))


def test_threats_come_from_the_data(tmp_path: Path) -> None:
    busy = ENVIRONMENT.model_copy(update={"load_average": 3.5, "git_dirty": True})
    other = ENVIRONMENT.model_copy(update={"hostname_hash": "beef", "packages": {"torch": "2.12"}})
    add(tmp_path, cell("m", "base"), Run(environment=other))
    add(tmp_path, cell("m", "full"), Run(environment=busy))
    text = told(tmp_path)
    assert "Each trained combination has one seed" in text
    assert "40 test rows" in text and "±15 points" in text
    assert "Synthetic data: desk" in text
    assert "2 different machines" in text
    assert "load was above its number of cores when 1 of 2 cells" in text
    assert "different versions of torch" in text
    assert "uncommitted changes" in text
    assert "Random weights" in text


def test_threats_that_do_not_apply_are_not_told(tmp_path: Path) -> None:
    real = dataset(synthetic=False)
    for seed in (0, 1):
        add(tmp_path, cell("m", "lora", seed, dataset=real))
    text = told(tmp_path)
    for word in ("one seed", "Synthetic", "machines", "busy", "versions", "Unstable"):
        assert word not in text


def test_a_choice_without_a_right_answer_and_a_wide_margin_are_told(tmp_path: Path) -> None:
    wide = Comparison(margin=0.3)
    for method in ("base", "lora"):
        add(tmp_path / "none", cell("m", method), Run(right=0.0))
        add(tmp_path / "some", cell("m", method, comparison=wide), Run(rows=1))
        add(tmp_path / "right", cell("m", method, comparison=wide), Run(right=1.0))
    nothing = "nothing scores above 0 by reply.rouge_l"
    assert nothing in told(tmp_path / "none") and nothing not in told(tmp_path / "right")
    assert "The margin of reply.rouge_l is 0.3" in told(tmp_path / "right")
    assert "margin" not in told(tmp_path / "none")
    assert "1 test row was scored" in told(tmp_path / "some")


def test_another_gpu_than_the_targets_is_told(tmp_path: Path) -> None:
    h200 = ENVIRONMENT.model_copy(update={"gpus": ["NVIDIA H200"]})
    add(tmp_path, cell("m", "lora", target=gpu_target()), Run(environment=h200))
    assert "ran on NVIDIA H200, which isn't that target" in told(tmp_path)


def test_unstable_speed_is_told_and_marked(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"), Run(steps=4))
    assert "Unstable speed: m × lora on cpu (2 counted steps, 3 needed)" in told(tmp_path)


def test_repeats_and_interruptions_are_told(tmp_path: Path) -> None:
    asked = cell("m", "lora")
    add(tmp_path, asked, Run(train={"status": Status.KILLED, "reason": "signal 9"}))
    add(tmp_path, asked, Run(generate={"interruptions": 1}))
    text = told(tmp_path)
    assert "1 cell took more than one attempt" in text
    assert "1 cell went on after an interruption" in text


def test_a_sample_of_the_test_rows_is_told(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"), Run(generate={"test_rows": 400}))
    assert "40 of 400 test rows were answered, a sample" in told(tmp_path)


def test_rows_that_changed_between_cells_are_told(tmp_path: Path) -> None:
    for method, test in (("full", "aa"), ("lora", "bb")):
        add(
            tmp_path,
            cell("m", method),
            Run(train={"rows_fingerprint": "cc"}, generate={"rows_fingerprint": test}),
        )
    text = told(tmp_path)
    assert "its test rows changed between cells (2 versions)" in text
    assert "its train rows changed" not in text
