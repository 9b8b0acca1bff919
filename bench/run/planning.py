"""Plans, made in a process of their own (torch), kept beside the cells: plan.json.

`decide` says what a prediction means for a run: go, go after a probe, or don't.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from bench import cache, store
from bench.errors import UserError
from bench.plan import Plan
from bench.spec import Cell, Strategy

FILE = "plan.json"
# A prediction this far over a limit is not worth the hours; nearer ones are within its error.
WIDE_MARGIN = 0.15
NARROW_MARGIN = 0.05


def plan_cells(suite: Path, only: str | None, cells: Sequence[Cell], results: Path) -> list[Plan]:
    """Plan the cells of a suite's file and keep each plan in its cell's folder.

    Raises UserError with what the planning process said.
    """
    asked = command("plan", str(suite), "--json", *(["--only", only] if only else []))
    done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(f"{suite} can't be planned: see above")
    plans = {row["cell"]: Plan.model_validate(row["plan"]) for row in json.loads(done.stdout)}
    for cell in cells:
        store.write_json(store.cell_folder(results, cell) / "cell.json", cell)
        store.write_json(store.cell_folder(results, cell) / FILE, plans[cell.id])
    return [plans[cell.id] for cell in cells]


def plan_missing(suite: Path, only: str | None, cells: Sequence[Cell], results: Path) -> None:
    """Plans decide the strategy and whether a cell is worth its hours; on a CPU there are none."""
    wanted = [cell for cell in cells if cell.target.device == "cuda"]
    if any(read(results, cell) is None for cell in wanted):
        plan_cells(suite, only, wanted, results)


def command(*arguments: str) -> list[str]:
    """Predictions need torch: a process of their own, its traces kept in the cache folder."""
    return [sys.executable, "-m", "bench.fit", *arguments, "--cache", str(cache.root() / "fit")]


def read(results: Path, cell: Cell) -> Plan | None:
    return store.read_record(Plan, store.cell_folder(results, cell) / FILE)


class Decision(Enum):
    """What a plan means for a run.  PROBE: first a short run of the longest batches."""

    RUN = "run"
    PROBE = "probe"
    REFUSE = "refuse"


def decide(plan: Plan | None) -> tuple[Decision, str]:
    """With the reason, which names the limit, the need and the remedy."""
    if plan is None or plan.fits is None:
        return Decision.RUN, ""
    over = [
        (limit.need_bytes / limit.have_bytes - 1, limit)
        for limit in plan.limits
        if limit.have_bytes
    ]
    worst, limit = max(over, key=lambda pair: pair[0], default=(-1.0, None))
    if limit is None or worst < -NARROW_MARGIN:
        return Decision.RUN, ""
    told = (
        f"predicted to need {limit.need_bytes / 2**30:.1f} GiB of {limit.name} memory in "
        f"{limit.phase}, {limit.have_bytes / 2**30:.1f} there"
    )
    if worst <= WIDE_MARGIN:
        return Decision.PROBE, told
    ways = ", ".join(str(change["change"]) for change in plan.changes[:3])
    return Decision.REFUSE, f"{told}{f'; would fit: {ways}' if ways else ''}; --run-anyway runs it"


def resolved(cell: Cell, plan: Plan | None) -> Strategy:
    """The strategy that runs: the cell's own, or for `auto` the plan's."""
    if cell.strategy.name != "auto":
        return cell.strategy
    if plan is None or plan.fits is None:
        return Strategy(name="single")
    return Strategy.model_validate(
        {
            "name": plan.strategy.partition("+")[0],
            "offload_params": plan.offload_params,
            "offload_optimizer": plan.offload_optimizer,
        }
    )
