"""Predicts published speeds: the error of `steptime`.

    python -m bench.fit speed THROUGHPUT.jsonl --cases CASES.jsonl --models MODELS.json

A throughput row names its configuration in words, so it is joined by id to the cases file, which
has it in fields.  Rows without such a case are skipped and counted.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.fit.cache import Cache
from bench.fit.cases import request_of
from bench.fit.memory import costs_of
from bench.fit.steptime import Weights, find_gpu, gpu_of, step_time

Row = dict[str, Any]


@dataclass
class Speed:
    """One row: tokens per second of the whole job."""

    id: str
    gpu: str
    measured: float
    predicted: float
    error: float
    bound: str


def run(rows: Path, cases: Path, models: Path, cache: Cache) -> tuple[list[Speed], list[str]]:
    """(what was predicted, ids of what was not)."""
    known = json.loads(models.read_text())
    by_id = {case["id"]: case for case in map(json.loads, _lines(cases))}
    found, skipped = [], []
    for row in map(json.loads, _lines(rows)):
        case = by_id.get(row["id"])
        facts = find_gpu(row.get("gpu_type") or "")
        if case is None or facts is None or not row.get("tokens_per_s"):
            skipped.append(row["id"])
        else:
            found.append(_speed(row, case, known, cache))
    return found, skipped


def _lines(path: Path) -> Iterable[str]:
    return (line for line in path.read_text().splitlines() if line.strip())


def _speed(row: Row, case: Row, models: dict[str, Row], cache: Cache) -> Speed:
    request = request_of(case, models).model_copy(update={"lengths": ()})
    memory = cache.memory(request)
    request = request.model_copy(update={"accumulation": int(row.get("grad_accum") or 1)})
    facts = find_gpu(row["gpu_type"]) or {}
    weights = Weights(memory.held_bytes, memory.trained_bytes)
    time = step_time(request, costs_of(memory), weights, gpu_of(facts))
    measured = float(row["tokens_per_s"])
    predicted = time.tokens / time.step_s
    links = time.communication_s + time.offload_s
    return Speed(
        row["id"],
        facts["match"],
        measured,
        predicted,
        predicted / measured - 1,
        "links" if links > time.compute_s else "compute",
    )


def as_text(found: list[Speed], skipped: list[str]) -> str:
    """By GPU type: n, median of |error| and of the error."""
    lines = ["| GPU | n | median | signed | ≤ 15 % |", "|---|---|---|---|---|"]
    groups = {"all": found}
    for speed in found:
        groups.setdefault(speed.gpu, []).append(speed)
    for name, speeds in groups.items():
        errors = [speed.error for speed in speeds]
        sizes = [abs(error) for error in errors]
        share = sum(size <= 0.15 for size in sizes) / len(sizes)
        lines.append(
            f"| {name.replace('|', ' or ')} | {len(sizes)} | {statistics.median(sizes):.0%} | "
            f"{statistics.median(errors):+.0%} | {share:.0%} |"
        )
    lines.append("")
    lines += [
        f"- {s.id}: measured {s.measured:.0f}, predicted {s.predicted:.0f} tokens/s "
        f"({s.error:+.0%}, {s.bound})"
        for s in sorted(found, key=lambda s: -abs(s.error))[:10]
    ]
    return "\n".join([*lines, f"- not predicted ({len(skipped)}): {', '.join(skipped)}"])


def as_json(found: list[Speed], skipped: list[str]) -> Row:
    return {"rows": [asdict(speed) for speed in found], "skipped": skipped}
