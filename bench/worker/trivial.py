"""The generate phase of methods that need no model: no torch, no tokenizer, no tokens to count.

Their cells stand in the same tables as all others, with the same rows and the same scores.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench.record import Prediction, Status
from bench.spec import Cell
from bench.store import append_line, read_lines
from bench.worker import data, methods
from bench.worker.recorder import Recorder

Ending = tuple[Status, str | None, dict[str, Any]]


def generate(cell: Cell, attempt: Path, recorder: Recorder) -> Ending:
    """Run the phase; returns (status, reason, facts for GenerateRecord)."""
    recorder.set_baseline()
    path = attempt / "predictions.jsonl"
    with recorder.stage("load"):
        train = data.rows(cell.dataset, "train", cell.budget.max_train_rows)
        everything = data.rows(cell.dataset, "test")
        rows = data.sample(everything, cell.budget.max_test_rows)
    recorder.emit({"event": "plan", "t": time.time(), "rows": len(rows)})
    with recorder.stage("generate"):
        started = time.perf_counter()
        answer = methods.module(cell.method.kind).answerer(cell.dataset, train)
        done = {row["id"] for row in read_lines(path)}
        for row in rows:
            if row.id not in done:
                append_line(path, _prediction(row, answer(row)))
        seconds = time.perf_counter() - started
    return (
        Status.OK,
        None,
        {
            "rows": len(rows),
            "planned_rows": len(rows),
            "test_rows": len(everything),
            "rows_fingerprint": data.fingerprint(rows),
            "generate_s": seconds,
        },
    )


def _prediction(row: data.Row, answer: str) -> Prediction:
    return Prediction(
        id=row.id,
        group=row.group,
        prediction=answer,
        reference=row.answer,
        finish_reason="stop",
        prompt_tokens=0,
        new_tokens=0,
    )
