"""Stage clock, memory peaks and events of one phase, in one of its ranks.

What all ranks did together (steps, evaluations) rank 0 tells; stages and the end each rank does.

Stages (import, load, train, evaluate, save, generate) may nest; time and memory belong to the
innermost one.  Host peaks come from the kernel's own high-water mark where it can be reset
(/proc/self/clear_refs, Linux): sampling would miss short peaks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel

from bench.record import Memory, Status
from bench.store import append_line
from bench.worker import ranks

PROCESS = psutil.Process()
CLEAR_REFS = "/proc/self/clear_refs"
CAN_RESET_PEAK = os.access(CLEAR_REFS, os.W_OK)


class Recorder:
    """Writes an attempt's events and adds up its stages."""

    def __init__(self, attempt: Path, phase: str) -> None:
        self.attempt = attempt
        self.phase = phase
        self.stage_s: dict[str, float] = {}
        self.memory: dict[str, Memory] = {}
        self.baseline_bytes: int | None = None
        self._stack: list[str] = []
        self._since = time.perf_counter()

    def emit(self, event: BaseModel | dict[str, Any]) -> None:
        """Tell what the ranks did together: rank 0 speaks for all."""
        if ranks.rank() == 0:
            append_line(self.attempt / "events.jsonl", event)

    def _own(self, event: dict[str, Any]) -> None:
        """Tell what this rank does."""
        if ranks.world() > 1:
            event["rank"] = ranks.rank()
        append_line(self.attempt / "events.jsonl", event)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Account time and memory to `name` until the block ends.

        An exception leaves the stack as it is, so that `end` can say where it happened.
        """
        self._settle()
        self._stack.append(name)
        self._tell_stage()
        yield
        self._settle()
        self._stack.pop()
        if self._stack:
            self._tell_stage()  # back in the outer one: a death must not look like the inner one's

    def _tell_stage(self) -> None:
        stage = self._stack[-1]
        self._own({"event": "stage", "phase": self.phase, "stage": stage, "t": time.time()})

    def set_baseline(self) -> None:
        """From here on memory is the cell's own: imports are over, no weight is loaded."""
        self.baseline_bytes = PROCESS.memory_info().rss

    def end(
        self, status: Status, reason: str | None, facts: dict[str, Any], *, lost_peer: bool = False
    ) -> None:
        """The rank's last event: everything that the runner needs for the record.

        `lost_peer`: it only failed because another rank was gone.
        """
        stage = self._stack[-1] if self._stack else None
        self._settle()
        self._own(
            {
                "event": "phase_end",
                "phase": self.phase,
                "t": time.time(),
                "status": status,
                "reason": reason,
                "stage": None if status is Status.OK else stage,
                "stage_s": {name: round(s, 6) for name, s in self.stage_s.items()},
                "memory": {name: m.model_dump() for name, m in self.memory.items()},
                "facts": facts,
                **({"lost_peer": True} if lost_peer else {}),
            }
        )

    def _settle(self) -> None:
        """Book the time and the peaks since the last change of stage."""
        synchronize()
        now = time.perf_counter()
        if self._stack:
            name = self._stack[-1]
            self.stage_s[name] = self.stage_s.get(name, 0.0) + now - self._since
            peak = peaks()
            peak.host_baseline_bytes = self.baseline_bytes
            self.memory[name] = _larger(self.memory.get(name), peak)
        self._since = now
        reset_peaks()


def _larger(old: Memory | None, new: Memory) -> Memory:
    if old is None:
        return new
    merged = {}
    for name in type(new).model_fields:
        values = [v for v in (getattr(old, name), getattr(new, name)) if v is not None]
        merged[name] = max(values, default=None)
    return Memory(**merged)


# ---------------------------------------------------------------- counters


def cuda() -> Any:
    """torch.cuda where it is loaded and has a device, else None (imports nothing by itself)."""
    import sys

    torch = sys.modules.get("torch")
    return torch.cuda if torch and torch.cuda.is_available() else None


def devices() -> list[int]:
    """The GPUs that this process uses: its own as one of several ranks, else all.  Even asking
    another rank's GPU would take memory there."""
    device = cuda()
    if not device:
        return []
    return [ranks.local_rank()] if ranks.world() > 1 else list(range(device.device_count()))


def synchronize() -> None:
    for index in devices():
        cuda().synchronize(index)


def peaks() -> Memory:
    """Peaks since `reset_peaks`."""
    memory = Memory(host_bytes=host_peak_bytes())
    device, own = cuda(), devices()
    if own:  # the fullest one decides
        memory.allocated_bytes = max(device.max_memory_allocated(i) for i in own)
        memory.reserved_bytes = max(device.max_memory_reserved(i) for i in own)
        memory.device_bytes = driver_bytes()
    return memory


def reset_peaks() -> None:
    if CAN_RESET_PEAK:
        with open(CLEAR_REFS, "w", encoding="ascii") as file:
            file.write("5")  # resets VmHWM only
    for index in devices():
        cuda().reset_peak_memory_stats(index)


def host_peak_bytes() -> int:
    """High-water mark of this process's resident set since the last reset.

    Where the mark can't be reset it would be the whole process's: then what is resident now.
    """
    if CAN_RESET_PEAK:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    return int(PROCESS.memory_info().rss)


def driver_bytes() -> int | None:
    """What the driver reports for this process on its fullest GPU; None where it can't tell."""
    import pynvml

    try:
        pynvml.nvmlInit()
        held = [
            process.usedGpuMemory
            for index in range(pynvml.nvmlDeviceGetCount())
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(
                pynvml.nvmlDeviceGetHandleByIndex(index)
            )
            if process.pid == os.getpid() and process.usedGpuMemory
        ]
    except pynvml.NVMLError:
        return None
    return max(held, default=None)  # containers hide pids: nothing found is unknown, not zero
