"""Predicts published measurements and says how far off it is.

    bench accuracy CASES.jsonl --models MODELS.json [--json]

Allocated figures are compared with predicted allocated bytes, reserved ones with the replayed
reservation, those that a driver or dashboard shows with that plus the CUDA context.
"""

from __future__ import annotations

import functools
import json
import logging
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench.errors import UserError
from bench.fit.cache import Cache
from bench.fit.cases import request_of
from bench.fit.constants import constant
from bench.plan import GIB, StepMemory

Row = dict[str, Any]


@dataclass
class Outcome:
    """One case, predicted."""

    id: str
    family: str
    kind: str
    measured_gib: float | None
    predicted_gib: float | None
    fixed_length_gib: float | None
    error: float | None
    outcome: str
    called: str
    peak: str
    seconds: float
    reason: str = ""

    @property
    def right_call(self) -> bool:
        """What couldn't be predicted is no right call."""
        return self.called != "unknown" and (self.outcome == "fits") == (self.called == "fits")


def figure_kind(row: Row) -> str:
    """Which counter a row reports: allocated, reserved or device."""
    kind = (row.get("mem_kind") or "").lower()
    if kind in ("allocated", "active"):
        return "allocated"
    if "reserved" in kind:
        return "reserved"
    if "torchtune" in (row.get("framework") or ""):
        return "allocated"  # its recipes log peak_memory_active and peak_memory_alloc first
    return "device"


def predict_case(row: Row, models: dict[str, Row], cache: Cache) -> Outcome:
    """One row; what can't be built is an outcome with a reason."""
    started = time.time()
    kind = figure_kind(row)
    try:
        request = request_of(row, models)
        memory = cache.memory(request)
        growth = cache.growth(request).median_bytes if request.lengths else 0
    except Exception as error:
        return _failed(row, kind, f"{type(error).__name__}: {error}", time.time() - started)
    context = int(constant("cuda_context_gib") * GIB)
    nccl = int(constant("nccl_gib") * GIB) if (row.get("num_gpus") or 1) > 1 else 0
    added = context + nccl if kind == "device" else 0
    reserved = _grown(row, memory, growth, context)
    point = memory.allocated_bytes if kind == "allocated" else reserved + added
    measured = row.get("measured_gib")
    return Outcome(
        id=row["id"],
        family=row["family"],
        kind=kind,
        measured_gib=measured,
        predicted_gib=point / GIB,
        fixed_length_gib=(memory.reserved_bytes + added) / GIB,
        error=point / GIB / measured - 1 if measured else None,
        outcome=row.get("outcome") or "fits",
        called=_call(row, memory, reserved, context + nccl),
        peak=memory.peak_phase,
        seconds=time.time() - started,
        reason=_reason(memory),
    )


def _grown(row: Row, memory: StepMemory, growth: int, context: int) -> int:
    """Near the GPU's limit the allocator gives free blocks back, so it never grows beyond it."""
    grown = memory.reserved_bytes + growth
    capacity = row.get("gpu_memory_gib")
    limit = int(capacity * GIB) - context if capacity else grown
    return max(memory.reserved_bytes, min(grown, limit))


def _call(row: Row, memory: StepMemory, reserved: int, outside: int) -> str:
    """fits, OOM or HOST_OOM, from the row's device and host sizes."""
    host = row.get("host_ram") or {}
    if "size" in host.get("kind", "") and memory.host_bytes / GIB > float(host["gib"]):
        return "HOST_OOM"  # other kinds report what was used, not what was there
    capacity = row.get("gpu_memory_gib")
    # Near its limit the allocator returns cached segments and tries again, so what must fit is the
    # allocated peak with the slack that can't be returned: about half of the difference.
    slack = (reserved - memory.allocated_bytes) // 2
    need = memory.allocated_bytes + slack + outside
    return "OOM" if capacity and need / GIB > capacity else "fits"


def _reason(memory: StepMemory) -> str:
    parts = sorted(memory.breakdown.items(), key=lambda item: -item[1])[:4]
    return ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts)


def _failed(row: Row, kind: str, reason: str, seconds: float) -> Outcome:
    return Outcome(
        row["id"], row["family"], kind, row.get("measured_gib"), None, None, None,
        row.get("outcome") or "fits", "unknown", "", seconds, reason,
    )  # fmt: skip


# ---------------------------------------------------------------- statistics


