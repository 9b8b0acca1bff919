"""Out of memory, killed, diverged, timed out, interrupted: each is a result or can go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml

from bench import store
from bench.plan import Limit, Plan
from bench.record import Status
from bench.spec import Budget
from bench.suite import load

from ..conftest import bench, environment

HEAD = """\
name: {name}
models: [tiny-llama]
methods: [{methods}]
datasets: [support-desk]
targets: [cpu]
budget:
  max_steps: {steps}
  micro_batch: 4
  global_batch: 4
  max_length: 256
  max_new_tokens: 8
  generate_batch: 2
  max_train_rows: 64
  max_validation_rows: 4
  max_test_rows: 4
  evaluate_every: 1000
"""
FULL = "{{use: full, name: {name}, dtype: fp32, autocast: null, optimizer: adamw, {more}}}"


def method(name: str, rate: str = "1.0e-3") -> str:
    more = f"learning_rate: {rate}, lr_warmup_steps: 0, gradient_checkpointing: false"
    return FULL.format(name=name, more=more)


def write_suite(project: Path, name: str, methods: str, steps: int = 3, rules: str = "") -> None:
    text = HEAD.format(name=name, methods=methods, steps=steps) + rules
    (project / "suites" / f"{name}.yaml").write_text(text, encoding="utf-8")


def one(project: Path, suite: str, method_name: str) -> store.CellResult:
    found = store.read_suite(project / "results", suite)
    return next(r for r in found if r.cell.method.name == method_name)


def start(project: Path, suite: str, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.cli", "run", suite],
        cwd=project,
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], object], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def worker_of(runner: subprocess.Popen[str]) -> psutil.Process | None:
    """The one descendant that leads a session of its own: the worker."""
    children = psutil.Process(runner.pid).children(recursive=True)
    return next((c for c in children if os.getsid(c.pid) == c.pid), None)


def steps_done(project: Path, suite: str) -> int:
    logs = list((project / "results" / suite).glob("*/attempt-*/events.jsonl"))
    rows = [row for log in logs for row in store.read_lines(log)]
    return sum(row["event"] == "step" for row in rows)


def test_limits_and_divergence_are_results_and_the_suite_goes_on(
    project: Path, cache: Path
) -> None:
    rules = """\
rules:
  - {when: {method: [fat]}, budget: {host_memory_limit_gib: 0.3}}
  - {when: {method: [slow]}, budget: {time_limit_s: 1}}
