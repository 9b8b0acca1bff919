"""Cells of several processes, run as the runner runs them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import cache, store, suite
from bench.record import Audit, TrainRecord
from bench.run import launch, process
from bench.spec import Cell

from ..conftest import ROOT


@dataclass(frozen=True)
class Trained:
    """A cell whose train phase ran."""

    cell: Cell
    attempt: store.Attempt

    @property
    def record(self) -> TrainRecord:
        assert self.attempt.train is not None
        return self.attempt.train

    @property
    def audit(self) -> Audit:
        assert self.attempt.audit is not None, self.record.reason
        return self.attempt.audit

    @property
    def folder(self) -> Path:
        return cache.trained(self.attempt.path)

    def curve(self) -> list[tuple[float, float]]:
        steps = self.attempt.steps
        return [(float(step.loss or 0), float(step.grad_norm or 0)) for step in steps]

    def validation(self) -> list[float]:
        return [float(event.loss or 0) for event in self.attempt.evaluations]

    @property
    def step_s(self) -> float:
        return sorted(step.seconds for step in self.attempt.steps)[len(self.attempt.steps) // 2]


@functools.cache
def _smoke() -> dict[tuple[str, str], Cell]:
    cells = suite.load(ROOT / "suites" / "smoke.yaml").cells
    return {(cell.model.name, cell.method.name): cell for cell in cells}


def make_cell(model: str, method: str, under: str, /, **parts: dict[str, Any]) -> Cell:
    """A cell of `smoke` under a strategy (`zero3+offload`), on two ranks unless it is `single`.

    Eight sequences of different lengths a step: four micro-batches of one rank, two of each of two.
    """
    data = _smoke()[model, method].model_dump() | {"serve": None}
    name, _, offload = under.partition("+")
    data["strategy"] = {
        "name": name,
        "offload_optimizer": bool(offload),
        "offload_params": bool(offload) and name != "zero2",
    }
    data["target"] |= {"name": "cpu-2", "devices": 1 if name == "single" else 2}
    data["budget"] |= {"max_steps": 3, "micro_batch": 2, "evaluate_every": 2}
    data["budget"] |= {"max_validation_rows": 5}  # three batches: one rank has one less
    for part, fields in parts.items():
        data[part] |= fields
    return Cell.model_validate(data)


def train(cell: Cell, results: Path) -> Trained:
    folder = store.cell_folder(results, cell)
    store.write_json(folder / "cell.json", cell)
    if not cache.ready(cell.model):
        assert process.prepare(folder / "cell.json") == 0
    attempt = store.new_attempt(folder)
    launch.run_phase(cell, attempt, "train", lambda event: None)
    return Trained(cell, store.Attempt(attempt))
