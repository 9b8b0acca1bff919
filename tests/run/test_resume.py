"""An interrupted training goes on from its checkpoint, and trains what it would have in one go."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bench import cache as folders
from bench import store
from bench.record import PhaseRecord, Status, TrainRecord
from bench.report import tables, threats
from bench.report.rows import rows
from bench.run import launch, runner
from bench.run.progress import Progress
from bench.spec import Cell

from ..conftest import ROOT
from .ranks import Trained, make_cell, train
from .test_failures import worker_of

pytest.importorskip("torch")

STEPS, EVERY = 14, 4
BUDGET: dict[str, Any] = {
    "max_steps": STEPS,
    "checkpoint_every": EVERY,
    "evaluate_every": 4,
    "global_batch": 4,
    "max_train_rows": 40,  # an epoch ends after ten steps
    "max_test_rows": 2,
    "max_new_tokens": 4,
}
Stop = Callable[[], None]


class Stopping(Progress):
    """Does something to a training at a step."""

    def __init__(self, step: int, stop: Stop) -> None:
        super().__init__(Console(file=StringIO()))
        self.at, self.stop = step, stop

    def phase_begins(self, cell: Cell, phase: str) -> Callable[[dict[str, Any]], None]:
        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "step" and event["step"] == self.at:
                self.stop()

        return on_event


def kill_worker() -> None:
    worker = worker_of(SimpleNamespace(pid=os.getpid()))
    assert worker is not None
    worker.kill()


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def in_project(cache: Path, monkeypatch: Any) -> Path:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("ADAPTBENCH_CACHE", str(cache))
    return cache


def losses(attempt: store.Attempt) -> list[tuple[int, Any, Any, Any, int]]:
    return [(s.step, s.loss, s.grad_norm, s.learning_rate, s.tokens) for s in attempt.steps]


def test_killed_and_interrupted_it_is_the_same_training(tmp_path: Path, in_project: Path) -> None:
    """Under dropout, across the end of an epoch; the runner goes on with the same attempt."""
    adapter = make_cell("tiny-llama", "lora", "single").method.adapter
    assert adapter is not None
    dropout = {"adapter": adapter.model_dump() | {"dropout": 0.2}}
    cell = make_cell("tiny-llama", "lora", "single", budget=BUDGET, method=dropout)

    def run(step: int, stop: Stop) -> PhaseRecord:
        return runner.run_cell(cell, runner.Run(tmp_path / "broken", Stopping(step, stop)))

    first = run(6, kill_worker)
    assert isinstance(first, TrainRecord) and first.status is Status.KILLED, first.reason
    assert 6 <= first.steps < STEPS
    with pytest.raises(KeyboardInterrupt):
        run(first.steps + 3, interrupt)
    last = run(0, interrupt)
    assert last.phase == "generate" and last.status is Status.OK, last.reason

    (broken,) = store.read_suite(tmp_path / "broken", cell.suite)
    (attempt,) = broken.attempts
    whole = train(cell, tmp_path / "whole")
    assert losses(attempt) == losses(whole.attempt)
    assert [(e.step, e.loss, e.tokens) for e in attempt.evaluations] == [
        (e.step, e.loss, e.tokens) for e in whole.attempt.evaluations
    ]
    record = attempt.train
    assert record and record.status is Status.OK and not (attempt.audit or whole.audit).problems
    _is_accounted_for(attempt, record, whole.record)
    assert (attempt.path / "train.1.json").exists()
    assert not folders.checkpoints(attempt.path).exists()
    _is_marked(broken, record)


def _is_marked(broken: store.CellResult, record: TrainRecord) -> None:
    found = rows([broken])
    (told,) = [line for line in threats.repeats([SimpleNamespace(rows=found)]) if "resumed" in line]
    assert f"resumed from step {record.resumed_from_step}: {record.repeated_steps} steps" in told
    assert f"resumed from step {record.resumed_from_step}" in tables.sources(found)["attempt"][0]


def _is_accounted_for(attempt: store.Attempt, record: TrainRecord, one_go: TrainRecord) -> None:
    """Every step counts once; what was done twice is told apart, and its time is in wall_s."""
    assert record.interruptions == 2
    assert record.resumed_from_step in (8, 12)
    done = [e for e in attempt.events if e.get("event") == "step"]
    assert record.repeated_steps == len(done) - STEPS >= 2
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


MORE = [
    ("tiny-llama", "full", "single"),
    ("tiny-qwen3-moe", "qlora", "single"),
    ("tiny-llama", "lora", "ddp"),
    ("tiny-qwen3-moe", "lora", "fsdp"),
    ("tiny-qwen3-moe", "qlora", "fsdp"),
    ("tiny-llama", "lora", "zero2"),
    ("tiny-llama", "full", "zero3"),
    ("tiny-qwen3-moe", "qlora", "zero3"),
    ("tiny-llama", "lora", "zero3+offload"),
    ("tiny-llama", "full", "zero2+offload"),
]


@pytest.mark.parametrize(
    ("model", "method", "strategy"),
    [
        ("tiny-llama", "full", "fsdp"),  # each rank writes its own shards
        *(pytest.param(*case, marks=pytest.mark.matrix) for case in MORE),
    ],
)
def test_interrupted_it_goes_on(
    model: str, method: str, strategy: str, tmp_path: Path, in_project: Path
) -> None:
    budget = {"checkpoint_every": 2, "max_steps": 5}
    cell = make_cell(model, method, strategy, budget=budget)
    whole = train(cell, tmp_path / "whole")
    assert whole.record.status is Status.OK, whole.record.reason
    attempt = _interrupted(cell, tmp_path / "broken")
    saved = store.checkpoint(attempt, folders.checkpoints(attempt))
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
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        launch.run_phase(cell, attempt, "train", stop)
    return attempt
