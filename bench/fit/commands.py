"""What the commands do between reading their arguments and printing."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.document import read_yaml, validate
from bench.errors import UserError, nearest
from bench.fit.cache import Cache
from bench.fit.cell import request_of_cell, sharding_of
from bench.fit.choices import best_strategy, largest_micro_batch
from bench.fit.predict import Job, predict
from bench.fit.request import Request
from bench.fit.suggest import Asked, changes
from bench.plan import GIB, Plan
from bench.spec import MethodSpec, ModelSpec, RandomWeights, Strategy, TargetSpec

Row = dict[str, Any]


def plan_suite(suite: Path, only: str | None, folder: Path | None) -> list[Row]:
    """One row a cell, in the suite's order."""
    from bench.fit.planner import plan_cells
    from bench.suite import load, select

    cells = select(load(suite).cells, only)
    plans = plan_cells(cells, _all_targets(suite.parent), folder, _tell)
    return [_row(cell.id, cell.model, cell.method, cell.target, plans[cell.id]) for cell in cells]


def _tell(done: int, total: int) -> None:
    print(f"planned {done} of {total} cells", file=sys.stderr, flush=True)


def fit_one(options: argparse.Namespace) -> list[Row]:
    """One configuration on one target, or on all."""
    model = _model(options.model, options.suites)
    method = _changed(_spec(MethodSpec, options.suites / "methods", options.method), options)
    targets = _targets(options)
    cache = Cache(options.cache)
    rows = []
    for target in targets:
        plan = _fit_on(model, method, target, options, cache)
        if plan is not None:
            rows.append(_row(options.model, model, method, target, plan))
    if not rows:
        raise UserError("no CUDA target among the chosen ones")
    return rows


def _fit_on(
    model: ModelSpec,
    method: MethodSpec,
    target: TargetSpec,
    options: argparse.Namespace,
    cache: Cache,
) -> Plan | None:
    if target.device == "cpu":
        return None
    request = _request(model, method, target, options)
    auto = options.strategy == "auto"

    def planned(asked: Request) -> tuple[Plan, Request]:
        if auto:
            return best_strategy(asked, target, cache)
        return predict(asked, target, cache), asked

    if options.micro_batch == "max":
        largest = largest_micro_batch(request, lambda asked: planned(asked)[0])
        request = request.model_copy(update={"micro_batch": max(1, largest)})
    plan, chosen = planned(request)
    if plan.fits is False and options.target:
        asked = Asked(chosen, Job(), target)
        plan.changes = changes(asked, plan, _all_targets(options.suites), cache)
    return plan


def _request(
    model: ModelSpec, method: MethodSpec, target: TargetSpec, options: argparse.Namespace
) -> Request:
    """A request without a suite: the same mapping as a cell's."""
    from types import SimpleNamespace

    micro = 1 if options.micro_batch == "max" else int(options.micro_batch)
    strategy = Strategy(name=options.strategy)
    ranks = sharding_of(strategy, method, target).devices
    budget = SimpleNamespace(
        micro_batch=micro, global_batch=micro * ranks, max_length=options.seq_len
    )
    cell: Any = SimpleNamespace(
        model=model, method=method, target=target, strategy=strategy, budget=budget
    )
    return request_of_cell(cell)


def _spec(kind: Any, folder: Path, name: str) -> Any:
    path = folder / f"{name}.yaml"
    if not path.exists():
        names = sorted(found.stem for found in folder.glob("*.yaml"))
        raise UserError(f"no {folder.name[:-1]} named {name}. {nearest(name, names)}")
    return validate(kind, read_yaml(path))


def _model(name: str, suites: Path) -> ModelSpec:
    path = Path(name)
    if path.suffix != ".json":
        found: ModelSpec = _spec(ModelSpec, suites / "models", name)
        return found
    config = json.loads(path.read_text())
    return ModelSpec(
        name="config",
        weights=RandomWeights(kind="random"),
        config=config,
        params=1,
        chat=False,
    )


def _targets(options: argparse.Namespace) -> list[TargetSpec]:
    if options.target:
        return [_spec(TargetSpec, options.suites / "targets", options.target)]
    return _all_targets(options.suites)


def _all_targets(suites: Path) -> list[TargetSpec]:
    folder = suites / "targets"
    return [_spec(TargetSpec, folder, path.stem) for path in sorted(folder.glob("*.yaml"))]


def _changed(method: MethodSpec, options: argparse.Namespace) -> MethodSpec:
    """The method with what the command line says."""
    updates: Row = {}
    if options.optimizer:
        updates["optimizer"] = options.optimizer
    if options.grad_checkpointing is not None:
        updates["gradient_checkpointing"] = options.grad_checkpointing
    if options.packed:
        updates |= {"packing": True, "attention": "flash_attention_2"}
    if options.rank and method.adapter:
        updates["adapter"] = method.adapter.model_copy(update={"rank": options.rank})
    return MethodSpec.model_validate({**method.model_dump(), **updates})


_COSTS = {"prompt_costs", "token_costs"}


def _row(name: str, model: ModelSpec, method: MethodSpec, target: TargetSpec, plan: Plan) -> Row:
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
