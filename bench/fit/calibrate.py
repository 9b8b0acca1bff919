"""Results of real runs → proposed entries of constants.yaml.  Nothing is written.

bench calibrate results/ [--json]

Read are the runs of suites, and the rungs of `make gpu-check` (results/gpu-check.jsonl).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.errors import UserError
from bench.fit.constants import constant
from bench.fit.gpu_check import Rung
from bench.fit.steptime import find_gpu
from bench.plan import GIB, Plan
from bench.record import Memory, Status, TrainRecord
from bench.score.calibration import (
    Observed,
    Proposal,
    Timed,
    constant_of,
    efficiency_of,
    outside_gib,
)
from bench.spec import Cell
from bench.store import Attempt, CellResult, read_lines, read_record, read_suite

RUNGS = "gpu-check.jsonl"  # where make gpu-check leaves them


@dataclass(frozen=True)
class Run:
    """A finished training on GPUs."""

    cell: Cell
    attempt: Attempt
    train: TrainRecord
    plan: Plan | None

    @property
    def gpu(self) -> str:
        """As constants.yaml and gpus.yaml name it; the target's own name if they don't."""
        return _gpu_name(str(self.cell.target.gpu))

    @property
    def ranks(self) -> int:
        single = self.plan.strategy == "single" if self.plan else self.cell.data_parallel == 1
        return 1 if single else self.cell.target.devices * self.cell.target.nodes

    @property
    def memory(self) -> Memory | None:
        return self.train.memory.get("process")


def _gpu_name(name: str) -> str:
    facts = find_gpu(name)
    return str(facts["match"]) if facts else name


def calibrate(results: Path) -> list[Proposal]:
    """Proposals for all constants that the runs say something about.

    Raises UserError where no run on a GPU has finished.
    """
    runs, rungs = list(_runs(results)), _rungs(results / RUNGS)
    if not runs and not rungs:
        raise UserError(
            f"{results}: no finished training on a GPU: constants are measured there "
            "(run any suite on one, or make gpu-check)"
        )
    return [found for found in _proposals(runs, rungs) if found is not None]


def _rungs(path: Path) -> list[Rung]:
    found = [Rung.model_validate(row) for row in read_lines(path)]
    return [rung for rung in found if rung.outcome == "ok"]


def _runs(results: Path) -> Iterator[Run]:
    for folder in sorted(path for path in results.glob("*") if any(path.glob("*/cell.json"))):
        for result in read_suite(results, folder.name):
            found = _run(result)
            if found is not None:
                yield found


def _run(result: CellResult) -> Run | None:
    latest = result.latest
    if latest is None or result.cell.target.device != "cuda":
        return None
    train = latest.train
    if train is None or train.status is not Status.OK:
        return None
    return Run(result.cell, latest, train, read_record(Plan, result.path / "plan.json"))


def _proposals(runs: list[Run], rungs: list[Rung]) -> Iterator[Proposal | None]:
    alone = [(run.gpu, run.cell.id, _outside(run)) for run in runs if run.ranks == 1]
    steps = [
        (_gpu_name(rung.gpu), rung.name,
         outside_gib(rung.measured_device_bytes, rung.measured_reserved_bytes))
        for rung in rungs
    ]  # fmt: skip
    contexts = _by_gpu([*alone, *steps])
    before = constant("cuda_context_gib")
    for gpu, seen in contexts.items():
        yield constant_of("cuda_context_gib", "GiB a process", before, seen, gpu)
    several = [run for run in runs if run.ranks > 1]
    seen = [
        Observed(run.cell.id, outside - _context(run, contexts))
        for run in several
        if (outside := _outside(run)) is not None and outside > _context(run, contexts)
    ]
    yield constant_of("nccl_gib", "GiB a process", constant("nccl_gib"), seen)
    hosts = [Observed(run.cell.id, gib) for run in runs if (gib := _host(run)) is not None]
    yield constant_of("process_host_gib", "GiB a rank", constant("process_host_gib"), hosts)
    for gpu, timed in _timed(runs, rungs).items():
        yield efficiency_of(constant("matmul_efficiency", gpu), constant("overlap"), timed, gpu)


def _by_gpu(seen: list[tuple[str, str, float | None]]) -> dict[str, list[Observed]]:
    found: dict[str, list[Observed]] = defaultdict(list)
    for gpu, run, value in seen:
        if value:
            found[gpu].append(Observed(run, value))
    return found


def _outside(run: Run) -> float | None:
    memory = run.memory
    return outside_gib(memory.device_bytes, memory.reserved_bytes) if memory else None


def _context(run: Run, contexts: dict[str, list[Observed]]) -> float:
    """What runs on one such GPU showed, else the constant."""
    found = constant_of("", "", 1.0, contexts.get(run.gpu, []))
    return found.value if found else constant("cuda_context_gib")


def _host(run: Run) -> float | None:
    """GiB of a rank's process before it holds a model; the record sums the process tree."""
    memory = run.memory
    if memory is None or not memory.host_baseline_bytes:
        return None
    return memory.host_baseline_bytes / GIB / run.ranks


def _timed(runs: list[Run], rungs: list[Rung]) -> dict[str, list[Timed]]:
    found: dict[str, list[Timed]] = defaultdict(list)
    for rung in rungs:
        if rung.measured_step_s and rung.predicted_step_s:
            timed = Timed(rung.name, rung.measured_step_s, rung.predicted_step_s, 0.0)
            found[_gpu_name(rung.gpu)].append(timed)
    for run in runs:
        time = run.plan.time if run.plan else None
        steps = run.attempt.steps[run.cell.budget.timing_warmup_steps :]
        tokens = sum(step.padded_tokens for step in steps)
        if time is None or not tokens or not time.padded_tokens:
            continue
        # Their batches differ in length: seconds a token are compared.
        measured = sum(step.seconds for step in steps) / tokens * time.padded_tokens
        other = time.communication_s + time.offload_s
        found[run.gpu].append(Timed(run.cell.id, measured, time.compute_s, other))
    return found


# ---------------------------------------------------------------- printing


def as_json(proposals: list[Proposal]) -> list[dict[str, Any]]:
    return [asdict(one) for one in proposals]


def as_text(proposals: list[Proposal]) -> str:
    """How good they are, then entries to copy into bench/fit/constants.yaml."""
    lines = [f"{'constant':20} {'gpu':16} {'n':>3} {'before':>8} {'after':>8}  median error"]
    for one in proposals:
        after = "unchecked" if one.error_after is None else f"{one.error_after:.1%}"
        lines.append(
            f"{one.name:20} {one.gpu or 'all':16} {one.n:3} {one.before:8.3f} {one.value:8.3f}  "
            f"{one.error_before:.1%} → {after}"
        )
    lines += ["", "# errors after: each run predicted from the others.  To use them, copy into"]
    lines += ["# bench/fit/constants.yaml:", yaml.safe_dump(_entries(proposals), sort_keys=False)]
    return "\n".join(lines)


def _entries(proposals: list[Proposal]) -> dict[str, Any]:
    """constants.yaml's shape: a value for all GPUs, or one by GPU beside the present one."""
    found: dict[str, Any] = {}
    for one in proposals:
        source = f"{one.n} measured runs: " + ", ".join(one.runs)
        entry = {"value": round(one.value, 3), "unit": one.unit, "source": source}
        if one.gpu is None:
            found[one.name] = entry
        else:
            found.setdefault(one.name, {}).setdefault("by_gpu", {})[one.gpu] = entry
    return found
