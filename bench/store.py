"""results/: cell folders, attempts, append-only events, atomic records, locks.

    results/<suite>/<cell-id>/cell.json
    results/<suite>/<cell-id>/attempt-001/{events.jsonl,audit.json,train.json,generate.json,
                                           predictions.jsonl,log.txt; validation.jsonl,
                                           gpu.jsonl where asked for or there are some}
    results/<suite>/data/<dataset>.json    what `bench check --data` found about its rows

A finished record is never overwritten; a torn last line of a JSONL file is skipped.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from bench.errors import UserError
from bench.record import (
    ApiPrediction,
    Audit,
    EvaluationEvent,
    GenerateRecord,
    GpuSample,
    LoadEvent,
    PhaseRecord,
    Prediction,
    RequestEvent,
    ScoredEvent,
    ServeRecord,
    StepEvent,
    TrainRecord,
    ValidationAnswer,
)
from bench.spec import Cell

if TYPE_CHECKING:
    from bench.score.hygiene import Hygiene

R = TypeVar("R", bound=BaseModel)


# ---------------------------------------------------------------- writing


def write_json(path: Path, value: BaseModel | dict[str, Any]) -> None:
    """Write atomically: a reader sees the old file or the new one, never half of one."""
    data = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    text = json.dumps(finite(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)  # a full disk: half a file helps nobody
        error.filename = str(path)
        raise


def append_line(path: Path, value: BaseModel | dict[str, Any]) -> None:
    """Append one JSON line with one write, so that lines of a killed process stay whole.

    Raises OSError where the disk is full, even if half of the line still went in.
    """
    data = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    line = (json.dumps(finite(data), ensure_ascii=False, allow_nan=False) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    except OSError as error:
        error.filename = str(path)  # a write's own error names no file
        raise
    finally:
        os.close(descriptor)


def cut_torn_line(path: Path) -> None:
    """Drop an unfinished last line (full disk, power cut) before anything is appended to it."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


def finite(value: Any) -> Any:
    """NaN and infinity become null: strict JSON has no word for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold a cell's folder; a second run of the same cell gets a clear error at once."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise UserError(
            f"{folder} is in use: another run is working on this cell. Wait for it or stop it"
        ) from None


def new_attempt(cell_folder: Path) -> Path:
    """Make the next attempt's folder."""
    numbers = [int(path.name.removeprefix("attempt-")) for path in attempt_folders(cell_folder)]
    folder = cell_folder / f"attempt-{max(numbers, default=0) + 1:03d}"
    folder.mkdir(parents=True)
    return folder


# ---------------------------------------------------------------- reading


def attempt_folders(cell_folder: Path) -> list[Path]:
    return sorted(path for path in cell_folder.glob("attempt-*") if path.is_dir())


def parse_line(line: bytes) -> dict[str, Any]:
    """One whole JSON line."""
    row: dict[str, Any] = json.loads(line)
    return row


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a JSONL file.  Only its last line may be torn.

    Raises UserError where another line isn't JSON: the file was edited or damaged.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(parse_line(line))
        except ValueError:
            if number < len(lines):
                raise UserError(f"{path}:{number}: not JSON: the file was damaged") from None
    return rows


def read_json(path: Path) -> dict[str, Any] | None:
    """A file's JSON object, or None where it wasn't written."""
    return parse_line(path.read_bytes()) if path.exists() else None


def read_record(kind: type[R], path: Path) -> R | None:
    """A record, or None where it wasn't written (yet)."""
    if not path.exists():
        return None
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path}: {field}: {first['msg']}: the file was damaged") from None


