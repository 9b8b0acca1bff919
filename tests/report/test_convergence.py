"""Time to target over seeds: nobody who missed it is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.record import ScoredEvent, Status, ValidationAnswer
from bench.report import compare, convergence, micro_batches, summary
from bench.report.charts import loss, style
from bench.report.compare import Panel
from bench.report.rows import rows
from bench.spec import Budget, Cell, ConvergenceTarget
from bench.store import append_line, read_suite

from .made import Run, add, add_failed, cell, prediction

# Validation loss = 0.1 + limit + (first − limit) e^(−step/6), every 5 steps of 0.5 s.
TARGET = ConvergenceTarget(validation_loss=1.7)


def asked(method: str, seed: int = 0, **fields: Any) -> Cell:
    return cell("m", method, seed, **{"converged": TARGET, **fields})


def panel(folder: Path) -> Panel:
    (found,) = compare.panels(rows(read_suite(folder, "made")))
    return found


def line(folder: Path, method: str) -> dict[str, Any]:
    made = convergence.table(panel(folder))
    return dict(made[made["method"] == method].iloc[0])


def test_all_seeds_arrived(tmp_path: Path) -> None:
    for seed in (0, 1):
        add(tmp_path, asked("full", seed), Run(loss=(3.0, 1.2)))
    found = line(tmp_path, "full")
    assert found["target"] == "loss ≤ 1.70" and found["reached"] == "2 of 2"
    # 2.082 at step 5, 1.640 at 10: met at 5 + 5 × 0.382 / 0.442 = 9.32 steps of 0.5 s, 100 tokens
    assert found["to target, s"] == "4.66 (2.50 to 5.00)"
    assert found["steps"] == "9.32 (5.00 to 10.0)" and found["tokens"] == "932 (500 to 1,000)"
    assert found["restricted mean, s"] == "4.66 (4.66 to 4.66)"  # nothing is cut off
    # 4.66 s of a machine at $0.36 an hour ($0.18 to $0.72)
    assert found["USD"] == "0.000466 (0.000233 to 0.000932)"
    assert found["device-hours"] == "0.00129"


def test_a_seed_that_missed_it_stays_in(tmp_path: Path) -> None:
    add(tmp_path, asked("full"), Run(loss=(3.0, 1.2)))
    add(tmp_path, asked("lora"), Run(loss=(3.0, 1.2)))
    add(tmp_path, asked("lora", 1), Run(loss=(3.0, 2.0)))  # never below 2.1, for 10 s
    found = line(tmp_path, "lora")
    assert found["reached"] == "1 of 2"
    assert found["to target, s"] == "≥ 7.33"  # (4.66 + 10) / 2
    assert found["restricted mean, s"] == "7.33, cut at 10.0"
    assert found["USD"].startswith("≥ ")
    assert line(tmp_path, "full")["restricted mean, s"] == "4.66, cut at 10.0"
    runs = convergence.runs(panel(tmp_path)).set_index(["method", "seed"])
    assert runs.loc[("lora", "1"), "reached"] == "not reached: best 2.1357, target 1.7000"
    assert runs.loc[("lora", "1"), "spent without, s"] == "10.0"
    assert list(runs["met at, s"]) == ["5.00", "5.00", "–"]


def test_nobody_arrived_and_one_diverged(tmp_path: Path) -> None:
    add(tmp_path, asked("lora"), Run(loss=(3.0, 2.0)))
    add_failed(tmp_path, asked("lora", 1), Status.DIVERGED, "loss is NaN", stage="train")
    found = line(tmp_path, "lora")
    assert (found["reached"], found["to target, s"]) == ("0 of 2", "not in 10.0")
    assert found["status"] == "ok (1 of 2 seeds)"


def test_a_diverged_run_counts_up_to_the_horizon(tmp_path: Path) -> None:
    """Its 1.5 s of training aren't a run that was lost sight of: it will never arrive."""
    add(tmp_path, asked("lora"), Run(loss=(3.0, 1.2)))
    add_failed(tmp_path, asked("lora", 1), Status.DIVERGED, "loss is NaN", stage="train")
    add(tmp_path, asked("lora", 2), Run(loss=(3.0, 2.0)))
    assert line(tmp_path, "lora")["restricted mean, s"] == "8.22, cut at 10.0"


def test_an_invalid_run_proves_nothing(tmp_path: Path) -> None:
    add(tmp_path, asked("lora"), Run(loss=(3.0, 1.2)))
    fake = Run(loss=(3.0, 1.0), audit={"problems": ["no weight is held in 4 bit"]})
    add(tmp_path, asked("lora", 1), fake)
    assert line(tmp_path, "lora")["reached"] == "1 of 1"
    assert line(tmp_path, "lora")["status"] == "ok (1 of 2 seeds)"


# ---------------------------------------------------------------- scores


