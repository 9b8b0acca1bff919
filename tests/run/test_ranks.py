"""Ranks live and die together, and the one that failed says why."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench import store
from bench.record import Memory, Status
from bench.run import launch, process

from ..conftest import ROOT
from .ranks import Trained, make_cell, train

pytest.importorskip("torch")

LONG = {"max_steps": 2000, "evaluate_every": 5000, "hang_limit_s": 120}


@pytest.fixture(autouse=True)
def in_project(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("ADAPTBENCH_CACHE", str(cache))


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The ranks' process ids, by rank, once they have been started."""
    found: list[int] = []
    start = process.start

    def noting(*arguments: Any) -> Any:
        workers = start(*arguments)
        found.extend(worker.pid for worker in workers)
        return workers

    monkeypatch.setattr(process, "start", noting)
    yield found
    assert found and not [pid for pid in found if _alive(pid)]  # nothing goes on holding memory


def _alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def disturbed(
    folder: Path, pids: list[int], how: Callable[[int], None], **budget: int
) -> tuple[Trained, float]:
    """Train on two ranks under ddp; after two steps do something to rank 1.

    Returns the cell and the seconds that it went on.
    """
    cell = make_cell("tiny-llama", "lora", "ddp", budget=LONG | budget)
    done: list[Trained] = []
    runner = threading.Thread(target=lambda: done.append(train(cell, folder)), daemon=True)
    runner.start()
    end = time.monotonic() + 120
    while sum(row["event"] == "step" for row in _events(folder)) < 2:
        assert time.monotonic() < end and runner.is_alive(), "no step was made"
        time.sleep(0.1)
    how(pids[1])
    since = time.monotonic()
    runner.join(timeout=90)
    assert done
    return done[0], time.monotonic() - since


def _events(folder: Path) -> list[dict[str, Any]]:
    return [row for log in folder.rglob("events.jsonl") for row in store.read_lines(log)]


def test_a_killed_rank_ends_the_others(tmp_path: Path, pids: list[int]) -> None:
    trained, seconds = disturbed(tmp_path, pids, lambda pid: os.kill(pid, signal.SIGKILL))
    assert trained.record.status is Status.KILLED
    assert trained.record.reason == "rank 1: killed by signal SIGKILL"
    assert trained.record.stage == "train" and trained.record.steps >= 2
    assert trained.record.tokens > 0 and seconds < 10


def test_a_rank_without_memory_is_the_cause(tmp_path: Path, pids: list[int]) -> None:
    def starve(pid: int) -> None:
        psutil.Process(pid).rlimit(resource.RLIMIT_AS, (2**20, 2**20))

    trained, seconds = disturbed(tmp_path, pids, starve)
    assert trained.record.status is Status.OOM_HOST, trained.record.reason
    assert str(trained.record.reason).startswith("rank 1: ") and seconds < 15


@pytest.mark.matrix  # the limit has to be longer than loading takes on a busy machine
def test_a_rank_that_hangs_is_found(tmp_path: Path, pids: list[int]) -> None:
    stop = lambda pid: os.kill(pid, signal.SIGSTOP)  # noqa: E731
    trained, seconds = disturbed(tmp_path, pids, stop, hang_limit_s=20)
    assert trained.record.status is Status.TIMEOUT
    assert "no rank was heard of for 20 s" in str(trained.record.reason) and seconds < 40
    stacks = (trained.attempt.path / "log.txt").read_text(encoding="utf-8")
    assert "most recent call first" in stacks and "train.py" in stacks  # where rank 0 waited


# ---------------------------------------------------------------- the record, from events


def written(folder: Path, *ends: dict[str, Any]) -> Path:
    events = folder / "events.jsonl"
    start = {"event": "phase_start", "phase": "train", "t": 100.0, "ranks": 2}
    store.append_line(events, start)
    for rank in (0, 1):
        more = {"stage": "train", "t": 101.0, "rank": rank}
        store.append_line(events, {"event": "stage", "phase": "train", **more})
    for end in ends:
        common = {"event": "phase_end", "phase": "train", "stage": "train", "stage_s": {}}
        store.append_line(events, {**common, "reason": None, "memory": {}, "facts": {}, **end})
    return folder


def test_the_first_own_failure_is_the_cause(tmp_path: Path) -> None:
    lost = {"rank": 0, "t": 102.0, "status": "error", "reason": "closed", "lost_peer": True}
    own = {"rank": 1, "t": 102.5, "status": "oom_gpu", "reason": "CUDA out of memory"}
    written(tmp_path, lost, own)
    record = launch.compose(tmp_path, "train", (Status.KILLED, "rank 0: SIGABRT", 0))
    assert record.status is Status.OOM_GPU and record.reason == "rank 1: CUDA out of memory"


def test_a_death_explains_more_than_a_lost_peer(tmp_path: Path) -> None:
    lost = {"rank": 0, "t": 102.0, "status": "error", "reason": "closed", "lost_peer": True}
    death = (Status.OOM_HOST, "rank 1: killed by the kernel", 1)
    record = launch.compose(written(tmp_path, lost), "train", death)
    assert record.status is Status.OOM_HOST and record.stage == "train"


def test_one_rank_that_ended_well_is_not_the_end(tmp_path: Path) -> None:
    written(tmp_path, {"rank": 0, "t": 102.0, "status": "ok"})
    assert not launch.left_last_word(tmp_path, "train")
    assert launch.compose(tmp_path, "train", None).status is Status.KILLED


def test_memory_is_the_fullest_gpu_and_the_whole_host(tmp_path: Path) -> None:
    def end(rank: int, gpu: int, host: int) -> dict[str, Any]:
        held = Memory(reserved_bytes=gpu, host_bytes=host, host_baseline_bytes=1).model_dump()
        return {"rank": rank, "t": 102.0, "status": "ok", "memory": {"load": held}}

    record = launch.compose(written(tmp_path, end(0, 5, 10), end(1, 7, 20)), "train", None)
    assert record.status is Status.OK and record.ranks == 2
    load = record.memory["load"]
    assert (load.reserved_bytes, load.host_bytes, load.host_baseline_bytes) == (7, 30, 2)
    assert [one["load"].host_bytes for one in record.rank_memory] == [10, 20]
