"""One phase as a process group: start, watch, limit, end; then its record.

The worker appends events; this process, which outlives it, writes the record exactly once.
A worker that dies without a last word is classified from the outside.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bench import environment, store
from bench.record import GenerateRecord, Memory, PhaseRecord, Status, TrainRecord
from bench.run import oom, process
from bench.spec import Budget, Cell

POLL_S = 0.1
KINDS: dict[str, type[PhaseRecord]] = {"train": TrainRecord, "generate": GenerateRecord}
OnEvent = Callable[[dict[str, Any]], None]


def run_phase(cell: Cell, attempt: Path, phase: str, on_event: OnEvent) -> PhaseRecord:
    """Run a phase to its end, whatever that is, and write its record.

    An interrupt (Ctrl-C) ends the worker, writes no record and goes on up: the phase can resume.
    """
    events = attempt / "events.jsonl"
    process.warm(cell.target.device)
    machine = environment.snapshot()
    store.append_line(events, {"event": "phase_start", "phase": phase, "t": time.time()})
    watch = _Watch(process.start(cell, attempt, phase), cell.budget, events, on_event)
    killed_before = oom.kills()
    try:
        watch.until_end()
    finally:
        process.kill(watch.worker)
    death = watch.death or _death(watch.worker, oom.kills() > killed_before, attempt / "log.txt")
    record = compose(attempt, phase, death)
    record.environment = machine
    record.memory["process"] = Memory(host_bytes=watch.peak_bytes or None)
    store.write_json(attempt / f"{phase}.json", record)
    return record


def compose(attempt: Path, phase: str, death: tuple[Status, str] | None) -> PhaseRecord:
    """The record of a phase from its events; `death` speaks where the worker couldn't."""
    runs = _processes(attempt, phase)
    started = runs[0][0]["t"]
    end = next((event for event in runs[-1] if event["event"] == "phase_end"), None)
    wall_s = sum(run[-1]["t"] - run[0]["t"] for run in runs[:-1])
    wall_s += (time.time() if death is not None else runs[-1][-1]["t"]) - runs[-1][0]["t"]
    stages = [event["stage"] for event in runs[-1] if event["event"] == "stage"]
    common: dict[str, Any] = {
        "phase": phase,
        "started_at": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "wall_s": wall_s,
        "interruptions": len(runs) - 1,
    }
    if end:
        told = {name: end[name] for name in ("status", "reason", "stage", "stage_s", "memory")}
        return KINDS[phase](**common, **told, **end["facts"])
    status, reason = death or (Status.KILLED, "no end was recorded")
    stage = stages[-1] if stages else "start"
    return KINDS[phase](
        **common, status=status, reason=reason, stage=stage, **_counted(attempt, phase)
    )


def left_last_word(attempt: Path, phase: str) -> bool:
    """Whether a worker ended the phase properly, even if nobody wrote its record."""
    runs = _processes(attempt, phase)
    return bool(runs) and any(event["event"] == "phase_end" for event in runs[-1])


def _processes(attempt: Path, phase: str) -> list[list[dict[str, Any]]]:
    """The phase's events, one list for each process that ran it."""
    runs: list[list[dict[str, Any]]] = []
    current = None
    for event in store.read_lines(attempt / "events.jsonl"):
        if event["event"] == "phase_start":
            current = event["phase"]
            if current == phase:
                runs.append([])
        if current == phase:
            runs[-1].append(event)
    return runs


def _counted(attempt: Path, phase: str) -> dict[str, Any]:
    """What a worker had done when it died: the steps and rows in its files stay results."""
    found = store.Attempt(attempt)
    if phase == "generate":
        return {"rows": len(found.predictions)}
    steps = found.steps
    return {
        "steps": len(steps),
        "tokens": sum(step.tokens for step in steps),
        "padded_tokens": sum(step.padded_tokens for step in steps),
        "supervised_tokens": sum(step.supervised_tokens for step in steps),
        "first_loss": steps[0].loss if steps else None,
        "final_loss": steps[-1].loss if steps else None,
    }


# ---------------------------------------------------------------- watching


@dataclass
class _Watch:
    """Follows a worker: its events, its memory, its limits."""

    worker: process.Worker
    budget: Budget
    events: Path
    on_event: OnEvent
    peak_bytes: int = 0
    death: tuple[Status, str] | None = None
    _offset: int = 0
    _started: float = field(default_factory=time.monotonic)

    def until_end(self) -> None:
        self._offset = self.events.stat().st_size
        while self.worker.poll() is None and not self.death:
            time.sleep(POLL_S)
            self._tell()
            self.death = self._over_limit(self._measure())
        self._tell()

    def _tell(self) -> None:
        """Pass on the whole lines that were appended since the last look."""
        with self.events.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self.on_event(store.parse_line(line))

    def _measure(self) -> int:
        """Resident bytes of the worker and its descendants now (shared pages count for each)."""
        total = 0
        try:
            root = psutil.Process(self.worker.pid)
            for member in (root, *root.children(recursive=True)):
                total += member.memory_info().rss
        except psutil.NoSuchProcess:
            pass  # it ended while we looked
        self.peak_bytes = max(self.peak_bytes, total)
        return total

    def _over_limit(self, host_bytes: int) -> tuple[Status, str] | None:
        limit = self.budget.host_memory_limit_gib
        if limit and host_bytes > limit * 2**30:
            held = host_bytes / 2**30
            return Status.OOM_HOST, f"held {held:.2f} GiB of host memory, the limit is {limit} GiB"
        seconds = self.budget.time_limit_s
        if seconds and time.monotonic() - self._started > seconds:
            return Status.TIMEOUT, f"still running after the limit of {seconds} s"
        return None


def _death(worker: process.Worker, kernel_killed: bool, log: Path) -> tuple[Status, str] | None:
    """What an exit code says about a worker that left no last word; None where it left one."""
    code = worker.wait()
    if code == 0:
        return None
    if code == -signal.SIGKILL and kernel_killed:
        return Status.OOM_HOST, "killed by the kernel's out-of-memory killer"
    if code < 0:
        return Status.KILLED, f"killed by signal {signal.Signals(-code).name}"
    return Status.ERROR, f"exit code {code}: {_last_line(log)}"


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it printed nothing"