"""
    methods = ", ".join([method("fat"), method("slow"), method("hot", "1.0e30"), method("fine")])
    write_suite(project, "bad", methods, rules=rules)
    done = bench("run", "bad", cwd=project, env=environment(cache), timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    expected = {
        "fat": (Status.OOM_HOST, "the limit is 0.3 GiB"),
        "slow": (Status.TIMEOUT, "limit of 1 s"),
        "hot": (Status.DIVERGED, "loss is"),
    }
    for name, (status, reason) in expected.items():
        result = one(project, "bad", name)
        assert result.latest is not None and result.latest.train is not None
        assert result.latest.train.status is status
        assert reason in str(result.latest.train.reason)
        assert result.latest.train.stage and result.latest.generate is None
    fat = one(project, "bad", "fat").latest
    assert fat and fat.train and (fat.train.memory["process"].host_bytes or 0) > 0.3 * 2**30
    hot = one(project, "bad", "hot").latest
    assert hot and hot.steps and hot.steps[-1].loss is None  # NaN is null on disk
    fine = one(project, "bad", "fine").latest
    assert fine and fine.generate and fine.generate.status is Status.OK
    report = (project / "results" / "bad" / "report" / "report.md").read_text(encoding="utf-8")
    for word in ("oom_host", "timeout", "diverged", "the limit is 0.3 GiB"):
        assert word in report
    again = bench("run", "bad", cwd=project, env=environment(cache))
    assert "4 of 4 cells are finished already" in again.stdout


def test_a_narrow_plan_is_probed_with_the_longest_rows_first(project: Path, cache: Path) -> None:
    rules = "rules:\n  - {when: {method: [fat]}, budget: {host_memory_limit_gib: 0.3}}\n"
    write_suite(project, "narrow", f"{method('fat')}, {method('fine')}", rules=rules)
    limit = Limit(name="gpu", phase="train", need_bytes=99, have_bytes=100)
    plan = Plan(fits=True, strategy="single", micro_batch=4, limits=[limit])
    for cell in load(project / "suites" / "narrow.yaml").cells:
        store.write_json(store.cell_folder(project / "results", cell) / "plan.json", plan)
    done = bench("run", "narrow", cwd=project, env=environment(cache), timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    fat, fine = (one(project, "narrow", name).latest for name in ("fat", "fine"))
    assert fat and fat.train and fat.train.status is Status.OOM_HOST
    assert str(fat.train.reason).startswith("in a probe of the longest batches: ")
    assert not fat.steps, "the long run must not have begun"
    assert fine and fine.train and fine.train.status is Status.OK and len(fine.steps) == 3
    probed = store.Attempt(fine.path / "probe")
    assert probed.train and len(probed.steps) == 2 and probed.train.weights is None
    assert fine.train.wall_s > probed.train.wall_s + sum(fine.train.stage_s.values())
    assert min(step.tokens for step in probed.steps) > max(step.tokens for step in fine.steps)


def test_a_killed_worker_is_a_result_and_is_tried_again(project: Path, cache: Path) -> None:
    write_suite(project, "kill", ", ".join([method("victim"), "{use: base, dtype: fp32}"]), steps=8)
    runner = start(project, "kill", cache)
    wait_for(lambda: steps_done(project, "kill") >= 3)
    victim = worker_of(runner)
    assert victim is not None
    victim.kill()
    output, _ = runner.communicate(timeout=300)
    assert runner.returncode == 0, output
    result = one(project, "kill", "victim")
    killed = result.attempts[0].train
    assert killed and killed.status is Status.KILLED and "SIGKILL" in str(killed.reason)
    assert killed.stage == "train" and 3 <= killed.steps < 8
    base = one(project, "kill", "base").latest
    assert base and base.generate and base.generate.status is Status.OK  # the suite went on
    again = bench("run", "kill", cwd=project, env=environment(cache))
    assert "1 of 2 cells are finished already" in again.stdout
    result = one(project, "kill", "victim")
    assert [a.path.name for a in result.attempts] == ["attempt-001", "attempt-002"]
    assert result.attempts[0].train == killed  # nothing measured is lost
    second = result.attempts[1]
    assert second.train and second.train.status is Status.OK and second.train.steps == 8
    assert second.generate and second.generate.status is Status.OK


def test_children_never_outlive_a_killed_runner(project: Path, cache: Path) -> None:
    write_suite(project, "orphan", method("full"), steps=400)
    runner = start(project, "orphan", cache)
    wait_for(lambda: steps_done(project, "orphan") >= 2)
    worker = worker_of(runner)
    assert worker is not None
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    wait_for(lambda: not worker.is_running() or worker.status() == "zombie", seconds=5)
    # What the dead runner left is resumed as a new attempt, the half-trained one is kept.
    write_suite(project, "orphan", method("full"), steps=400)
    runner = start(project, "orphan", cache)
    second = "attempt-002"
    wait_for(lambda: list((project / "results" / "orphan").glob(f"*/{second}/events.jsonl")))
    runner.send_signal(signal.SIGINT)
    output, _ = runner.communicate(timeout=60)
    assert runner.returncode == 130 and "interrupted" in output
    assert not one(project, "orphan", "full").attempts[1].phases  # no record: it can resume


def test_an_interrupted_generation_goes_on_with_the_missing_rows(
    project: Path, cache: Path
) -> None:
    rules = "rules:\n  - {when: {method: [base]}, budget: {max_test_rows: 40, generate_batch: 1}}\n"
    write_suite(project, "stop", "{use: base, dtype: fp32}", rules=rules)
    runner = start(project, "stop", cache)
    folder = project / "results" / "stop"

    def rows() -> int:
        return sum(len(store.read_lines(p)) for p in folder.glob("*/*/predictions.jsonl"))

    wait_for(lambda: rows() >= 3)
    runner.send_signal(signal.SIGINT)
    output, _ = runner.communicate(timeout=60)
    assert runner.returncode == 130, output
    before = rows()
    assert 3 <= before < 40
    done = bench("run", "stop", cwd=project, env=environment(cache))
    assert done.returncode == 0, done.stdout + done.stderr
    result = one(project, "stop", "base")
    assert len(result.attempts) == 1
    last = result.attempts[0]
    assert last.generate and last.generate.status is Status.OK
    assert last.generate.rows == 40 == len({p.id for p in last.predictions})
    assert last.generate.interruptions == 1
    generated = [e["rows"] for e in last.events if e["event"] == "generated"]
    assert sum(generated) == 40  # no row was answered twice


def test_a_broken_cell_is_an_error_with_one_line(project: Path, cache: Path) -> None:
    models = project / "suites" / "models"
    model = yaml.safe_load((models / "tiny-llama.yaml").read_text(encoding="utf-8"))
    models.unlink()
    models.mkdir()
    model["weights"] = {"kind": "path", "path": "nowhere"}
    (models / "tiny-llama.yaml").write_text(yaml.safe_dump(model), encoding="utf-8")
    write_suite(project, "gone", "{use: base, dtype: fp32}")
    done = bench("run", "gone", cwd=project, env=environment(cache))
    assert done.returncode == 1
    assert "no folder nowhere" in done.stdout and "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ({"memory.events": "low 0\noom 3\noom_kill 2\n"}, 2),
        ({"vmstat": "nr_free_pages 1\noom_kill 5\n"}, 5),
        ({}, 0),
    ],
)
def test_kernel_kills_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: dict[str, str], expected: int
) -> None:
    from bench.run import oom

    for name, text in lines.items():
        (tmp_path / name).write_text(text, encoding="ascii")
    places = tuple((str(tmp_path / name), "oom_kill") for name in ("memory.events", "vmstat"))
    monkeypatch.setattr(oom, "COUNTERS", places)
    assert oom.kills() == expected


def test_exit_codes_are_classified(tmp_path: Path) -> None:
    from bench.run.watch import Watch

    (tmp_path / "log.txt").write_text("something\nSegmentation fault\n", encoding="utf-8")
    events = tmp_path / "events.jsonl"
    events.touch()

    def death(code: str, kernel: bool = False) -> tuple[Status, str] | None:
        process = subprocess.Popen([sys.executable, "-c", f"import os; {code}"])
        watch = Watch([process], Budget(max_steps=1), events, lambda event: None)
        watch.until_end()
        found = watch.death(kernel, tmp_path)
        return found and found[:2]

    assert death("pass") is None
    assert death("os.kill(os.getpid(), 9)", kernel=True) == (
        Status.OOM_HOST,
        "killed by the kernel's out-of-memory killer",
    )
    assert death("os.kill(os.getpid(), 9)") == (Status.KILLED, "killed by signal SIGKILL")
    assert death("os._exit(7)") == (Status.ERROR, "exit code 7: Segmentation fault")