@dataclass(frozen=True)
class Attempt:
    """One execution of a cell, read from its folder."""

    path: Path

    @cached_property
    def train(self) -> TrainRecord | None:
        return read_record(TrainRecord, self.path / "train.json")

    @cached_property
    def generate(self) -> GenerateRecord | None:
        return read_record(GenerateRecord, self.path / "generate.json")

    @cached_property
    def audit(self) -> Audit | None:
        return read_record(Audit, self.path / "audit.json")

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return read_lines(self.path / "events.jsonl")

    @cached_property
    def steps(self) -> list[StepEvent]:
        """Each step once: those that a resumed training did again count as it did them last."""
        return [StepEvent.model_validate(e) for e in self._kept[0] if e["event"] == "step"]

    @cached_property
    def evaluations(self) -> list[EvaluationEvent]:
        kept = (e for e in self._kept[0] if e["event"] == "evaluation")
        return [EvaluationEvent.model_validate(event) for event in kept]

    @cached_property
    def repeated_steps(self) -> list[StepEvent]:
        """Steps that were done, lost in an interruption and done again: spent, not counted."""
        return [StepEvent.model_validate(e) for e in self._kept[1] if e["event"] == "step"]

    @property
    def resumed_from_step(self) -> int | None:
        """The last checkpoint that training went on from; None where it ran in one go."""
        steps = [e["from_step"] for e in self.events if e.get("event") == "resume"]
        return steps[-1] if steps else None

    @cached_property
    def _kept(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Events of steps: (that count, that a later process did again)."""
        kept: list[dict[str, Any]] = []
        lost: list[dict[str, Any]] = []
        for event in self.events:
            if event.get("event") == "resume":
                lost += [e for e in kept if e["step"] > event["from_step"]]
                kept = [e for e in kept if e["step"] <= event["from_step"]]
            elif event.get("event") in ("step", "evaluation", "scored"):
                kept.append(event)
        return kept, lost

    @cached_property
    def predictions(self) -> list[Prediction]:
        """In the order of their ids, whatever order they were generated in."""
        rows = read_lines(self.path / "predictions.jsonl")
        kinds = (ApiPrediction if "response" in row else Prediction for row in rows)
        found = (kind.model_validate(row) for kind, row in zip(kinds, rows, strict=True))
        return sorted(found, key=lambda p: p.id)

    @cached_property
    def gpu_samples(self) -> list[GpuSample]:
        return [GpuSample.model_validate(row) for row in read_lines(self.path / "gpu.jsonl")]

    @cached_property
    def scored(self) -> list[tuple[ScoredEvent, list[ValidationAnswer]]]:
        """Each scoring in training, with its answers in the order of their ids."""
        kept = (e for e in self._kept[0] if e["event"] == "scored")
        events = [ScoredEvent.model_validate(event) for event in kept]
        if not events:
            return []
        answers: dict[int, dict[str, ValidationAnswer]] = {event.step: {} for event in events}
        for row in map(ValidationAnswer.model_validate, read_lines(self.path / "validation.jsonl")):
            answers.setdefault(row.step, {})[row.id] = row
        return [(e, sorted(answers[e.step].values(), key=lambda a: a.id)) for e in events]

    @cached_property
    def serve(self) -> ServeRecord | None:
        return read_record(ServeRecord, self.path / "serve.json")

    @cached_property
    def served(self) -> list[dict[str, Any]]:
        """The events of the serve phase's last process: an interrupted one is measured anew."""
        starts = [
            index
            for index, event in enumerate(self.events)
            if event.get("event") == "phase_start" and event.get("phase") == "serve"
        ]
        return self.events[starts[-1] :] if starts else []

    @property
    def requests(self) -> list[RequestEvent]:
        return [RequestEvent.model_validate(e) for e in self.served if e.get("event") == "request"]

    @property
    def loads(self) -> list[LoadEvent]:
        return [LoadEvent.model_validate(e) for e in self.served if e.get("event") == "load"]

    @property
    def phases(self) -> list[PhaseRecord]:
        """What makes and evaluates the cell.  Serving is looked at apart: see `serve`."""
        return [record for record in (self.train, self.generate) if record]

    @property
    def every_phase(self) -> list[PhaseRecord]:
        return [*self.phases, *([self.serve] if self.serve else [])]


def checkpoint(attempt: Path, folder: Path) -> tuple[int, Path] | None:
    """(step, folder) of the last whole checkpoint that training can go on from.

    An event tells that one is whole: a folder that is being written has no event yet.
    """
    told = (e["step"] for e in Attempt(attempt).events if e.get("event") == "checkpoint")
    for step in sorted(set(told), reverse=True):
        found = folder / f"checkpoint-{step}"
        if found.is_dir():
            return step, found
    return None


@dataclass(frozen=True)
class CellResult:
    """A cell and everything that was found about it."""

    cell: Cell
    path: Path

    @cached_property
    def attempts(self) -> list[Attempt]:
        return [Attempt(path) for path in attempt_folders(self.path)]

    @property
    def latest(self) -> Attempt | None:
        """The attempt to report: the last one that left a record."""
        return next((attempt for attempt in reversed(self.attempts) if attempt.phases), None)


def cell_folder(results: Path, cell: Cell) -> Path:
    return results / cell.suite / cell.id


def hygiene_file(results: Path, suite: str, dataset: str) -> Path:
    return results / suite / "data" / f"{dataset}.json"


def read_hygiene(results: Path, suite: str) -> dict[str, Hygiene]:
    """What was found about the rows of each dataset; empty where nobody looked."""
    from bench.score.hygiene import Hygiene  # brings numpy along, which `bench list` needs not

    files = sorted((results / suite / "data").glob("*.json"))
    records = [read_record(Hygiene, path) for path in files]
    return {record.dataset: record for record in records if record}


def read_suite(results: Path, suite: str) -> list[CellResult]:
    """All cells of a suite that results/ holds, in the order of their ids.

    Raises UserError where there are none.
    """
    found = []
    for path in sorted((results / suite).glob("*/cell.json")):
        cell = read_record(Cell, path)
        assert cell is not None
        found.append(CellResult(cell, path.parent))
    if not found:
        raise UserError(f"no results in {results / suite}: run `make bench SUITE={suite}` first")
    return found
