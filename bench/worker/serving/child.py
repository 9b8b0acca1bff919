"""A server as a child process: started on a free port, waited for, watched, stopped.

It stays in the worker's process group, so that whoever ends the worker's group ends it too; and it
asks the kernel to die with the worker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.record import Status
from bench.run import oom
from bench.worker.serving.engines import HOST, Command

POLL_S = 0.2
STOP_S = 10.0
TRIES = 3  # another program may take the free port before the server does
IN_USE = "address already in use"


class ServerFailed(Exception):
    """The server didn't start, or ended before it was told to."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Server:
    """A running server."""

    def __init__(self, command: Command, port: int, log: Path, environment: dict[str, str]) -> None:
        self.command, self.port, self.log = command, port, log
        self.kills_before = oom.kills()
        self.began = time.perf_counter()
        with log.open("ab") as file:
            self._from = file.tell()
            self.process = subprocess.Popen(
                command.arguments,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**environment, "BENCH_PARENT_PID": str(os.getpid())},
            )
        self.start_s: float | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def wait_healthy(self, limit_s: float) -> None:
        """Raises ServerFailed where it ends first, or is still not healthy after `limit_s`."""
        while not self._healthy():
            self.check()
            if time.perf_counter() - self.began > limit_s:
                last = self._last_line()
                why = f"the server was not healthy after {limit_s:g} s; its last line: {last}"
                raise ServerFailed(Status.TIMEOUT, why)
            time.sleep(POLL_S)
        self.start_s = time.perf_counter() - self.began

    def _healthy(self) -> bool:
        if not self._listens():
            return False  # else another program on this port could answer in its place
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _listens(self) -> bool:
        """Whether the port is this server's own; True where that can't be looked up."""
        for pid in self._pids():
            with contextlib.suppress(psutil.NoSuchProcess):
                try:
                    open_ = psutil.Process(pid).net_connections(kind="tcp")
                except psutil.AccessDenied:
                    return True
                if any(c.status == psutil.CONN_LISTEN and c.laddr.port == self.port for c in open_):
                    return True
        return False

    def check(self) -> None:
        """Raises ServerFailed where the process has ended."""
        code = self.process.poll()
        if code is None:
            return
        if code == -signal.SIGKILL and oom.kills() > self.kills_before:
            why = "the server was killed by the kernel's out-of-memory killer"
            raise ServerFailed(Status.OOM_HOST, why)
        if code < 0:
            why = f"the server was killed by signal {signal.Signals(-code).name}"
            raise ServerFailed(Status.KILLED, why)
        last = self._last_line()
        raise ServerFailed(_status_of(last), f"the server ended with exit code {code}: {last}")

    def text(self) -> str:
        """What this server has printed."""
        with self.log.open("rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")

    def _last_line(self) -> str:
        lines = self.text().strip().splitlines()
        return lines[-1][:300] if lines else "it printed nothing"

    def host_bytes(self) -> int | None:
        """Peak resident bytes, by the kernel's own mark; the sum over the server's processes."""
        marks = [_high_water(pid) for pid in self._pids()]
        return sum(mark for mark in marks if mark) or None

    def device_bytes(self) -> int | None:
        """What the driver reports for its processes on the fullest GPU; None where it can't tell.
        Both engines take cache once and keep it, so what is held now is the peak."""
        import pynvml

        pids = set(self._pids())
        try:
            pynvml.nvmlInit()
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            held = [
                sum(p.usedGpuMemory or 0 for p in running if p.pid in pids)
                for handle in handles
                if (running := pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) is not None
            ]
        except pynvml.NVMLError:
            return None
        return max(held, default=0) or None

    def _pids(self) -> list[int]:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            return [root.pid, *(child.pid for child in root.children(recursive=True))]
        return []

    def stop(self) -> None:
        """End it and everything that it started."""
        pids = self._pids()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        self.process.wait()


def _status_of(line: str) -> Status:
    """Of a server that ended by itself."""
    lowered = line.lower()
    if "outofmemoryerror" in lowered or "cuda out of memory" in lowered:
        return Status.OOM_GPU
    if "memoryerror" in lowered or "can't allocate memory" in lowered:
        return Status.OOM_HOST
    return Status.ERROR


def _high_water(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


@contextmanager
def running(
    command: Callable[[int], Command], log: Path, environment: dict[str, str], limit_s: float
) -> Iterator[Server]:
    """A healthy server on a free port; stopped at the end, however that comes.

    Raises ServerFailed.
    """
    server = _started(command, log, environment, limit_s)
    try:
        yield server
    finally:
        server.stop()


def _started(
    command: Callable[[int], Command], log: Path, environment: dict[str, str], limit_s: float
) -> Server:
    for attempt in range(TRIES):
        port = free_port()
        server = Server(command(port), port, log, environment)
        try:
            server.wait_healthy(limit_s)
        except ServerFailed:
            server.stop()
            if IN_USE not in server.text().lower() or attempt == TRIES - 1:
                raise
        except BaseException:
            server.stop()
            raise
        else:
            return server
    raise AssertionError("unreachable")
