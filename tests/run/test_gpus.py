"""The sampler against a driver library that is made up: what it would say is set by the test."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.run import gpus, process
from bench.store import Attempt

from ..report.made import cell, gpu_target


class NVMLError(Exception):
    pass


class Driver:
    """Two GPUs of 200 W and 100 W; the second has no energy counter."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.now = 1000.0
        self.heat = 0
        self.lost: set[int] = set()

    def _alive(self, index: int) -> None:
        if index in self.lost:
            raise NVMLError("GPU is lost")

    def nvmlDeviceGetTotalEnergyConsumption(self, index: int) -> int:
        self._alive(index)
        if index == 1:
            raise NVMLError("Not Supported")
        return round(5e6 + 200_000 * (self.now - 1000))

    def nvmlDeviceGetPowerUsage(self, index: int) -> int:
        self._alive(index)
        return 200_000 if index == 0 else 100_000

    def nvmlDeviceGetUtilizationRates(self, index: int) -> Any:
        self._alive(index)
        return SimpleNamespace(gpu=90 if index == 0 else 40)

    def nvmlDeviceGetTemperature(self, index: int, sensor: int) -> int:
        assert sensor == 0
        return 70 + index

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, index: int) -> int:
        return self.heat


def sampler(tmp_path: Path, driver: Driver) -> gpus.Sampler:
    file = tmp_path / gpus.FILE
    return gpus.Sampler(file, "train", [0, 1], driver, clock=lambda: driver.now)


def run(made: gpus.Sampler, driver: Driver, seconds: float, poll: float = 0.1) -> None:
    for _ in range(round(seconds / poll)):
        driver.now += poll
        made.look()


def test_energy_by_counter_and_by_power(tmp_path: Path) -> None:
    driver = Driver()
    made = sampler(tmp_path, driver)
    run(made, driver, 10)
    first, second = made.close()
    assert first.energy_j == pytest.approx(2000) and first.energy_source == "counter"
    assert second.energy_j == pytest.approx(1000) and second.energy_source == "power"
    assert (first.utilization, second.utilization) == pytest.approx((0.9, 0.4))
    assert (first.power_w, second.temperature_c) == (pytest.approx(200), 71)
    samples = Attempt(tmp_path).gpu_samples
    assert 10 <= len(samples) <= 13 and samples[0].t == samples[0].since == 1000
    assert [d.energy_j for d in samples[-1].devices] == pytest.approx([2000, 1000])


def test_what_held_clocks_back_is_counted(tmp_path: Path) -> None:
    driver = Driver()
    made = sampler(tmp_path, driver)
    run(made, driver, 5)
    driver.heat = 0x20 | 0x04
    run(made, driver, 5)
    first, _ = made.close()
    assert first.slowed == {"heat": pytest.approx(0.5, abs=0.1), "power cap": first.slowed["heat"]}


def test_a_lost_gpu_is_unknown_and_ends_nothing(tmp_path: Path) -> None:
    driver = Driver()
    made = sampler(tmp_path, driver)
    run(made, driver, 2)
    driver.lost.add(0)
    run(made, driver, 2)
    first, second = made.close()
    assert first.energy_j == pytest.approx(400, abs=20)  # what was known when it was lost
    assert second.energy_j == pytest.approx(400)
    assert Attempt(tmp_path).gpu_samples[-1].devices[0].power_w is None


def test_a_long_phase_leaves_few_lines(tmp_path: Path) -> None:
    driver = Driver()
    made = sampler(tmp_path, driver)
    run(made, driver, 7200, poll=0.6)
    made.close()
    assert 600 < len(Attempt(tmp_path).gpu_samples) < 2400


def test_a_cpu_has_none_and_workers_see_what_the_user_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpus.sampler(cell("m", "lora"), tmp_path, "train") is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-1234")
    asked = cell("m", "lora", target=gpu_target(devices=1))
    assert process.visible_devices(asked) == ["3", "GPU-1234"]
