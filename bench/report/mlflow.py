"""A suite's attempts as runs of an MLflow experiment, for teams that look at everything there.

Parameters are the cell's settings; metrics are the columns of summary.csv, and loss, speed and
validation loss step by step.  Exported again, an attempt that hasn't changed stays as it is, and
one that has (scores, a serve phase that came later) takes its old run's place.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.errors import UserError
from bench.record import Status
from bench.report.export import table
from bench.store import CellResult, read_suite

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

ATTEMPT, DIGEST = "adaptbench.attempt", "adaptbench.digest"
LONGEST = 500  # characters of a setting: prompts and architectures are in cell.json
AT_ONCE = 1000  # metrics of a request, MLflow's limit
ENDED = {Status.OK: "FINISHED", Status.KILLED: "KILLED"}


class Exported(NamedTuple):
    """Attempts that were written, that were there already, and cells that never ran."""

    written: int
    known: int
    never_ran: int


def export(results: Path, suite: str, uri: str) -> Exported:
    """Write the latest attempt of each cell to the tracking server at `uri`.

    Raises UserError without the client, and where the server can't be reached or refuses.
    """
    found = read_suite(results, suite)
    lines = {line["cell"]: line for line in table(results, suite).to_dict("records")}
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # 7 take minutes
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise UserError(
            "--mlflow needs MLflow's client: pip install 'adaptbench[mlflow]'"
        ) from None
    try:
        client = MlflowClient(tracking_uri=uri)
        return _export(client, suite, found, lines)
    except MlflowException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{uri}: MLflow can't take the runs: {reason}") from None


def _export(
    client: MlflowClient, suite: str, found: list[CellResult], lines: Mapping[Any, dict[Any, Any]]
) -> Exported:
    experiment = client.get_experiment_by_name(suite)
    place = experiment.experiment_id if experiment else client.create_experiment(suite)
    there = _runs(client, place)
    written = known = 0
    for result in found:
        if result.latest is None:
            continue
        line = lines[result.path.name]
        name = f"{result.path.name}/{result.latest.path.name}"
        digest = hashlib.sha256(json.dumps(line, default=str, sort_keys=True).encode()).hexdigest()
        run, before = there.get(name, (None, None))
        if before == digest:
            known += 1
            continue
        _write(client, place, result, line, {ATTEMPT: name, DIGEST: digest})
        if run is not None:
            client.delete_run(run)
        written += 1
    return Exported(written, known, len(found) - written - known)


def _runs(client: MlflowClient, place: str) -> dict[str, tuple[str, str | None]]:
    """Attempt → its run and what was written there.  Half-written runs have no digest."""
    found, token = {}, None
    while True:
        page = client.search_runs([place], page_token=token)
        for run in page:
            tags = run.data.tags
            if ATTEMPT in tags:
                found[tags[ATTEMPT]] = (run.info.run_id, tags.get(DIGEST))
        token = page.token
        if not token:
            return found


def _write(
    client: MlflowClient,
    place: str,
    result: CellResult,
    line: Mapping[Any, Any],
    tags: Mapping[str, str],
) -> None:
    from mlflow.entities import Metric, Param, RunTag

    assert result.latest is not None
    times = [int(event.t * 1000) for event in result.latest.steps]
    times += [int(event.t * 1000) for event in result.latest.evaluations]
    begun, ended = (min(times), max(times)) if times else (0, 0)
    told = {name: str(line[name]) for name in ("status", "stage", "reason", "source") if line[name]}
    created = client.create_run(
        place, begun, {ATTEMPT: tags[ATTEMPT], **told}, run_name=result.path.name
    )
    run = created.info.run_id
    settings = _flat(result.cell.model_dump(mode="json"))
    params = [Param(key, text) for key, text in settings if len(text) <= LONGEST]
    for start in range(0, len(params), 100):
        client.log_batch(run, params=params[start : start + 100])
    metrics = [
        Metric(str(key), float(value), ended, 0)
        for key, value in line.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]
    metrics += _series(result)
    for start in range(0, len(metrics), AT_ONCE):
        client.log_batch(run, metrics=metrics[start : start + AT_ONCE])
    client.log_batch(run, tags=[RunTag(DIGEST, tags[DIGEST])])
    status = ENDED.get(Status(line["status"]), "FAILED")
    client.set_terminated(run, status, ended)


def _series(result: CellResult) -> Iterator[Metric]:
    from mlflow.entities import Metric

    assert result.latest is not None
    for step in result.latest.steps:
        at = int(step.t * 1000)
        if step.loss is not None:
            yield Metric("step.loss", step.loss, at, step.step)
        if step.seconds:
            yield Metric("step.tokens_per_s", step.tokens / step.seconds, at, step.step)
    for event in result.latest.evaluations:
        if event.loss is not None:
            yield Metric("step.validation_loss", event.loss, int(event.t * 1000), event.step)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """(path, text) of every leaf; lists are one."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif value is not None:
        yield name, value if isinstance(value, str) else json.dumps(value)