def scored(folder: Path, shares: dict[int, float], **fields: Any) -> None:
    """A run whose answers are right in so many cases of 40 after so many steps."""
    add(folder, asked("lora", **fields))
    (attempt,) = folder.glob("made/m_lora_*/attempt-001")
    for step, share in shares.items():
        for number in range(40):
            answer = prediction(number, Run(right=share))
            append_line(
                attempt / "validation.jsonl", ValidationAnswer(**answer.model_dump(), step=step)
            )
        event = ScoredEvent(
            t=1.0,
            step=step,
            seconds=9.0,
            train_s=step / 2,
            tokens=100 * step,
            rows=40,
            new_tokens=1,
        )
        append_line(attempt / "events.jsonl", event)


def test_a_score_on_the_way(tmp_path: Path) -> None:
    target = ConvergenceTarget(score="intent.accuracy", at_least=0.6)
    scored(tmp_path, {0: 0.2, 10: 0.5, 20: 0.7}, converged=target)
    found = line(tmp_path, "lora")
    assert found["target"] == "intent.accuracy ≥ 0.600"
    assert found["to target, s"] == "7.50 (5.00 to 10.0)"
    assert found["first loss"] != "–"
    (run,) = convergence.runs(panel(tmp_path)).to_dict("records")
    assert run["validation rows"] == "40"
    assert "40 validation rows" in list(convergence.notes([panel(tmp_path)]))[1]
    row = summary.summary(rows(read_suite(tmp_path, "made"))).iloc[0]
    assert (row["target_measure"], row["target_score"]) == ("intent.accuracy", 0.6)
    assert row["time_to_target_interpolated_s"] == pytest.approx(7.5)
    assert row["target_loss_nats"] is None


def test_a_score_relative_to_a_method(tmp_path: Path) -> None:
    target = ConvergenceTarget(score="first", relative_to="lora", within=0.1)
    scored(tmp_path, {0: 0.2, 20: 0.7}, converged=target)
    best = rows(read_suite(tmp_path, "made"))[0].training
    assert best is not None
    value = best.points["reply.rouge_l"][-1].value
    assert value and line(tmp_path, "lora")["target"] == f"reply.rouge_l ≥ {0.9 * value:.3f}"


def test_a_run_without_answers_says_so(tmp_path: Path) -> None:
    add(tmp_path, asked("lora", converged=ConvergenceTarget(score="first", at_least=0.1)))
    row = rows(read_suite(tmp_path, "made"))[0]
    assert row.convergence and row.convergence.reason == "no evaluation with a score"
    assert line(tmp_path, "lora")["reached"] == "–"


def test_the_chart_marks_the_target_and_where_it_was_met(tmp_path: Path) -> None:
    target = ConvergenceTarget(score="intent.accuracy", at_least=0.6)
    scored(tmp_path, {0: 0.2, 10: 0.5, 20: 0.7}, converged=target)
    found = panel(tmp_path)
    with style.ours():
        chart = loss.draw([found], style.Looks.of([found]))
    assert chart is not None
    assert [ax.get_ylabel() for ax in chart.axes[::3]] == [
        "nats per answer token",
        "intent.accuracy",
    ]
    assert any("target met after 7.50 s" in tip for tip in chart.tips.values())


# ---------------------------------------------------------------- micro-batches


def test_own_best_micro_batch_against_the_same(tmp_path: Path) -> None:
    def add_size(method: str, size: int, step_s: float, **run: Any) -> None:
        budget = Budget(max_steps=20, global_batch=8, micro_batch=size, evaluate_every=5)
        add(tmp_path, asked(method, budget=budget), Run(step_s=step_s, **run))

    for size, step_s in ((1, 1.0), (2, 0.8), (4, 0.5)):
        add_size("lora", size, step_s)
    add_size("full", 1, 1.0)
    add_size("full", 2, 0.9)
    oom = {"status": Status.OOM_GPU, "reason": "full"}
    add_size("full", 4, 0.9, steps=1, train=oom)
    found = panel(tmp_path)
    assert [e.method for e in found.entries][:3] == [f"full (micro-batch {n})" for n in (1, 2, 4)]
    made = micro_batches.table(found).set_index("method")
    assert made.loc["full", "tokens/s at each"] == "1: 100, 2: 111, 4: oom_gpu"
    assert list(made["the same"]) == ["2", "2"] and list(made["own best"]) == ["2", "4"]
    assert made.loc["lora", "own best ÷ the same"] == "1.60 (1.60 to 1.60)"
    assert made.loc["lora", "the same ÷ full's"] == "1.12 (1.12 to 1.12)"
    assert made.loc["lora", "own best ÷ full's own best"] == "1.80 (1.80 to 1.80)"


def test_other_settings_are_no_micro_batch(tmp_path: Path) -> None:
    small = Budget(max_steps=20, global_batch=8, micro_batch=1, evaluate_every=5)
    add(tmp_path, asked("lora", budget=small))
    longer = small.model_copy(update={"micro_batch": 2, "max_length": 512})
    add(tmp_path, asked("lora", budget=longer))
    found = panel(tmp_path)
    assert not any("micro-batch" in entry.method for entry in found.entries)
    assert micro_batches.table(found).empty
