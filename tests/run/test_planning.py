"""`bench plan` as a person runs it, and what a plan means for a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import store
from bench.plan import Limit, Plan
from bench.run.planning import Decision, decide, read, resolved
from bench.spec import Strategy
from bench.suite import load

from ..conftest import bench, environment

SUITE = """
name: tiny-plan
version: 1
models: [tiny-llama]
methods: [base, lora]
datasets: [support-desk]
targets: [4xa100-80gb, 1xrtx4090-24gb]
seeds: [0, 1]
strategy: {name: auto}
budget: {max_steps: 10, micro_batch: 2, global_batch: 8, max_length: 256, max_new_tokens: 32,
         generate_batch: 4, max_test_rows: 16}
"""


def limit(share: float) -> Limit:
    return Limit(name="gpu", phase="train", need_bytes=int(share * 2**30), have_bytes=2**30)


def test_plan_writes_what_it_prints(project: Path, cache: Path) -> None:
    path = project / "suites" / "tiny-plan.yaml"
    path.write_text(SUITE)
    done = bench("plan", "tiny-plan", "--json", cwd=project, env=environment(cache))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    cells = load(path).cells
    assert [row["cell"] for row in rows] == [cell.id for cell in cells]
    for row, cell in zip(rows, cells, strict=True):
        plan = read(project / "results", cell)
        assert plan is not None and plan.fits and plan.usd
        assert plan.device_bytes == row["plan"]["device_bytes"]
        phases = {found.phase.partition("/")[0] for found in plan.limits}
        assert "generate" in phases
        assert (plan.memory is None) == (cell.method.name == "base")
    trained = [row["plan"] for row in rows if row["method"] == "lora"]
    by_target = {row["target"]: row["plan"]["strategy"] for row in rows if row["method"] == "lora"}
    assert by_target == {"4xa100-80gb": "ddp", "1xrtx4090-24gb": "single"}
    assert all(plan["evaluation_bytes"] and plan["train_s"] for plan in trained)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.5, Decision.RUN),
        (0.97, Decision.PROBE),
        (1.1, Decision.PROBE),
        (1.5, Decision.REFUSE),
    ],
)
def test_the_margin_decides(share: float, expected: Decision) -> None:
    plan = Plan(fits=share <= 1, strategy="single", micro_batch=1, limits=[limit(share)])
    decision, reason = decide(plan)
    assert decision is expected
    assert ("GiB of gpu memory in train" in reason) == (expected is not Decision.RUN)


def test_without_a_prediction_it_runs() -> None:
    assert decide(None)[0] is Decision.RUN
    assert decide(Plan(fits=None, strategy="single", micro_batch=1))[0] is Decision.RUN


def test_auto_takes_the_plans_strategy(project: Path) -> None:
    path = project / "suites" / "tiny-plan.yaml"
    path.write_text(SUITE)
    cell = load(path).cells[0]
    plan = Plan(fits=True, strategy="zero3+offload", offload_optimizer=True, micro_batch=1)
    assert resolved(cell, plan) == Strategy(name="zero3", offload_optimizer=True)
    named = cell.model_copy(update={"strategy": Strategy(name="fsdp")})
    assert resolved(named, plan) == Strategy(name="fsdp")


REFUSED = """
name: refused
version: 1
models: [tiny-llama]
methods: [majority]
datasets: [support-desk]
targets: [cpu]
seeds: [0]
budget: {max_steps: 1, micro_batch: 1, global_batch: 1, max_length: 256, max_test_rows: 8}
"""


def test_what_cannot_fit_is_skipped_until_told_otherwise(project: Path, cache: Path) -> None:
    path = project / "suites" / "refused.yaml"
    path.write_text(REFUSED)
    (cell,) = load(path).cells
    folder = store.cell_folder(project / "results", cell)
    far = Plan(fits=False, strategy="single", micro_batch=1, limits=[limit(3)])
    store.write_json(folder / "plan.json", far)
    done = bench("run", "refused", cwd=project, env=environment(cache))
    assert done.returncode == 0, done.stderr
    assert "1 skipped" in done.stdout
    record = json.loads((folder / "attempt-001" / "generate.json").read_text())
    assert "3.0 GiB of gpu memory in train, 1.0 there" in record["reason"]
    again = bench("run", "refused", "--run-anyway", cwd=project, env=environment(cache))
    assert again.returncode == 0, again.stderr
    assert "1 ok" in again.stdout
    record = json.loads((folder / "attempt-002" / "generate.json").read_text())
    assert record["status"] == "ok" and record["rows"] == 8
