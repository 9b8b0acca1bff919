"""`bench calibrate` on results folders whose constants are known, because they are made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")

from bench import store
from bench.fit import calibrate
from bench.fit.__main__ import main
from bench.fit.constants import constant
from bench.fit.gpu_check import Rung
from bench.plan import GIB, Plan, StepTime
from bench.record import Memory
from bench.score.calibration import Timed, efficiency_of, overlapped_s

from ..report import made

SEQUENCE = 1000  # tokens of the planned update


def add(results: Path, seed: int, context_gib: float, efficiency: float, devices: int = 1) -> None:
    """A finished run whose compute took what `efficiency` of the peak gives."""
    target = made.gpu_target("own", devices=devices)
    cell = made.cell("m", "lora", seed=seed, target=target)
    compute = 0.5
    before = constant("matmul_efficiency", "A100|A800")
    real = overlapped_s(compute * before / efficiency, 0.0, 0.8)
    memory = Memory(
        allocated_bytes=10 * GIB,
        reserved_bytes=11 * GIB,
        device_bytes=11 * GIB + int(context_gib * GIB),
        host_baseline_bytes=2 * GIB * devices,
    )
    run = made.Run(step_s=real, padded=SEQUENCE, train={"memory": {"process": memory.model_dump()}})
    folder = made.add(results, cell, run)
    time = StepTime(
        compute_s=compute,
        step_s=compute,
        low_s=0.4,
        high_s=0.6,
        flops=1,
        tokens=SEQUENCE,
        padded_tokens=SEQUENCE,
    )
    strategy = "single" if devices == 1 else "ddp"
    plan = Plan(fits=True, strategy=strategy, micro_batch=1, time=time)
    store.write_json(folder / "plan.json", plan)


def found(results: Path) -> dict[str, Any]:
    return {one.name: one for one in calibrate.calibrate(results)}


def test_known_constants_are_found_again(tmp_path: Path) -> None:
    for seed, noise in enumerate((-0.01, 0.0, 0.01)):
        add(tmp_path, seed, context_gib=0.8 + noise, efficiency=0.5 + noise)
    add(tmp_path, 9, context_gib=1.4, efficiency=0.5, devices=4)
    one = found(tmp_path)
    context = one["cuda_context_gib"]
    assert context.value == pytest.approx(0.8, abs=0.001) and context.n == 3
    assert context.error_before > 0.3 and context.error_after < 0.02
    assert one["nccl_gib"].value == pytest.approx(0.6, abs=0.001)
    assert one["nccl_gib"].error_after is None  # a single run: nothing to check it with
    assert one["process_host_gib"].value == 2
    efficiency = one["matmul_efficiency"]
    assert efficiency.gpu == "A100|A800" and efficiency.value == pytest.approx(0.5, abs=0.01)
    assert efficiency.error_after < 0.05 < efficiency.error_before


def test_rungs_of_a_gpu_check_count_like_runs(tmp_path: Path) -> None:
    rungs = [
        Rung(
            name=name, gpu="NVIDIA H200", torch="2.13.0", predicted_allocated_bytes=9 * GIB,
            predicted_reserved_bytes=10 * GIB, predicted_step_s=0.5,
            measured_reserved_bytes=10 * GIB,
            measured_device_bytes=10 * GIB + int(0.7 * GIB), measured_step_s=0.7,
        )
        for name in ("one", "two")
    ]  # fmt: skip
    failed = rungs[0].model_copy(update={"outcome": "out of memory: …", "measured_step_s": 9.0})
    lines = "".join(rung.model_dump_json() + "\n" for rung in [*rungs, failed])
    (tmp_path / "gpu-check.jsonl").write_text(lines)
    one = found(tmp_path)
    assert one["cuda_context_gib"].value == pytest.approx(0.7)
    efficiency = one["matmul_efficiency"]
    assert (efficiency.gpu, efficiency.n, efficiency.runs) == ("H200", 2, ("one", "two"))
    assert efficiency.value == pytest.approx(constant("matmul_efficiency", "H200") * 0.5 / 0.7)


def test_what_is_printed_can_be_copied_into_the_constants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path, 0, context_gib=0.8, efficiency=0.5)
    assert main(["calibrate", str(tmp_path)]) == 0
    entries = yaml.safe_load(capsys.readouterr().out.partition("constants.yaml:\n")[2])
    own = entries["matmul_efficiency"]["by_gpu"]["A100|A800"]
    assert "1 measured runs: m_lora" in own["source"]
    from bench.fit import constants

    table = {"matmul_efficiency": {"value": 0.7, **entries["matmul_efficiency"]}}
    monkeypatch.setattr(constants, "table", lambda: table)
    assert constants.constant("matmul_efficiency", "A100|A800") == pytest.approx(0.5)
    assert constants.constant("matmul_efficiency", "L40S") == 0.7


def test_json_has_every_proposal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(tmp_path, 0, context_gib=0.8, efficiency=0.5)
    assert main(["calibrate", str(tmp_path), "--json"]) == 0
    names = {one["name"] for one in json.loads(capsys.readouterr().out)}
    assert names == {"cuda_context_gib", "process_host_gib", "matmul_efficiency"}


def test_no_run_on_a_gpu_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.add(tmp_path, made.cell("m", "lora"))  # on a CPU
    assert main(["calibrate", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "no finished training on a GPU" in err and err.count("\n") == 1


def test_no_efficiency_above_the_peak_is_proposed() -> None:
    fast = Timed("r", measured_s=0.1, compute_s=1.0, other_s=0.0)
    assert efficiency_of(0.7, 0.8, [fast], "X") is None


@pytest.mark.parametrize("other", [0.0, 0.2, 0.9])
def test_efficiency_accounts_for_what_communication_hides(other: float) -> None:
    measured = overlapped_s(0.7 / 0.35, other, 0.8)  # compute takes 1 s at 0.7, 2 s at 0.35
    run = Timed("r", measured_s=measured, compute_s=1.0, other_s=other)
    one = efficiency_of(0.7, 0.8, [run], "X")
    assert one is not None and one.value == pytest.approx(0.35)
