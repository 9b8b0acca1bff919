"""Nothing written is lost, torn or mixed up."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench import store
from bench.errors import UserError
from bench.record import Status, TrainRecord

from .conftest import environment


def test_json_is_strict_and_atomic(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "train.json"
    store.write_json(path, {"loss": math.nan, "rate": [math.inf, 1.5]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"loss": None, "rate": [None, 1.5]}
    with pytest.raises(TypeError):
        store.write_json(path, {"bad": object()})
    assert json.loads(path.read_text(encoding="utf-8"))["rate"] == [None, 1.5]  # the old one stays


def test_a_torn_last_line_is_skipped_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    store.append_line(path, {"step": 1})
    with path.open("ab") as file:
        file.write(b'{"step": 2, "lo')
    assert store.read_lines(path) == [{"step": 1}]
    store.cut_torn_line(path)
    store.append_line(path, {"step": 3})
    assert store.read_lines(path) == [{"step": 1}, {"step": 3}]


def test_a_damaged_middle_line_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"a": 1}\nnonsense\n{"a": 2}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"events.jsonl:2"):
        store.read_lines(path)


def test_appended_lines_of_many_processes_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    code = (
        "import sys; from pathlib import Path; from bench.store import append_line\n"
        "for i in range(200): append_line(Path(sys.argv[1]), {'who': sys.argv[2] * 500, 'i': i})"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(path), who], env=environment())
        for who in "ab"
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    rows = store.read_lines(path)
    assert len(rows) == 400
    assert {row["who"] for row in rows} == {"a" * 500, "b" * 500}


def test_a_locked_cell_is_refused_at_once(tmp_path: Path) -> None:
    with store.lock(tmp_path), pytest.raises(UserError, match="in use"), store.lock(tmp_path):
        pass


def test_attempts_are_numbered_on(tmp_path: Path) -> None:
    assert store.new_attempt(tmp_path).name == "attempt-001"
    assert store.new_attempt(tmp_path).name == "attempt-002"


def test_records_keep_what_a_newer_version_wrote(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    record = TrainRecord(status=Status.OK, started_at="2026-01-01T00:00:00", wall_s=1.0)
    store.write_json(path, record.model_dump(mode="json") | {"from_the_future": 7})
    read = store.read_record(TrainRecord, path)
    assert read is not None and read.model_extra == {"from_the_future": 7}
