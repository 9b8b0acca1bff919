"""Suites of any size, written through the store's own writers: with plans, runs or both.

python -m tests.report.scale FOLDER 2000      # a suite `many` of that many cells, to look at
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.plan import Limit, Plan, StepMemory, StepTime
from bench.record import Status
from bench.spec import Cell
from bench.store import write_json

from .made import GIB, Run, add, add_cell, add_failed, cell, dataset, gpu_target, model

SIZES_B = (0.14, 0.5, 1.5, 3, 7, 8, 13, 32, 70, 235)
METHODS = ("base", "full", "lora", "qlora")
BYTES_A_PARAM = {"base": 2.0, "full": 16.0, "lora": 2.2, "qlora": 0.75}
SKILL = {"base": 0.35, "full": 0.72, "lora": 0.7, "qlora": 0.66}
TARGETS = {"4xa100-80gb": (79.25, 4), "1xl40s-48gb": (44.4, 1), "8xh200-141gb": (139.8, 8)}


def cells(count: int, models: int, datasets: int = 2, seeds: int = 3) -> Iterator[Cell]:
    """At most `count` cells of a matrix; the untuned model has one seed, as in real suites."""
    names = [f"family{i // 10}-{SIZES_B[i % 10]:g}b" for i in range(models)]
    points = itertools.product(range(datasets), TARGETS, enumerate(names), METHODS, range(seeds))
    asked = (point for point in points if point[3] != "base" or point[4] == 0)
    for number, target, (index, name), method, seed in itertools.islice(asked, count):
        gib, devices = TARGETS[target]
        params = int(SIZES_B[index % 10] * 1e9)
        spec = model(name).model_copy(update={"params": params})
        yield cell(
            name,
            method,
            seed,
            suite="many",
            model=spec,
            dataset=dataset(f"desk{number}"),
            target=gpu_target(target, device_memory_gib=gib, devices=devices),
        )


def plan(asked: Cell) -> Plan:
    """A prediction of the right shape: bytes a parameter, sharded over the devices."""
    devices = asked.target.devices
    need = asked.model.params * BYTES_A_PARAM[asked.method.name] / devices
    parts = {"weights": need * 0.5, "optimizer": need * 0.3, "gradients": need * 0.2}
    parts["activations"] = 3.0 * GIB
    device = int(sum(parts.values()) + 0.8 * GIB)
    have = int((asked.target.device_memory_gib or 0) * GIB)
    step_s = asked.model.params / 7e9 * (2 if asked.method.name == "full" else 1) / devices
    memory = StepMemory(
        allocated_bytes=device,
        reserved_bytes=device,
        host_bytes=20 * GIB,
        phases={},
        reserved_phases={"forward": int(0.8 * device), "backward": device},
        breakdown={name: int(size) for name, size in parts.items()},
        peak_phase="backward",
        parameters=asked.model.params,
        trainable=asked.model.params,
        held_bytes=2 * asked.model.params,
    )
    seconds: dict[str, Any] = {"compute_s": step_s, "step_s": step_s, "flops": 1e12}
    fits = device <= have
    return Plan(
        fits=fits,
        limits=[Limit(name="gpu", phase="backward", need_bytes=device, have_bytes=have)],
        strategy="fsdp" if devices > 1 else "single",
        micro_batch=4,
        device_bytes=device,
        device_high_bytes=int(1.04 * device),
        memory=memory,
        time=StepTime(**seconds, low_s=0.8 * step_s, high_s=1.3 * step_s, tokens=4096),
        steps=200,
        train_s=200 * step_s,
        usd=200 * step_s / 3600 * devices * asked.target.price.usd_per_device_hour,
        changes=[] if fits else [{"change": "micro_batch 1", "device_bytes": device}],
    )


def write(results: Path, asked: Cell, run: bool = True, rows: int = 40) -> None:
    """One cell with its plan; if it fits (and is to be run), with an attempt too."""
    predicted = plan(asked)
    folder = add_cell(results, asked)
    write_json(folder / "plan.json", predicted)
    if not run:
        return
    if not predicted.fits:
        add_failed(results, asked, Status.OOM_GPU, "CUDA out of memory", stage="train")
        return
    luck = random.Random(asked.id).uniform(-0.04, 0.04)
    size = min(0.2, 0.05 * len(str(asked.model.params)) - 0.4)
    train_s = predicted.train_s or 1.0
    made = Run(
        right=max(0.05, min(0.98, SKILL[asked.method.name] + size + luck)),
        rows=rows,
        step_s=train_s / 200,
        tokens=int(4000 * (1 + luck)),
        padded=4400,
        wall_s=(train_s + 60, 50 + train_s / 4),
        peak_bytes=int((predicted.device_bytes or 0) * (1 + luck / 2)),
    )
    add(results, asked, made)


def main(folder: str, count: str, kind: str = "run") -> None:
    """Write `count` cells with 3 seeds each into FOLDER; `plan`: predictions alone."""
    number = int(count)
    for asked in cells(number, models=max(3, number // 55)):
        write(Path(folder), asked, run=kind == "run")


if __name__ == "__main__":
    main(*sys.argv[1:])
