"""An interrupted training goes on from its checkpoint, and trains what it would have in one go."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from bench import cache as folders
from bench import store
from bench.record import Status, TrainRecord
from bench.run import launch

from ..conftest import ROOT, bench, environment
from .ranks import Trained, make_cell, train
from .test_failures import start, steps_done, wait_for, worker_of

pytest.importorskip("torch")

SUITE = """\
name: {name}
models: [tiny-llama]
methods: [lora]
datasets: [support-desk]
targets: [cpu]
budget:
  max_steps: 16
  micro_batch: 2
  global_batch: 4
  max_length: 256
  max_new_tokens: 8
  max_train_rows: 40
  max_validation_rows: 4
  max_test_rows: 4
  evaluate_every: 4
  checkpoint_every: 4
"""


def losses(attempt: store.Attempt) -> list[tuple[int, Any, Any, Any, int]]:
    return [(s.step, s.loss, s.grad_norm, s.learning_rate, s.tokens) for s in attempt.steps]


def only(project: Path, suite: str) -> store.CellResult:
    return store.read_suite(project / "results", suite)[0]


def test_killed_twice_it_is_the_same_training(project: Path, cache: Path) -> None:
    """Once the worker, once the runner; dropout is on, and an epoch ends within."""
    for name in ("broken", "whole"):
        text = SUITE.format(name=name)
        (project / "suites" / f"{name}.yaml").write_text(text, encoding="utf-8")
    runner = start(project, "broken", cache)
    wait_for(lambda: steps_done(project, "broken") >= 6, 900)
    worker = worker_of(runner)
    assert worker is not None
    worker.kill()
    output, _ = runner.communicate(timeout=900)
    assert runner.returncode == 0, output
    first = only(project, "broken").attempts[0].train
    assert first and first.status is Status.KILLED and 6 <= first.steps < 16

    runner = start(project, "broken", cache)
    wait_for(lambda: steps_done(project, "broken") >= first.steps + 3, 900)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    for name in ("broken", "whole"):
        done = bench("run", name, cwd=project, env=environment(cache), timeout=1200)
        assert done.returncode == 0, done.stdout + done.stderr

    broken, whole = only(project, "broken"), only(project, "whole")
    assert [a.path.name for a in broken.attempts] == ["attempt-001"]
    attempt, expected = broken.attempts[0], whole.attempts[0]
    assert losses(attempt) == losses(expected)
    assert [(e.step, e.loss, e.tokens) for e in attempt.evaluations] == [
        (e.step, e.loss, e.tokens) for e in expected.evaluations
    ]
    record, one_go = attempt.train, expected.train
    assert record and one_go and record.status is Status.OK, record
    assert record.weights_sha256 == one_go.weights_sha256
    _is_accounted_for(attempt, record, one_go)
    assert (attempt.path / "train.1.json").exists()
    assert not list((cache / "checkpoints").glob(f"{attempt.path.parent.name}*"))
    report = (project / "results" / "broken" / "report" / "report.md").read_text(encoding="utf-8")
    assert f"resumed from step {record.resumed_from_step}" in report
    assert "resumed from" not in (project / "results" / "whole" / "report" / "report.md").read_text(
        encoding="utf-8"
    )


def _is_accounted_for(attempt: store.Attempt, record: TrainRecord, one_go: TrainRecord) -> None:
    """Every step counts once; what was done twice is told apart, and its time is in wall_s."""
    assert record.interruptions == 2
    assert record.resumed_from_step and record.resumed_from_step % 4 == 0
    done = [e for e in attempt.events if e.get("event") == "step"]
    assert record.repeated_steps == len(done) - 16 >= 2
    for name in ("steps", "tokens", "padded_tokens", "supervised_tokens", "first_loss"):
        assert getattr(record, name) == getattr(one_go, name), name
    assert record.repeated_tokens == sum(e["tokens"] for e in done) - record.tokens
    assert record.repeated_s == pytest.approx(
        sum(e["seconds"] for e in done) - sum(step.seconds for step in attempt.steps)
    )
    assert record.wall_s > sum(e["seconds"] for e in done)
    assert record.stage_s["checkpoint"] > 0 and one_go.stage_s["checkpoint"] > 0
    assert (one_go.interruptions, one_go.resumed_from_step, one_go.repeated_steps) == (0, None, 0)
    trained = [e.train_s for e in attempt.evaluations]
    assert trained == sorted(trained)
    assert trained[-1] == pytest.approx(sum(step.seconds for step in attempt.steps))


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("model", "method", "strategy"),
    [
        ("tiny-llama", "full", "single"),
        ("tiny-qwen3-moe", "qlora", "single"),
        ("tiny-llama", "lora", "ddp"),
        ("tiny-llama", "lora", "fsdp"),
    ],
)
def test_interrupted_it_goes_on(
    model: str, method: str, strategy: str, tmp_path: Path, cache: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("ADAPTBENCH_CACHE", str(cache))
    budget = {"checkpoint_every": 2, "max_steps": 5}
    cell = make_cell(model, method, strategy, budget=budget)
    whole = train(cell, tmp_path / "whole")
    assert whole.record.status is Status.OK, whole.record.reason
    attempt = _interrupted(cell, tmp_path / "broken")
    saved = store.checkpoint(attempt, folders.checkpoints(attempt))
    if strategy == "fsdp":  # none of several ranks' shards: said, and not done by halves
        assert saved is None
        assert any("no checkpoints under fsdp" in one for one in whole.audit.warnings)
        return
    assert saved is not None and saved[0] in (2, 4)
    launch.run_phase(cell, attempt, "train", lambda event: None)
    broken = Trained(cell, store.Attempt(attempt))
    assert broken.record.status is Status.OK, broken.record.reason
    assert losses(broken.attempt) == losses(whole.attempt)
    assert broken.validation() == whole.validation()
    assert broken.record.resumed_from_step == saved[0]
    assert broken.record.weights_sha256 == whole.record.weights_sha256


def _interrupted(cell: Any, results: Path) -> Path:
    """An attempt that Ctrl-C ends after its third step."""
    folder = store.cell_folder(results, cell)
    store.write_json(folder / "cell.json", cell)
    attempt = store.new_attempt(folder)

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch.run_phase(cell, attempt, "train", stop)
    return attempt