def summary(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """n, median and 90th percentile of |error|, signed median, shares within 5, 10, 20 %."""
    rows = list(outcomes)
    errors = [o.error for o in rows if o.error is not None]
    sizes = sorted(abs(error) for error in errors)
    found: dict[str, Any] = {"n": len(sizes)}
    if sizes:
        found |= {
            "median": statistics.median(sizes),
            "p90": sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
            "signed": statistics.median(errors),
        }
        for share in (5, 10, 20):
            found[f"within_{share}"] = sum(s <= share / 100 for s in sizes) / len(sizes)
    ooms = [o for o in rows if o.outcome != "fits"]
    fits = [o for o in rows if o.outcome == "fits"]
    found["oom_right"] = f"{sum(o.right_call for o in ooms)}/{len(ooms)}"
    found["fit_right"] = f"{sum(o.right_call for o in fits)}/{len(fits)}"
    return found


def report(outcomes: list[Outcome]) -> dict[str, Any]:
    """All groups, the worst ten, what failed."""
    measured = sorted(
        (o for o in outcomes if o.error is not None), key=lambda o: -abs(o.error or 0)
    )
    return {
        "all": summary(outcomes),
        "by_kind": _groups(outcomes, lambda o: o.kind),
        "by_family": _groups(outcomes, lambda o: o.family),
        "worst": [asdict(o) for o in measured[:10]],
        "wrong_calls": [asdict(o) for o in outcomes if not o.right_call],
        "failed": [asdict(o) for o in outcomes if o.predicted_gib is None],
    }


def _groups(outcomes: list[Outcome], key: Callable[[Outcome], str]) -> dict[str, Any]:
    names = sorted({key(o) for o in outcomes})
    return {name: summary(o for o in outcomes if key(o) == name) for name in names}


def as_text(found: dict[str, Any]) -> str:
    """A Markdown table, as committed to docs/accuracy.md."""
    head = (
        "| group | n | median | p90 | signed | ≤ 5 % | ≤ 10 % | ≤ 20 % | OOM right | fits right |"
    )
    lines = [head, "|---" * 10 + "|", _line("**all**", found["all"])]
    for group in ("by_kind", "by_family"):
        lines += [_line(name, stats) for name, stats in found[group].items()]
    lines += ["", "Worst ten:", ""]
    lines += [
        f"- {o['id']} ({o['kind']}): measured {o['measured_gib']:.2f} GiB, predicted "
        f"{o['predicted_gib']:.2f} ({o['error']:+.0%}); peak in {o['peak']}: {o['reason']}"
        for o in found["worst"]
    ]
    lines += [
        f"- wrong call {o['id']}: {o['outcome']}, called {o['called']}"
        for o in found["wrong_calls"]
    ]
    return "\n".join(lines)


def _line(name: str, stats: dict[str, Any]) -> str:
    def percent(key: str, sign: str = "") -> str:
        return format(stats[key] * 100, f"{sign}.1f") if key in stats else ""

    shares = " | ".join(percent(f"within_{share}") for share in (5, 10, 20))
    return (
        f"| {name} | {stats['n']} | {percent('median')} | {percent('p90')} | "
        f"{percent('signed', '+')} | {shares} | {stats['oom_right']} | {stats['fit_right']} |"
    )


def run(
    cases: Path, models: Path, cache: Cache, progress: bool = True, processes: int | None = None
) -> list[Outcome]:
    """Every case of a file, in its order; cases are independent, so they are spread.

    Raises UserError if a file is missing or isn't of the format.
    """
    rows, known = read_cases(cases), read_models(models)
    count = processes or min(len(rows), os.cpu_count() or 1)
    outcomes = []
    with multiprocessing.get_context("spawn").Pool(count, maxtasksperchild=8) as pool:
        for outcome in pool.imap(functools.partial(_one, models=known, cache=cache), rows):
            outcomes.append(outcome)
            if progress:
                print(_progress(outcome), file=sys.stderr, flush=True)
    return outcomes


def _one(row: Row, models: dict[str, Row], cache: Cache) -> Outcome:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    return predict_case(row, models, cache)


def read_cases(path: Path) -> list[Row]:
    """Rows of a JSONL file."""
    rows = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if line.strip():
            rows.append(_parsed(line, f"{path}:{number}"))
            missing = {"id", "family", "model", "method", "micro_batch", "seq_len"} - set(rows[-1])
            if missing:
                raise UserError(f"{path}:{number}: a case needs {', '.join(sorted(missing))}")
    if not rows:
        raise UserError(f"{path}: no cases")
    return rows


def read_models(path: Path) -> dict[str, Row]:
    return _parsed(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def _parsed(text: str, where: str) -> Row:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{where}: an object is expected")
    return found


def _progress(o: Outcome) -> str:
    error = "" if o.error is None else f"{o.error:+.1%}"
    predicted = "" if o.predicted_gib is None else f"{o.predicted_gib:.2f}"
    return (
        f"{o.id:24s} {o.kind:9s} measured {o.measured_gib or ''!s:7} predicted {predicted:7s} "
        f"{error:8s} {o.outcome}/{o.called} {o.seconds:.0f}s {o.reason}"
    )
