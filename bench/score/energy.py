"""Energy and use of GPUs, from the samples that were taken beside a phase.

Each sample holds what a GPU had used since the phase began.  Between two samples that is a straight
line, so the energy of a step is what the line gained while it ran; loading, evaluation and saving
fall outside.  Good for means over many steps, not for a single short one.

    python -m pytest tests/score/test_energy.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from bench.record import GpuSample, StepEvent
from bench.score.resample import SEED, FloatArray, known, percentile_interval
from bench.score.speed import block_draws

J_PER_WH = 3600.0
# What says that a machine ran slower than it can; "power cap" is how a busy GPU normally runs.
TROUBLE = ("heat", "hardware", "power brake")
MAX_SLOWED = 0.05  # share of readings


class Energy(BaseModel):
    """Of all GPUs together, over the steps that the samples cover.

    `low` and `high`: 95 % interval of Wh per million tokens over blocks of steps.  `power_w` is the
    sum over devices; `utilization` (share of time with a kernel running) their mean.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    joules: float
    wh_per_million_tokens: float | None
    low: float | None
    high: float | None
    power_w: float | None
    utilization: float | None
    temperature_c: float | None
    slowed: dict[str, float]
    n_steps: int

    @property
    def trouble(self) -> str | None:
        """What held the clocks back often enough to distrust a speed, or None."""
        found = [
            f"{name} held the clocks back in {self.slowed[name]:.0%} of readings"
            for name in TROUBLE
            if self.slowed.get(name, 0.0) > MAX_SLOWED
        ]
        return "; ".join(found) or None


def energy_of_steps(samples: Sequence[GpuSample], steps: Sequence[StepEvent]) -> Energy | None:
    """Energy of training steps; None where no sensor told any, or no step lies among samples."""
    samples = [sample for sample in samples if sample.phase == "train"]
    pairs = [
        (event, used)
        for event in steps
        if (used := used_j(samples, event.t - event.seconds, event.t)) is not None
    ]
    if not pairs:
        return None
    joules = np.array([value for _, value in pairs])
    tokens = np.array([event.tokens for event, _ in pairs], dtype=np.float64)
    start = min(event.t - event.seconds for event, _ in pairs)
    inside = [s for s in samples if start <= s.t <= pairs[-1][0].t + 1]
    seconds = sum(event.seconds for event, _ in pairs)
    low, high = _interval(joules, tokens) or (None, None)
    per_million = _wh_per_million(joules.sum(), tokens.sum())
    return Energy(
        joules=known(float(joules.sum())) or 0.0,
        wh_per_million_tokens=per_million,
        low=low,
        high=high,
        power_w=known(float(joules.sum()) / seconds) if seconds else None,
        utilization=_utilization(inside),
        temperature_c=max(_known(inside, "temperature_c"), default=None),
        slowed=_slowed(inside),
        n_steps=len(pairs),
    )


def used_j(samples: Sequence[GpuSample], start: float, end: float) -> float | None:
    """Joules of all devices between two moments (Unix seconds); None where samples don't reach."""
    for run in _runs(samples):
        if run[0].t <= start and end <= run[-1].t:
            return _between(run, start, end)
    return None


def phase_j(samples: Sequence[GpuSample], phase: str) -> float | None:
    """Joules of a whole phase, earlier processes of it included; None where a device is silent."""
    ends = [run[-1].devices for run in _runs(samples) if run[-1].phase == phase]
    values = [device.energy_j for devices in ends for device in devices]
    known_values = [value for value in values if value is not None]
    return sum(known_values) if known_values and len(known_values) == len(values) else None


def _runs(samples: Sequence[GpuSample]) -> Iterator[list[GpuSample]]:
    """The samples of each process that a phase had, in order."""
    found: dict[tuple[str, float], list[GpuSample]] = {}
    for sample in samples:
        found.setdefault((sample.phase, sample.since), []).append(sample)
    for run in found.values():
        yield sorted(run, key=lambda sample: sample.t)


def _between(run: Sequence[GpuSample], start: float, end: float) -> float | None:
    times = [sample.t for sample in run]
    total = 0.0
    for device in range(len(run[0].devices)):
        used = [sample.devices[device].energy_j for sample in run]
        if any(value is None for value in used):
            return None
        at = np.interp([start, end], times, np.array(used, dtype=np.float64))
        total += float(at[1] - at[0])
    return total


def _interval(joules: FloatArray, tokens: FloatArray) -> tuple[float, float] | None:
    if len(joules) < 2 or not tokens.all():
        return None
    index = block_draws(len(joules), np.random.default_rng(SEED))
    drawn = joules[index].sum(axis=1) / tokens[index].sum(axis=1)
    return percentile_interval(drawn / J_PER_WH * 1e6)


def _wh_per_million(joules: float, tokens: float) -> float | None:
    return known(float(joules) / J_PER_WH / float(tokens) * 1e6) if tokens else None


def _known(samples: Sequence[GpuSample], name: str) -> list[float]:
    values = (getattr(device, name) for sample in samples for device in sample.devices)
    return [float(value) for value in values if value is not None]


def _utilization(samples: Sequence[GpuSample]) -> float | None:
    """Samples count by their readings: a line of a long phase holds more of them."""
    pairs = [
        (device.utilization, device.readings)
        for sample in samples
        for device in sample.devices
        if device.utilization is not None and device.readings
    ]
    if not pairs:
        return None
    return known(sum(use * n for use, n in pairs) / sum(n for _, n in pairs))


def _slowed(samples: Sequence[GpuSample]) -> dict[str, float]:
    devices = [device for sample in samples for device in sample.devices]
    readings = sum(device.readings for device in devices)
    names = sorted({name for device in devices for name in device.slowed})
    return {name: sum(d.slowed.get(name, 0) for d in devices) / readings for name in names}
