"""A row says what became of a cell, and holds numbers that hand arithmetic gives too."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.record import Memory, Status
from bench.report import compare
from bench.report.rows import NOT_RUN, Row, rows
from bench.spec import ConvergenceTarget
from bench.store import append_line, new_attempt, read_suite

from .conftest import BIG
from .made import GIB, Run, add, add_cell, add_failed, cell, gpu_target, step_event


def read(results: Path) -> Row:
    (row,) = rows(read_suite(results, "made"))
    return row


def test_every_cell_has_a_row_in_a_stable_order(made_rows: list[Row]) -> None:
    names = [(r.cell.model.name, r.cell.method.name, r.cell.seed) for r in made_rows]
    assert len(names) == 13
    assert [method for model, method, _ in names if model == BIG] == [
        "base", "full", "lora", "lora", "lora", "lora-r64", "qlora",
    ]  # fmt: skip


def test_outcomes_keep_their_reasons(made_rows: list[Row]) -> None:
    found = {(r.cell.method.name, r.cell.seed): r for r in made_rows if r.cell.model.name == BIG}
    outcomes = {key: row.outcome for key, row in found.items()}
    assert outcomes == {
        ("base", 0): "ok",
        ("full", 0): "oom_host",
        ("lora", 0): "timeout",
        ("lora", 1): "killed",
        ("lora", 2): "diverged",
        ("lora-r64", 0): NOT_RUN,
        ("qlora", 0): "skipped",
    }
    assert found["lora", 0].why == "over 60 s"
    assert found["lora-r64", 0].why == "no attempt was made"
    assert [key for key, row in found.items() if row.comparable] == [("base", 0)]


def test_numbers_of_a_run(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"), Run(right=0.7, wall_s=(100.0, 50.0)))
    row = read(tmp_path)
    assert row.quality and row.training and row.cost
    # 28 of 40 answers are right; wrong replies share no word with the reference.
    assert row.quality.metrics["intent.accuracy"].value == pytest.approx(0.7)
    assert row.quality.metrics["reply.rouge_l"].value == pytest.approx(0.7)
    assert row.quality.groups["acme"]["intent.accuracy"].n == 20
    assert row.training.speed.tokens_per_s == pytest.approx(100 / 0.5)
    assert row.training.speed.n_steps == 20 - 2  # two warm-up steps
    assert row.training.speed.padding_share == pytest.approx(0.2)
    assert row.training.tokens == 2000
    assert row.training.train_s == pytest.approx(10.0)
    # 150 s at 0.36 USD an hour; the steps alone take 10 s.
    assert row.cost.job.usd == pytest.approx(0.015)
    assert (row.cost.job.low_usd, row.cost.job.high_usd) == pytest.approx((0.0075, 0.03))
    assert row.cost.train and row.cost.train.usd == pytest.approx(0.001)


def test_cost_counts_devices(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora", target=gpu_target(nodes=2)), Run(wall_s=(100.0, 50.0)))
    row = read(tmp_path)
    assert row.cost and row.cost.job.usd == pytest.approx(0.015 * 4 * 2)


def test_memory_on_a_cpu_is_above_the_baseline(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"), Run(peak_bytes=4 * GIB, baseline_bytes=GIB))
    peak = read(tmp_path).peak("train")
    assert peak and (peak.stage, peak.host, peak.counted("cpu")) == ("train", 5 * GIB, 4 * GIB)


def test_memory_on_a_gpu_is_what_is_reserved(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora", target=gpu_target()), Run(peak_bytes=40 * GIB))
    row = read(tmp_path)
    peak = row.peak("train")
    assert peak and peak.counted("cuda") == 40 * GIB
    assert row.highest("train", lambda p: p.device) == 41 * GIB


def test_memory_without_a_baseline_is_unknown_not_total(tmp_path: Path) -> None:
    memory = {"train": Memory(host_bytes=5 * GIB)}
    add(tmp_path, cell("m", "lora"), Run(train={"memory": memory}))
    row = read(tmp_path)
    assert row.peak("train") is None
    assert row.highest("train", lambda p: p.host) == 5 * GIB


def test_the_last_attempt_with_a_record_counts(tmp_path: Path) -> None:
    asked = cell("m", "lora")
    add_failed(tmp_path, asked, Status.KILLED, "signal 9")
    add(tmp_path, asked)
    new_attempt(tmp_path / "made" / asked.id)  # begun just now
    row = read(tmp_path)
    assert (row.attempt, row.attempts, row.status) == ("attempt-002", 3, "ok")
    assert "attempt-002/events.jsonl" in row.evidence


def test_an_attempt_that_left_no_record_is_not_run(tmp_path: Path) -> None:
    folder = add_cell(tmp_path, cell("m", "lora"))
    append_line(new_attempt(folder) / "events.jsonl", step_event(Run(), 1, 2.0))
    row = read(tmp_path)
    assert row.status == NOT_RUN
    assert row.why == "attempt-001 was begun, but left no record of a phase"
    assert row.evidence == ("attempt-001/events.jsonl",)


def test_trained_but_not_generated_is_not_ok(tmp_path: Path) -> None:
    folder = add(tmp_path, cell("m", "lora"))
    (folder / "attempt-001" / "generate.json").unlink()
    row = read(tmp_path)
    assert (row.status, row.stage, row.comparable) == (NOT_RUN, "generate", False)


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    folder = add(tmp_path, cell("m", "lora"))
    with (folder / "attempt-001" / "events.jsonl").open("a") as file:
        file.write('{"event": "step", "t": 1.0, "st')
    row = read(tmp_path)
    assert row.comparable and row.training and row.training.steps == 20


def test_a_damaged_file_makes_one_cell_invalid(tmp_path: Path) -> None:
    folder = add(tmp_path, cell("m", "lora"))
    add(tmp_path, cell("m", "full"))
    with (folder / "attempt-001" / "events.jsonl").open("a") as file:
        file.write('{"torn\n{"event": "step"}\n')
    found = {row.cell.method.name: row for row in rows(read_suite(tmp_path, "made"))}
    assert found["full"].comparable
    assert found["lora"].outcome == "invalid"
    assert found["lora"].why.startswith("attempt-001/events.jsonl:")


def test_an_adapter_that_did_not_load_is_invalid(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"), Run(generate={"adapter_changes_logits": False}))
    row = read(tmp_path)
    assert (row.status, row.outcome, row.comparable) == ("ok", "invalid", False)
    assert "did not load" in row.why


def test_no_predictions_are_no_quality(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"), Run(rows=0))
    row = read(tmp_path)
    assert row.quality is None
    assert row.no_quality == "no predictions"


def test_time_to_an_absolute_target(tmp_path: Path) -> None:
    # Validation loss 1.3 + 1.8 e^(-step/6), every 5 steps of 0.5 s: below 1.7 first at step 10.
    target = ConvergenceTarget(validation_loss=1.7)
    add(tmp_path, cell("m", "full", converged=target), Run(loss=(3.0, 1.2)))
    row = read(tmp_path)
    assert row.convergence and row.convergence.reached
    assert row.convergence.reached.train_s == pytest.approx(5.0)


def test_a_relative_target_is_the_mean_best_of_that_method(tmp_path: Path) -> None:
    target = ConvergenceTarget(relative_to="full", within=0.1)
    for seed, limit in enumerate((1.0, 1.2)):
        add(tmp_path, cell("m", "full", seed, converged=target), Run(loss=(1.0, 1.0)))
        add(tmp_path, cell("m", "lora", seed, converged=target), Run(loss=(limit, limit)))
    found = rows(read_suite(tmp_path, "made"))
    # Full stays at 1.0 + 0.1 (validation); 10 % above that is 1.21.
    losses = [row.convergence.goal.value for row in found if row.convergence]
    assert losses == pytest.approx([1.21] * 4)
    reached = [bool(r.convergence and r.convergence.reached) for r in found]
    assert reached == [True, True, True, False]  # lora at 1.1 and at 1.3


def test_a_relative_target_without_that_method_has_a_reason(tmp_path: Path) -> None:
    target = ConvergenceTarget(relative_to="full")
    add(tmp_path, cell("m", "lora", converged=target))
    row = read(tmp_path)
    assert row.convergence and row.convergence.goal.value is None
    assert row.convergence.reason == "no validation loss of full"


def test_seeds_share_a_question_and_settings_do_not(tmp_path: Path) -> None:
    asked = cell("m", "lora")
    longer = asked.budget.model_copy(update={"max_steps": 40})
    for one in (asked, cell("m", "lora", 1), cell("m", "lora", budget=longer)):
        add_cell(tmp_path, one)
    (panel,) = compare.panels(rows(read_suite(tmp_path, "made")))
    assert sorted(len(entry.rows) for entry in panel.entries) == [1, 2]
    assert all(entry.tag for entry in panel.entries)
    assert len({entry.method for entry in panel.entries}) == 2
