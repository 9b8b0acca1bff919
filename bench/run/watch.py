"""Follows the processes of a phase: their events, their memory, their limits, their deaths.

Several ranks live and die together: when one is gone the others wait for it in a collective, for
half an hour.  So the first sign of an end (an exit code, a last word that isn't "ok") ends all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench import store
from bench.record import Status
from bench.run import process
from bench.spec import Budget

POLL_S = 0.1
SETTLE_S = 1.0  # after the first sign: what the other ranks have to say about it
OnEvent = Callable[[dict[str, Any]], None]
Death = tuple[Status, str, int]  # what it was, why, whose


@dataclass
class Watch:
    """Follows a phase's workers to their end, whatever that is."""

    workers: Sequence[process.Worker]
    budget: Budget
    events: Path
    on_event: OnEvent
    look: Callable[[], None] = lambda: None  # at each poll: whoever else wants to see
    peak_bytes: int = 0
    limit: Death | None = None
    first_dead: tuple[int, int] | None = None  # (rank, exit code) of the first that died by itself
    _offset: int = 0
    _failing_since: float | None = None
    _started: float = field(default_factory=time.monotonic)
    _heard: float = field(default_factory=time.monotonic)

    def until_end(self) -> None:
        self._offset = self.events.stat().st_size
        while not self._over() and not self.limit:
            time.sleep(POLL_S)
            self._tell()
            self.look()
            self.limit = self._over_limit(self._measure())
        self._tell()

    def _over(self) -> bool:
        """All have ended, or one has failed and the others had their time to say why."""
        codes = [worker.poll() for worker in self.workers]
        if self.first_dead is None:
            dead = [(rank, code) for rank, code in enumerate(codes) if code]
            # SIGKILL comes from outside; an abort may be a rank's answer to another one's death
            dead.sort(key=lambda one: one[1] != -signal.SIGKILL)
            self.first_dead = dead[0] if dead else None
        if None not in codes:
            return True
        if self.first_dead is not None and self._failing_since is None:
            self._failing_since = time.monotonic()
        return self._failing_since is not None and time.monotonic() - self._failing_since > SETTLE_S

    def _tell(self) -> None:
        """Pass on the whole lines that were appended since the last look."""
        with self.events.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            event = store.parse_line(line)
            self._heard = time.monotonic()
            failed = event["event"] == "phase_end" and event["status"] not in ("ok", "invalid")
            if failed and self._failing_since is None:
                self._failing_since = time.monotonic()
            if not event.get("rank"):
                self.on_event(event)

    def _measure(self) -> int:
        """Resident bytes of the workers and their descendants now (shared pages count for each)."""
        total = 0
        for worker in self.workers:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended while we looked
                root = psutil.Process(worker.pid)
                for member in (root, *root.children(recursive=True)):
                    total += member.memory_info().rss
        self.peak_bytes = max(self.peak_bytes, total)
        return total

    def _over_limit(self, host_bytes: int) -> Death | None:
        now, budget = time.monotonic(), self.budget
        limit = budget.host_memory_limit_gib
        if limit and host_bytes > limit * 2**30:
            held = host_bytes / 2**30
            why = f"held {held:.2f} GiB of host memory, the limit is {limit} GiB"
            return Status.OOM_HOST, why, 0
        seconds = budget.time_limit_s
        if seconds and now - self._started > seconds:
            return Status.TIMEOUT, f"still running after the limit of {seconds} s", 0
        if len(self.workers) > 1 and now - self._heard > budget.hang_limit_s:
            self._ask_where()
            silent = f"no rank was heard of for {budget.hang_limit_s} s"
            why = f"{silent}; where each one hung is in its log"
            return Status.TIMEOUT, why, 0
        return None

    def _ask_where(self) -> None:
        """Have each rank write its threads' stacks to its log."""
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGUSR1)
        time.sleep(SETTLE_S)

    def death(self, kernel_killed: bool, attempt: Path) -> Death | None:
        """What the outside says about an end without a last word; None where nothing died."""
        if self.limit or self.first_dead is None:
            return self.limit
        rank, code = self.first_dead
        who = f"rank {rank}: " if len(self.workers) > 1 else ""
        if code == -signal.SIGKILL and kernel_killed:
            return Status.OOM_HOST, f"{who}killed by the kernel's out-of-memory killer", rank
        if code < 0:
            return Status.KILLED, f"{who}killed by signal {signal.Signals(-code).name}", rank
        last = _last_line(process.log_file(attempt, rank))
        return Status.ERROR, f"{who}exit code {code}: {last}", rank


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it printed nothing"
