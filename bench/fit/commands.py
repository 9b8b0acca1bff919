"""What the commands do between reading their arguments and printing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bench.fit.asked import all_targets
from bench.plan import GIB, Plan
from bench.spec import MethodSpec, ModelSpec, TargetSpec

Row = dict[str, Any]


def plan_suite(suite: Path, only: str | None, folder: Path | None) -> list[Row]:
    """One row a cell, in the suite's order."""
    from bench.fit.planner import plan_cells
    from bench.suite import load, select

    cells = select(load(suite).cells, only)
    plans = plan_cells(cells, all_targets(suite.parent), folder, _tell)
    return [row_of(cell.id, cell.model, cell.method, cell.target, plans[cell.id]) for cell in cells]


def _tell(done: int, total: int) -> None:
    print(f"planned {done} of {total} cells", file=sys.stderr, flush=True)


_COSTS = {"prompt_costs", "token_costs"}


def row_of(name: str, model: ModelSpec, method: MethodSpec, target: TargetSpec, plan: Plan) -> Row:
    hidden = {"memory": {"micro_costs", "update_costs"}, "generation": _COSTS}
    shown = plan.model_dump(exclude=hidden)
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
    sizes = (plan["device_bytes"], plan["device_high_bytes"])
    gib = [_gib(size) for size in sizes if size is not None]
    memory, time = plan["memory"] or {}, plan["time"] or {}
    seconds = time.get("step_s")
    speed = f"{time['tokens'] / seconds:.0f}" if seconds else ""
    fits = {True: "yes", False: "no", None: "?"}[plan["fits"]]
    usd = "" if plan["usd"] is None else f"{plan['usd']:.2f}"
    lines = [
        f"{row['model']:24} {row['method']:8} {row['target']:16} {plan['strategy']:14} "
        f"{plan['micro_batch']:3} {'–'.join(dict.fromkeys(gib)):>16} "
        f"{_gib(memory.get('host_bytes')):>6} {fits:>5} "
        f"{seconds or 0:7.2f} {speed:>8} {usd:>8}"
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
