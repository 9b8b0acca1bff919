"""Runs in a real tracking store: MLflow's own files, which its client still reads and writes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mlflow")

from mlflow.tracking import MlflowClient

from bench import store
from bench.errors import UserError
from bench.record import Status
from bench.report import mlflow

from ..conftest import bench, environment
from .made import Run, add, add_cell, add_failed, cell


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def test_attempts_become_runs_once(tmp_path: Path, uri: str) -> None:
    results = tmp_path / "results"
    lora = cell("m", "lora")
    add(results, lora, Run(steps=20, step_s=0.5, tokens=100))
    add_failed(results, cell("m", "full"), Status.OOM_GPU, "out of memory in backward")
    add_cell(results, cell("m", "qlora"))
    assert mlflow.export(results, "made", uri) == (2, 0, 1)
    client = MlflowClient(uri)
    place = client.get_experiment_by_name("made").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([place])}
    run = runs[lora.id]
    assert run.info.status == "FINISHED" and run.data.tags["status"] == "ok"
    assert run.data.params["method.learning_rate"] == "0.001"
    assert run.data.params["budget.global_batch"] == "4"
    assert "reply.rouge_l" in run.data.metrics and run.data.metrics["cost_usd"] > 0
    speeds = client.get_metric_history(run.info.run_id, "step.tokens_per_s")
    assert [point.step for point in speeds] == list(range(1, 21))
    assert {point.value for point in speeds} == {200.0}
    (failed,) = (run for name, run in runs.items() if "_full_" in name)
    assert failed.info.status == "FAILED"
    assert failed.data.tags["reason"] == "out of memory in backward"
    assert mlflow.export(results, "made", uri) == (0, 2, 1)  # nothing twice


def test_an_attempt_that_changed_takes_its_runs_place(tmp_path: Path, uri: str) -> None:
    results = tmp_path / "results"
    folder = add(results, cell("m", "lora"))
    assert mlflow.export(results, "made", uri).written == 1
    latest = store.CellResult(cell("m", "lora"), folder).latest
    assert latest is not None and latest.train is not None
    slower = latest.train.model_copy(update={"wall_s": 999.0})
    store.write_json(latest.path / "train.json", slower)
    assert mlflow.export(results, "made", uri) == (1, 0, 0)
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("made").experiment_id])
    assert run.data.metrics["train_wall_s"] == 999


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    add(tmp_path / "results", cell("m", "lora"))
    given = {**environment(), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    done = bench("export", "made", "--mlflow", "http://127.0.0.1:9", cwd=tmp_path, env=given)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert "http://127.0.0.1:9: MLflow can't take the runs" in done.stderr


def test_without_the_client_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path, cell("m", "lora"))
    monkeypatch.setitem(__import__("sys").modules, "mlflow.tracking", None)
    with pytest.raises(UserError, match="adaptbench\\[mlflow\\]"):
        mlflow.export(tmp_path, "made", "http://127.0.0.1:9")
