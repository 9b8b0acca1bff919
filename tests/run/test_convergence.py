"""Scores on the way, and several micro-batches: for real, on a model made here."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from bench import store
from bench.record import Status
from bench.report import compare, convergence, micro_batches, show
from bench.report.rows import Row, rows

from ..conftest import bench, environment, make_project

SUITE = """\
name: goal
models: [tiny-llama]
methods:
  - &lora
    use: lora
    dtype: fp32
    autocast: null
    optimizer: adamw
    learning_rate: 5.0e-3
    lr_warmup_steps: 0
    gradient_checkpointing: false
    adapter: {dropout: 0.1} # draws random numbers: another draw in between would show
  - {<<: *lora, name: plain}
datasets: # tested on validation rows, so that both kinds of answers can be compared
  - {use: support-desk, test: [{files: [data/support-desk/validation.jsonl]}]}
targets: [cpu]
micro_batches: [2, 8]
budget:
  max_steps: 4
  micro_batch: 8
  global_batch: 8
  max_length: 256
  max_new_tokens: 8
  generate_batch: 4
  max_train_rows: 32
  max_validation_rows: 4
  score_rows: 6
  max_test_rows: 6
  evaluate_every: 2
converged: {score: first, at_least: 0.02}
rules:
  - {when: {method: [plain]}, budget: {micro_batch: 8, score_rows: null}}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """Where the suite has run: with answers at two micro-batches, and once without."""
    folder = make_project(tmp_path_factory.mktemp("convergence"))
    (folder / "suites" / "goal.yaml").write_text(SUITE, encoding="utf-8")
    done = bench("run", "goal", cwd=folder, env=environment(cache), timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def trained(project: Path, method: str) -> Row:
    """The run of a method with micro-batch 8."""
    found = rows(store.read_suite(project / "results", "goal"))
    names = {(row.cell.method.name, row.cell.budget.micro_batch): row for row in found}
    return names[method, 8]


def attempt(project: Path, row: Row) -> store.Attempt:
    assert row.attempt
    return store.Attempt(project / "results" / row.cell.suite / row.id / row.attempt)


def test_rows_are_answered_at_each_evaluation_off_the_clock(project: Path) -> None:
    row = trained(project, "lora")
    assert row.status == Status.OK, row.why
    found = attempt(project, row)
    assert [event.step for event, _ in found.scored] == [0, 2, 4]
    for event, answers in found.scored:
        assert event.rows == len(answers) == 6
        assert {answer.id.partition("-")[0] for answer in answers} == {"validation"}
        assert event.train_s == sum(s.seconds for s in found.steps if s.step <= event.step)
    assert found.train and found.train.stage_s["generate"] >= sum(
        e.seconds for e, _ in found.scored
    )
    first, last = found.scored[0][1], found.scored[-1][1]
    assert [a.prediction for a in first] != [a.prediction for a in last]  # it learns


def test_answering_changes_nothing_that_is_trained(project: Path) -> None:
    with_answers = attempt(project, trained(project, "lora"))
    without = attempt(project, trained(project, "plain"))
    assert [s.loss for s in with_answers.steps] == [s.loss for s in without.steps]
    assert not without.scored and without.train and with_answers.train
    assert with_answers.train.weights_sha256 == without.train.weights_sha256


def test_the_last_answers_are_those_of_the_deployed_model(project: Path) -> None:
    """The suite tests on validation rows: trained and then loaded anew, it answers the same."""
    row = trained(project, "lora")
    found = attempt(project, row)
    last = {answer.id: answer.prediction for answer in found.scored[-1][1]}
    assert {p.id: p.prediction for p in found.predictions} == last
    assert row.convergence and row.convergence.goal.measure == "reply.rouge_l"
    assert row.training and row.training.score_rows == 6 and row.quality
    points = row.training.points["reply.rouge_l"]
    assert points[-1].value == row.quality.metrics["reply.rouge_l"].value


def test_the_tables_hold_both(project: Path) -> None:
    (panel,) = compare.panels(rows(store.read_suite(project / "results", "goal")))
    made: pd.DataFrame = convergence.table(panel)
    assert list(made["method"]) == ["lora (micro-batch 2)", "lora (micro-batch 8)", "plain"]
    assert set(made["target"]) == {"reply.rouge_l ≥ 0.0200"}
    assert list(made["reached"])[2] == show.NONE  # nobody asked it for answers
    assert len(convergence.runs(panel)) == 2
    line = micro_batches.table(panel).to_dict("records")[0]
    assert line["the same"] == "8" and line["own best"] in ("2", "8")
    assert line["tokens/s at each"].startswith("2: ")
