"""What the commands do between reading their arguments and printing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.fit.cache import Cache
from bench.fit.cell import request_of_cell
from bench.fit.predict import best_strategy, predict
from bench.fit.request import Request
from bench.plan import GIB, Plan
from bench.spec import Cell, MethodSpec, ModelSpec, TargetSpec

Row = dict[str, Any]


def plan_suite(suite: Path, folder: Path | None) -> list[Row]:
    """One row a cell.  Cells that differ only in seed or data share a trace through the cache."""
    from bench.suite import load

    cache = Cache(folder)
    known: dict[str, Plan] = {}
    rows = []
    for cell in load(suite).cells:
        request = request_of_cell(cell)
        key = f"{request.digest} {cell.target.name} {cell.strategy}"
        if key not in known:
            known[key] = plan_cell(cell, request, cache)
        rows.append(row_of(cell.id, cell.model, cell.method, cell.target, known[key]))
    return rows


def plan_cell(cell: Cell, request: Request, cache: Cache) -> Plan:
    """`auto` tries the strategies; a plan that doesn't fit carries the changes that would."""
    steps = cell.budget.max_steps or _steps_of_rows(cell)
    if cell.target.device == "cpu":
        return Plan(
            fits=None,
            strategy=cell.strategy.name,
            micro_batch=request.micro_batch,
            notes=["a CPU target: predicted for CUDA devices only"],
        )
    if not cell.method.trains:
        return Plan(
            fits=None,
            strategy=cell.strategy.name,
            micro_batch=request.micro_batch,
            notes=["nothing is trained: plans don't cover generation alone yet"],
        )
    if cell.strategy.name == "auto":
        return best_strategy(request, cell.target, cache, steps)
    return predict(request, cell.target, cache, steps)


def _steps_of_rows(cell: Cell) -> int | None:
    budget = cell.budget
    if budget.epochs is None or budget.max_train_rows is None:
        return None
    return max(1, int(budget.epochs * budget.max_train_rows / budget.global_batch))


def row_of(name: str, model: ModelSpec, method: MethodSpec, target: TargetSpec, plan: Plan) -> Row:
    shown = plan.model_dump(exclude={"memory": {"micro_costs", "update_costs"}})
    return {
        "cell": name,
        "model": model.name,
        "method": method.name,
        "target": target.name,
        "plan": shown,
    }


def table(rows: list[Row]) -> str:
    """Plain text: a line a row, and below it what breaks."""
    head = f"{'model':24} {'method':8} {'target':16} {'strategy':14} {'mb':>3} "
    lines = [head + f"{'GPU GiB':>16} {'host':>6} {'fits':>5} {'s/step':>7} {'tok/s':>8} {'$':>8}"]
    return "\n".join([*lines, *(line for row in rows for line in _lines(row))])


def _lines(row: Row) -> list[str]:
    plan = row["plan"]
    gib = [_gib(plan["device_bytes"]), _gib(plan["device_high_bytes"])]
    memory, time = plan["memory"] or {}, plan["time"] or {}
    seconds = time.get("step_s")
    speed = f"{time['tokens'] / seconds:.0f}" if seconds else ""
    fits = {True: "yes", False: "no", None: "?"}[plan["fits"]]
    lines = [
        f"{row['model']:24} {row['method']:8} {row['target']:16} {plan['strategy']:14} "
        f"{plan['micro_batch']:3} {'–'.join(dict.fromkeys(gib)):>16} "
        f"{_gib(memory.get('host_bytes')):>6} {fits:>5} "
        f"{seconds or 0:7.2f} {speed:>8} {plan['usd'] or 0:8.2f}"
    ]
    for limit in plan["limits"]:
        missing = limit["need_bytes"] - limit["have_bytes"]
        if missing > 0:
            lines.append(f"    {limit['name']} in {limit['phase']}: {_gib(missing)} GiB too little")
    lines += [
        f"    would fit: {change['change']} ({_gib(change['device_bytes'])} GiB)"
        for change in plan["changes"]
    ]
    return lines + [f"    {note}" for note in plan["notes"]]


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / GIB:.1f}"
