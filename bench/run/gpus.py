"""Energy, power, use and heat of a phase's GPUs, read from the driver beside the running workers.

The sensors are read twice a second; a line of gpu.jsonl holds what was read since the line before:
one a second at first, fewer in a long phase, so that eight hours leave about 3,000 lines.  Energy
is the driver's own counter (since Volta), else the integral of the power readings.

Known limit: on A100 and H100 the power sensor sees a quarter of the time (Yang, Adamek and Armour
2023, arXiv:2312.02741), so short phases are only roughly known.

    python -m pytest tests/run/test_gpus.py
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.record import GpuReading, GpuSample, GpuUse
from bench.run import process
from bench.spec import Cell
from bench.store import append_line

FILE = "gpu.jsonl"
READ_EVERY_S = 0.5
LINE_EVERY_S = 1.0
LINES = 600  # then a line each time that the phase has lasted 1/600 longer
TEMPERATURE_GPU = 0  # NVML_TEMPERATURE_GPU
# Bits of nvmlClocksEventReasons; what is left out says nothing about a machine in trouble.
SLOWED = {0x04: "power cap", 0x08: "hardware", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}


@dataclass
class _Device:
    """One GPU: what was read of it since the phase began, and since the last line."""

    handle: Any
    counter_mj: float | None = None  # where the driver's counter stood
    energy_j: float | None = None
    power: tuple[float, float] | None = None  # (when, W) of the last reading
    since_line: list[dict[str, Any]] = field(default_factory=list)
    readings: int = 0
    watts: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    hottest: float | None = None
    slowed: Counter[str] = field(default_factory=Counter)


class Sampler:
    """Reads the GPUs of one phase whenever it is asked to look."""

    def __init__(
        self,
        file: Path,
        phase: str,
        handles: Sequence[Any],
        nvml: Any,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.file, self.phase, self.nvml, self.clock = file, phase, nvml, clock
        self.devices = [_Device(handle) for handle in handles]
        self.since = self._read_at = clock()
        self._line_at = 0.0
        self._read()
        self._write()

    def look(self) -> None:
        """Read the sensors, if it is time."""
        now = self.clock()
        if now - self._read_at < READ_EVERY_S:
            return
        self._read_at = now
        self._read()
        if now - self._line_at >= max(LINE_EVERY_S, (now - self.since) / LINES):
            self._write()

    def close(self) -> list[GpuUse]:
        """The last line, and each device's sums over the phase."""
        self._read()
        self._write()
        seconds = self._line_at - self.since
        return [_use(device, seconds) for device in self.devices]

    def _read(self) -> None:
        for device in self.devices:
            self._read_one(device, self.clock())

    def _read_one(self, device: _Device, now: float) -> None:
        nvml = self.nvml
        counter_mj = self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, device.handle)
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, device.handle)
        use = self._ask(nvml.nvmlDeviceGetUtilizationRates, device.handle)
        heat = self._ask(nvml.nvmlDeviceGetTemperature, device.handle, TEMPERATURE_GPU)
        bits = self._ask(_reasons(nvml), device.handle) or 0
        watts = None if power is None else power / 1000
        _add_energy(device, now, counter_mj, watts)
        names = {name for bit, name in SLOWED.items() if bits & bit}
        busy = None if use is None else use.gpu / 100
        device.since_line.append({"w": watts, "busy": busy, "heat": heat, "slowed": names})
        device.readings += 1
        device.watts += [] if watts is None else [watts]
        device.busy += [] if busy is None else [busy]
        device.hottest = _most([device.hottest, heat])
        device.slowed.update(names)

    def _ask(self, what: Callable[..., Any], *arguments: Any) -> Any:
        """A sensor that this GPU lacks, or a GPU that fell off its bus, is unknown: no failure."""
        try:
            return what(*arguments)
        except self.nvml.NVMLError:
            return None

    def _write(self) -> None:
        self._line_at = self.clock()
        devices = [_line(device) for device in self.devices]
        sample = GpuSample(phase=self.phase, since=self.since, t=self._line_at, devices=devices)
        append_line(self.file, sample)


def _add_energy(device: _Device, now: float, counter_mj: float | None, watts: float | None) -> None:
    """By the counter; without one, trapezoids under the power readings."""
    before, device.power = device.power, None if watts is None else (now, watts)
    if counter_mj is not None:
        if device.counter_mj is None:
            device.counter_mj = counter_mj
        device.energy_j = (counter_mj - device.counter_mj) / 1000
    elif device.counter_mj is None and watts is not None:
        if before is None:
            device.energy_j = device.energy_j or 0.0
        else:
            part = (watts + before[1]) / 2 * (now - before[0])
            device.energy_j = (device.energy_j or 0.0) + part


def _line(device: _Device) -> GpuReading:
    found, device.since_line = device.since_line, []
    return GpuReading(
        energy_j=device.energy_j,
        power_w=_mean([one["w"] for one in found]),
        utilization=_mean([one["busy"] for one in found]),
        temperature_c=_most([one["heat"] for one in found]),
        readings=len(found),
        slowed=dict(Counter(name for one in found for name in sorted(one["slowed"]))),
    )


def _use(device: _Device, seconds: float) -> GpuUse:
    return GpuUse(
        seconds=seconds,
        energy_j=device.energy_j,
        energy_source=None
        if device.energy_j is None
        else ("power" if device.counter_mj is None else "counter"),
        power_w=_mean(device.watts),
        utilization=_mean(device.busy),
        temperature_c=device.hottest,
        slowed={name: count / device.readings for name, count in sorted(device.slowed.items())},
    )


def _reasons(nvml: Any) -> Callable[..., Any]:
    """Renamed by NVIDIA; both names give the same bits."""
    new = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return new or nvml.nvmlDeviceGetCurrentClocksThrottleReasons  # type: ignore[no-any-return]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


# ---------------------------------------------------------------- which GPUs


def sampler(cell: Cell, attempt: Path, phase: str) -> Sampler | None:
    """For the GPUs that the cell's workers see; None on a CPU, or without a driver."""
    if cell.target.device != "cuda":
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [_handle(pynvml, name) for name in process.visible_devices(cell)]
    except (pynvml.NVMLError, ValueError):
        return None
    return Sampler(attempt / FILE, phase, handles, pynvml) if handles else None


def _handle(nvml: Any, name: str) -> Any:
    """By number in the driver's order, or by UUID, as CUDA_VISIBLE_DEVICES may have it."""
    if name.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)
