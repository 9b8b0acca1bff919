"""Energy, utilisation and MFU in rows and tables; a dash where no sensor told them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.record import GpuReading, GpuSample
from bench.report import compare, speeds, summary
from bench.report.rows import Row, rows
from bench.spec import Cell
from bench.store import append_line, read_suite

from .made import ENVIRONMENT, Run, add, cell, gpu_target

GPUS = ENVIRONMENT.model_copy(update={"gpus": ["NVIDIA A100-SXM4-80GB"] * 4})
LLAMA = {
    "model_type": "llama",
    "hidden_size": 1000,
    "num_hidden_layers": 10,
    "num_attention_heads": 10,
    "vocab_size": 1000,
}


def asked(method: str, **target: Any) -> Cell:
    machine = gpu_target(bf16_dense_tflops=312.0, **target)
    one = cell("m", method, target=machine)
    model = one.model.model_copy(update={"config": LLAMA, "params": 101_000_000})
    return one.model_copy(update={"model": model})


def sample(folder: Path, phase: str, joules: float, **more: Any) -> None:
    """Steps end at 1,000,001 … 1,000,020 and take half a second; all four GPUs alike."""
    (attempt,) = folder.glob("made/*/attempt-001")
    for second in (0, 10, 20, 30):
        reading = GpuReading(energy_j=joules * second, utilization=0.8, readings=2, **more)
        line = GpuSample(
            phase=phase, since=1_000_000.0, t=1_000_000.0 + second, devices=[reading] * 4
        )
        append_line(attempt / "gpu.jsonl", line)


def only(folder: Path) -> Row:
    (row,) = rows(read_suite(folder, "made"))
    return row


def table(folder: Path) -> Any:
    (panel,) = compare.panels([only(folder)])
    return speeds.efficiency(panel)


def test_energy_and_mfu_are_in_the_table(tmp_path: Path) -> None:
    add(tmp_path, asked("lora"), Run(environment=GPUS))
    sample(tmp_path, "train", 300.0, temperature_c=71.0, slowed={"power cap": 1})
    sample(tmp_path, "generate", 100.0)
    row = only(tmp_path)
    assert row.training and row.training.energy
    # 18 counted steps × 0.5 s × 4 × 300 W = 10,800 J = 3 Wh, for 1,800 tokens
    assert row.training.energy.wh_per_million_tokens == pytest.approx(3 / 1800 * 1e6)
    # (4 × 101 M frozen + 6 × 20 trained + 12 × 10 × 1000 × 25 tokens) × 200 tokens/s ÷ 4 × 312 T
    expected = (4 * 101e6 + 6 * 20 + 12 * 10 * 1000 * 25) * 200 / (4 * 312e12)
    assert row.training.mfu == pytest.approx(expected)
    assert row.kwh == pytest.approx((36_000 + 12_000) / 3.6e6)
    (line,) = table(tmp_path).to_dict("records")
    assert line["Wh per million tokens"] == "1,667 (1,667 to 1,667)"
    assert line["power of all GPUs, W"] == "1,200" and line["GPU utilisation"] == "80 %"
    assert line["hottest, °C"] == "71.0"
    assert line["clocks held back"] == "power cap: 50 % of readings"
    csv = summary.summary([row]).iloc[0]
    assert csv["gpu_power_w"] == 1200 and csv["mfu"] == pytest.approx(expected, rel=1e-5)


def test_heat_is_told_as_unstable(tmp_path: Path) -> None:
    add(tmp_path, asked("lora"), Run(environment=GPUS))
    sample(tmp_path, "train", 300.0, slowed={"heat": 1})
    training = only(tmp_path).training
    assert training and "heat held the clocks back" in str(training.speed.unstable)


def test_without_sensors_there_is_no_table(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"))
    row = only(tmp_path)
    assert row.training and row.training.energy is None and row.training.mfu is None
    assert row.kwh is None and table(tmp_path).empty


def test_another_gpu_than_the_target_s_has_no_known_peak(tmp_path: Path) -> None:
    other = ENVIRONMENT.model_copy(update={"gpus": ["NVIDIA L4"]})
    add(tmp_path, asked("lora"), Run(environment=other))
    training = only(tmp_path).training
    assert training and training.mfu is None


def test_a_phase_without_sensors_leaves_the_run_s_energy_unknown(tmp_path: Path) -> None:
    add(tmp_path, asked("lora"), Run(environment=GPUS))
    sample(tmp_path, "train", 300.0)
    assert only(tmp_path).kwh is None
