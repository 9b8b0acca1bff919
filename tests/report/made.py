"""Results folders made by hand through `bench.store`'s own writers: no model, no torch, no luck.

Numbers are chosen so that a test can redo the arithmetic in its head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.record import (
    ApiPrediction,
    Audit,
    Environment,
    EvaluationEvent,
    GenerateRecord,
    Memory,
    Prediction,
    Status,
    StepEvent,
    TrainRecord,
)
from bench.spec import (
    API,
    AdapterSpec,
    Budget,
    Cell,
    ConvergenceTarget,
    DatasetSpec,
    MethodSpec,
    ModelSpec,
    QuantizationSpec,
    Strategy,
    TargetSpec,
)
from bench.store import append_line, cell_folder, new_attempt, write_json

GIB = 2**30
LABELS = ("refund", "delivery", "other")
TENANTS = ("acme", "globex")

ENVIRONMENT = Environment(
    hostname_hash="0f0f",
    os="Linux 6.1",
    python="3.11.7",
    cpu="EPYC",
    cpu_cores=2,
    ram_bytes=24 * GIB,
    packages={"torch": "2.13.0", "transformers": "5.24.0"},
    load_average=1.0,
    git_commit="0123456789abcdef0123456789abcdef01234567",
    git_dirty=False,
)


def model(name: str = "smollm2-135m") -> ModelSpec:
    return ModelSpec.model_validate(
        {
            "name": name,
            "weights": {"kind": "random"},
            "config": {"model_type": "llama"},
            "params": 134_515_008,
            "chat": True,
        }
    )


def method(name: str) -> MethodSpec:
    kind = name.split("-", maxsplit=1)[0]
    return MethodSpec(
        name=name,
        kind=kind,
        adapter=AdapterSpec() if "lora" in kind else None,
        quantization=QuantizationSpec() if kind == "qlora" else None,
        learning_rate=None if kind == "base" else 1e-3,
        optimizer=None if kind == "base" else "adamw",
    )


def dataset(name: str = "desk", **fields: Any) -> DatasetSpec:
    rows: dict[str, Any] = {
        "name": name,
        "licence": "Apache-2.0",
        "synthetic": True,
        "train": [{"files": ["desk.jsonl"]}],
        "split": {"validation": 0.1, "test": 0.1},
        "group": "tenant",
        "messages": [{"role": "user", "content": "{{ message }}"}],
        "format": "lines",
        "answer": [
            {"name": "reply", "type": "text", "metrics": ["rouge_l", "bleu"]},
            {"name": "intent", "type": "label", "labels": LABELS, "metrics": ["f1", "accuracy"]},
        ],
    }
    return DatasetSpec.model_validate(rows | fields)


def target(name: str = "cpu", **fields: Any) -> TargetSpec:
    rows: dict[str, Any] = {
        "name": name,
        "device": "cpu",
        "host_ram_gib": 24,
        "price": {
            "usd_per_device_hour": 0.36,
            "low_usd": 0.18,
            "high_usd": 0.72,
            "provider": "Example Cloud",
            "date": "2026-09-20",
            "source": "https://example.com/prices",
        },
    }
    return TargetSpec.model_validate(rows | fields)


def gpu_target(name: str = "4xa100-80gb", **fields: Any) -> TargetSpec:
    rows = {
        "device": "cuda",
        "gpu": "A100-80GB-SXM",
        "match": "A100.*80GB",
        "devices": 4,
        "device_memory_gib": 79.25,
        "host_ram_gib": 960,
    }
    return target(name, **(rows | fields))


def cell(model_: str, method_: str, seed: int = 0, **fields: Any) -> Cell:
    parts: dict[str, Any] = {
        "suite": "made",
        "suite_version": 1,
        "model": model(model_),
        "method": method(method_),
        "dataset": dataset(),
        "target": target(),
        "strategy": Strategy(),
        "budget": Budget(max_steps=20, global_batch=4, evaluate_every=5),
        "seed": seed,
        "converged": ConvergenceTarget(validation_loss=1.6),
    }
    return Cell(**(parts | fields))


TOKEN_PRICE = {
    "usd_per_million_input": 10.0,
    "usd_per_million_output": 30.0,
    "provider": "Example API",
    "date": "2026-11-01",
    "source": "https://example.com/tokens",
}


def api_cell(name: str = "gpt-x", method_: str = "base", **endpoint: Any) -> Cell:
    """A model behind an API; a row of a `Run` is 30 tokens in and 20 out, $0.0009."""
    found = {"model": name, "price": TOKEN_PRICE} | endpoint
    asked = ModelSpec.model_validate({"name": name, "endpoint": found})
    return cell("unused", method_, model=asked, target=API)


@dataclass
class Run:
    """What a made attempt shall have been."""

    right: float = 0.7  # share of test rows answered right
    rows: int = 40
    steps: int = 20
    step_s: float = 0.5
    tokens: int = 100  # a step
    padded: int = 125
    loss: tuple[float, float] = (3.0, 1.5)  # training loss, first and limit
    wall_s: tuple[float, float] = (100.0, 50.0)  # train, generate
    peak_bytes: int = 4 * GIB
    baseline_bytes: int = GIB
    train: dict[str, Any] = field(default_factory=dict)  # replaces fields of train.json
    generate: dict[str, Any] = field(default_factory=dict)
    audit: dict[str, Any] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)  # replaces fields of an API's responses
    environment: Environment = field(default_factory=lambda: ENVIRONMENT)


def add(results: Path, cell: Cell, run: Run | None = None) -> Path:
    """Write a cell with one finished attempt (or one that failed, as `run` says)."""
    run = run or Run()
    folder = add_cell(results, cell)
    attempt = new_attempt(folder)
    trained = True
    if cell.method.trains:
        trained = run.train.get("status", Status.OK) in (Status.OK, Status.INVALID)
        _train(attempt, cell, run)
    if trained:
        _generate(attempt, cell, run)
    return folder


def add_cell(results: Path, cell: Cell) -> Path:
    folder = cell_folder(results, cell)
    write_json(folder / "cell.json", cell)
    return folder


def add_failed(results: Path, cell: Cell, status: Status, reason: str, **fields: Any) -> Path:
    return add(results, cell, Run(steps=3, train={"status": status, "reason": reason} | fields))


def _train(attempt: Path, cell: Cell, run: Run) -> None:
    losses = [loss_at(run, step) for step in range(1, run.steps + 1)]
    for step, loss in enumerate(losses, start=1):
        if (step - 1) % cell.budget.evaluate_every == 0:
            _evaluate(attempt, run, step - 1)
        append_line(attempt / "events.jsonl", step_event(run, step, loss))
    _evaluate(attempt, run, run.steps)
    record = TrainRecord(
        status=Status.OK,
        started_at="2026-10-01T12:00:00Z",
        wall_s=run.wall_s[0],
        stage_s={"load": 10.0, "train": run.steps * run.step_s, "evaluate": 5.0, "save": 1.0},
        memory=_memory(cell, run, ("load", "train", "evaluate")),
        environment=run.environment,
        steps=run.steps,
        planned_steps=cell.budget.max_steps,
        tokens=run.tokens * run.steps,
        padded_tokens=run.padded * run.steps,
        supervised_tokens=40 * run.steps,
        first_loss=losses[0],
        final_loss=losses[-1],
        validation_loss=loss_at(run, run.steps) + 0.1,
    )
    write_json(attempt / "train.json", record.model_copy(update=run.train))
    audit = Audit(
        total_params=1000,
        trainable_params=1000 if cell.method.kind == "full" else 20,
        bytes_by_dtype={"bf16": 2000},
        quantized_params=800 if cell.method.kind == "qlora" else 0,
    )
    write_json(attempt / "audit.json", audit.model_copy(update=run.audit))


def loss_at(run: Run, step: int) -> float:
    first, limit = run.loss
    return limit + (first - limit) * math.exp(-step / 6)


def step_event(run: Run, step: int, loss: float | None) -> StepEvent:
    return StepEvent(
        t=1_000_000.0 + step,
        step=step,
        loss=loss,
        seconds=run.step_s,
        tokens=run.tokens,
        padded_tokens=run.padded,
        supervised_tokens=40,
        sequences=4,
    )


def _evaluate(attempt: Path, run: Run, step: int) -> None:
    event = EvaluationEvent(
        t=1_000_000.5 + step,
        step=step,
        loss=loss_at(run, step) + 0.1,
        seconds=1.0,
        train_s=step * run.step_s,
        tokens=step * run.tokens,
        rows=10,
    )
    append_line(attempt / "events.jsonl", event)


def _memory(cell: Cell, run: Run, stages: tuple[str, ...]) -> dict[str, Memory]:
    peaks = {}
    for share, stage in zip((0.5, 1.0, 0.8), stages, strict=False):
        peak = int(run.peak_bytes * share)
        host = {"host_bytes": run.baseline_bytes + peak, "host_baseline_bytes": run.baseline_bytes}
        if cell.target.device == "cuda":
            counters = (int(peak * 0.9), peak, peak + GIB)
            names = ("allocated_bytes", "reserved_bytes", "device_bytes")
            peaks[stage] = Memory(**host, **dict(zip(names, counters, strict=True)))
        else:
            peaks[stage] = Memory(**host)
    return peaks


def _generate(attempt: Path, cell: Cell, run: Run) -> None:
    for number in range(run.rows):
        answered = prediction(number, run)
        if cell.model.endpoint:
            said = {"model": cell.model.endpoint.model, "system_fingerprint": "fp_1"} | run.said
            more = {"response": said, "latency_s": 1.0 + number / 100, "retries": number % 2}
            answered = ApiPrediction(**(answered.model_dump() | more))
        append_line(attempt / "predictions.jsonl", answered)
    record = GenerateRecord(
        status=Status.OK,
        started_at="2026-10-01T12:05:00Z",
        wall_s=run.wall_s[1],
        stage_s={"load": 10.0, "generate": 30.0},
        memory=_memory(cell, run, ("load", "generate")),
        environment=run.environment,
        rows=run.rows,
        planned_rows=run.rows,
        test_rows=run.rows,
        prompt_tokens=30 * run.rows,
        new_tokens=20 * run.rows,
        generate_s=30.0,
    )
    write_json(attempt / "generate.json", record.model_copy(update=run.generate))


def prediction(number: int, run: Run) -> Prediction:
    """Row `number`'s answer: the first `right` share of each tenant is right, the rest isn't."""
    label = LABELS[number % 3]
    reply = f"we will look at order {number} today"
    right = (number // 2) < round(run.right * run.rows / 2)
    said = (label, reply) if right else ("other" if label != "other" else "refund", "please wait")
    return Prediction(
        id=f"row-{number:03d}",
        group=TENANTS[number % 2],
        prediction=f"reply: {said[1]}\nintent: {said[0]}",
        reference={"reply": reply, "intent": label},
        finish_reason="stop",
        prompt_tokens=30,
        new_tokens=20,
    )
