"""A worker as a process: fresh for a GPU, forked from a warm one for a CPU.

Importing torch, transformers, peft and trl takes ten seconds on two cores, several times what a
small cell trains.  On a CPU workers are therefore forked (multiprocessing's forkserver) from a
process that has imported them and done nothing else: no worker inherits another one's memory.
CUDA doesn't survive a fork, and next to a GPU run the imports don't count: there each is fresh.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Protocol

from bench import environment
from bench.spec import Cell

PRELOAD = "bench.worker.preload"
# OpenMP threads that wait spin first.  Measured on two quiet cores, a tiny model's step: 0.31 s as
# the library would (300,000 rounds), 0.24 s with 5,000, 0.54 s without; beside a busy neighbour,
# long spinning costs a multiple.
DEFAULTS = {"GOMP_SPINCOUNT": "5000", "PYTHONUNBUFFERED": "1"}


class Worker(Protocol):
    """What the watcher needs of a process."""

    pid: int

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""

    def wait(self) -> int: ...


def start(cell: Cell, attempt: Path, phase: str) -> Worker:
    """Start a phase in a session of its own, its output in the attempt's log.txt."""
    command = [phase, str(attempt.resolve())]
    log = attempt / "log.txt"
    if cell.target.device == "cpu":
        return _Forked(command, log)
    return _fresh(cell, command, log)


def prepare(cell_file: Path) -> int:
    """Make the cell's model if it has to be made, apart from what is timed; returns 0 if it did."""
    command = [sys.executable, "-m", "bench.worker.prepare", str(cell_file)]
    variables = {**DEFAULTS, **os.environ, "BENCH_PARENT_PID": str(os.getpid())}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env=variables, check=False
    )
    return done.returncode


@functools.cache
def warm(device: str) -> None:
    """Wait until the forkserver has imported everything: the first cell shall not pay for it."""
    if device == "cpu":
        first = _context().Process(target=os.getpid)
        first.start()
        first.join()


def kill(worker: Worker) -> None:
    """End the worker's whole group; nothing of it may go on holding memory."""
    for end in (os.killpg, os.kill):  # a worker killed at once may have no group yet
        with contextlib.suppress(ProcessLookupError):
            end(worker.pid, signal.SIGKILL)
    worker.wait()


# ---------------------------------------------------------------- fresh, for GPUs


class _Fresh(subprocess.Popen[bytes]):
    """subprocess's own process is a Worker already."""


def _fresh(cell: Cell, command: list[str], log: Path) -> Worker:
    with log.open("ab") as file:
        return _Fresh(
            [sys.executable, "-m", "bench.worker", *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_variables(cell),
        )


def _variables(cell: Cell) -> dict[str, str]:
    """Only as many GPUs as the target has, even where there are more; what is set already counts
    more than what we would set."""
    indices = environment.matching(cell.target, environment.gpus())
    ours = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the driver's order, which the indices mean
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in indices),
        "BENCH_PARENT_PID": str(os.getpid()),
    }
    return {**DEFAULTS, **ours, **os.environ}


# ---------------------------------------------------------------- forked, for CPUs


def _context() -> ForkServerContext:
    for name, value in DEFAULTS.items():  # read when the forkserver imports torch
        os.environ.setdefault(name, value)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD])
    return context


class _Forked:
    """A worker forked from the forkserver, which starts with the first one."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.process = _context().Process(target=_run_worker, args=(command, str(log)))
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int:
        self.process.join()
        return self.process.exitcode or 0


def _run_worker(command: list[str], log: str) -> None:
    """In the forked process: what `python -m bench.worker` does in a fresh one."""
    os.setsid()
    threading.Thread(target=_die_with_runner, daemon=True).start()
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["BENCH_PARENT_PID"] = str(os.getppid())
    sys.argv = ["bench.worker", *command]
    runpy.run_module("bench.worker", run_name="__main__")


def _die_with_runner() -> None:
    """Wait for the runner's end, however it ends: the forkserver would keep the worker alive."""
    runner = multiprocessing.parent_process()
    assert runner is not None
    runner.join()
    os.killpg(0, signal.SIGKILL)
