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
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
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
# torchrun's variables.  Ours alone count: a cluster's shell may hold some of its own.
PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Worker(Protocol):
    """What the watcher needs of a process."""

    pid: int

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""

    def wait(self) -> int: ...


def ranks(cell: Cell, phase: str) -> int:
    """How many processes share a phase.  Generation spreads layers from one process."""
    return cell.data_parallel if phase == "train" else 1


def start(cell: Cell, attempt: Path, phase: str) -> list[Worker]:
    """Start a phase, each of its ranks in a session of its own, its output in a log of its own."""
    command = [phase, str(attempt.resolve())]
    world = ranks(cell, phase)
    places = _places(world) if world > 1 else [{}]
    begin = _Forked if cell.target.device == "cpu" else functools.partial(_fresh, cell)
    return [begin(command, log_file(attempt, rank), place) for rank, place in enumerate(places)]


def log_file(attempt: Path, rank: int) -> Path:
    return attempt / (f"log.rank-{rank}.txt" if rank else "log.txt")


def _places(world: int) -> list[dict[str, str]]:
    """torchrun's variables, of one node.  Without torchrun, whose agent would stand between us and
    each rank's exit code."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]


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


def kill(workers: Sequence[Worker]) -> None:
    """End each worker's whole group; nothing of them may go on holding memory."""
    for worker in workers:
        for end in (os.killpg, os.kill):  # a worker killed at once may have no group yet
            with contextlib.suppress(ProcessLookupError):
                end(worker.pid, signal.SIGKILL)
    for worker in workers:
        worker.wait()


# ---------------------------------------------------------------- fresh, for GPUs


class _Fresh(subprocess.Popen[bytes]):
    """subprocess's own process is a Worker already."""


def _fresh(cell: Cell, command: list[str], log: Path, place: dict[str, str]) -> Worker:
    with log.open("ab") as file:
        return _Fresh(
            [sys.executable, "-m", "bench.worker", *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**_variables(cell), **place},
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
    inherited = {name: value for name, value in os.environ.items() if name not in PLACE}
    return {**DEFAULTS, **ours, **inherited}


def visible_devices(cell: Cell) -> list[str]:
    """The GPUs that a worker sees, as CUDA_VISIBLE_DEVICES names them."""
    names = _variables(cell)["CUDA_VISIBLE_DEVICES"].split(",")
    return [name.strip() for name in names if name.strip()]


# ---------------------------------------------------------------- forked, for CPUs


def _context() -> ForkServerContext:
    for name, value in DEFAULTS.items():  # read when the forkserver imports torch
        os.environ.setdefault(name, value)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD])
    return context


class _Forked:
    """A worker forked from the forkserver, which starts with the first one."""

    def __init__(self, command: list[str], log: Path, place: dict[str, str]) -> None:
        self.process = _context().Process(target=_run_worker, args=(command, str(log), place))
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int:
        self.process.join()
        return self.process.exitcode or 0


def _run_worker(command: list[str], log: str, place: dict[str, str]) -> None:
    """In the forked process: what `python -m bench.worker` does in a fresh one."""
    os.setsid()
    for name in PLACE:
        os.environ.pop(name, None)
    os.environ.update(place)
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
