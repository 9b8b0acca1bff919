"""Plans of many cells, side by side in processes.  Cells that ask the same share one plan.

Processes are forked after the libraries are imported, so that importing costs seconds once, and
memory once.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from pydantic import ValidationError

from bench.fit.cache import Cache
from bench.fit.cell import job_of_cell, request_of_cell
from bench.fit.choices import best_strategy
from bench.fit.predict import add_range, complete, predict
from bench.fit.request import Request, Sharding
from bench.fit.suggest import Asked, changes
from bench.plan import Plan
from bench.spec import Cell, TargetSpec

Progress = Callable[[int, int], None]


def plan_cells(
    cells: Sequence[Cell], targets: Sequence[TargetSpec], folder: Path | None, progress: Progress
) -> dict[str, Plan]:
    """Cell id → plan.  `targets` are machines to suggest where a cell doesn't fit."""
    groups: dict[str, list[Cell]] = {}
    asked: dict[str, list[Cell]] = {}
    for cell in cells:
        question = _question(cell)
        if question not in asked:
            groups.setdefault(_shape(cell), []).append(cell)
        asked.setdefault(question, []).append(cell)
    found: dict[str, Plan] = {}
    for plans in _in_processes(list(groups.values()), targets, folder):
        for question, plan in plans.items():
            found |= {cell.id: plan for cell in asked[question]}
        progress(len(found), len(cells))
    return found


def _question(cell: Cell) -> str:
    """Cells that differ only in seed, or in data that is as long, have the same plan."""
    request = request_of_cell(cell).digest if cell.target.device == "cuda" else ""
    return f"{request} {cell.target.name} {cell.strategy} {job_of_cell(cell)} {cell.method.kind}"


def _shape(cell: Cell) -> str:
    """Cells that share traces: planned one after another, so that none is traced twice."""
    return f"{cell.model.name} {cell.method.name}"


def _in_processes(
    groups: list[list[Cell]], targets: Sequence[TargetSpec], folder: Path | None
) -> Sequence[dict[str, Plan]]:
    workers = min(len(groups), os.cpu_count() or 1)
    if workers < 2:
        return [_plan_group(group, targets, folder) for group in groups]
    _import_libraries()
    groups = sorted(groups, key=lambda group: -(group[0].model.params or 0))
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = [pool.submit(_plan_group, group, targets, folder) for group in groups]
        return [future.result() for future in as_completed(futures)]


def _import_libraries() -> None:
    import bitsandbytes  # noqa: F401
    import peft  # noqa: F401
    import transformers  # noqa: F401
    import trl.trainer.utils  # noqa: F401


def _plan_group(
    group: list[Cell], targets: Sequence[TargetSpec], folder: Path | None
) -> dict[str, Plan]:
    cache = Cache(folder)
    return {_question(cell): plan_cell(cell, targets, cache) for cell in group}


def plan_cell(cell: Cell, targets: Sequence[TargetSpec], cache: Cache) -> Plan:
    """`auto` takes the best strategy; a plan that doesn't fit carries the changes that would."""
    if cell.model.endpoint:
        return Plan(
            fits=None,
            strategy=cell.strategy.name,
            micro_batch=cell.budget.micro_batch,
            notes=["behind an API: nothing runs here, so there is nothing to plan"],
        )
    if cell.target.device == "cpu":
        return Plan(
            fits=None,
            strategy=cell.strategy.name,
            micro_batch=cell.budget.micro_batch,
            notes=["a CPU target: memory and time are predicted for CUDA devices"],
        )
    request = request_of_cell(cell)
    job = job_of_cell(cell)
    if not cell.method.trains:
        plan = Plan(fits=None, strategy="single", micro_batch=request.micro_batch)
        return complete(plan, request, cell.target, cache, job)
    auto = cell.strategy.name == "auto"
    plan, chosen = _trained(request, cell, auto, cache)
    add_range(plan, chosen, cell.target, cache)
    plan = complete(plan, chosen, cell.target, cache, job)
    if plan.fits is False:
        plan.changes = changes(Asked(chosen, job, cell.target, auto), plan, targets, cache)
    return plan


def _trained(request: Request, cell: Cell, auto: bool, cache: Cache) -> tuple[Plan, Request]:
    if auto:
        return best_strategy(request, cell.target, cache, lambda one: _allowed(cell, one))
    return predict(request, cell.target, cache), request


def _allowed(cell: Cell, sharding: Sharding) -> bool:
    """Whether the worker serves the cell so: same batch, and the strategy doesn't refuse."""
    from bench.worker import strategies

    strategy = {
        "name": sharding.kind,
        "offload_params": sharding.offload_params,
        "offload_optimizer": sharding.offload_optimizer,
    }
    try:
        tried = Cell.model_validate({**cell.model_dump(), "strategy": strategy})
    except ValidationError:
        return False
    return strategies.refusal(tried) is None
