"""Serving for real: real models behind transformers' own server, asked from outside.

make test-serving
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import yaml

from bench import store
from bench.record import ServeRecord, Status
from bench.report.build import build

from ..conftest import bench, environment, make_project
from .test_failures import start, wait_for

pytestmark = [
    pytest.mark.serving,
    pytest.mark.timeout(2700),
]  # one cell of `smoke` is served in every test run

COMMON = {"dtype": "fp32", "autocast": None, "optimizer": "adamw", "learning_rate": 5.0e-3}
COMMON |= {"lr_warmup_steps": 0, "gradient_checkpointing": False}
METHODS = {
    "base": {"use": "base", "dtype": "fp32"},
    "quantized": {
        "use": "base", "name": "quantized", "dtype": "fp32",
        "quantization": {"compute_dtype": "fp32"},
    },
    "full": {"use": "full"} | COMMON,
    "lora": {"use": "lora"} | COMMON,
    "qlora": {"use": "qlora", "quantization": {"compute_dtype": "fp32"}} | COMMON,
}  # fmt: skip
API = {
    "name": "Some API", "usd_per_million_input": 0.5, "usd_per_million_output": 1.5,
    "source": "https://example.com", "date": "2026-11-01",
}  # fmt: skip
SERVE = {"concurrencies": [1, 2], "requests": 4, "warmup_requests": 1, "api": API}


def write(
    project: Path, methods: list[str], serve: dict[str, object] | None, **more: object
) -> None:
    suite: dict[str, object] = {
        "name": "served",
        "models": ["tiny-llama"],
        "methods": [METHODS[name] for name in methods],
        "datasets": ["support-desk"],
        "targets": ["cpu"],
        "budget": {
            "max_steps": 8, "micro_batch": 4, "global_batch": 4, "max_length": 256,
            "max_new_tokens": 12, "generate_batch": 8, "max_train_rows": 32,
            "max_validation_rows": 4, "max_test_rows": 8, "evaluate_every": 1000,
        },
    }  # fmt: skip
    suite |= {"serve": serve} if serve else {}
    text = yaml.safe_dump(suite | more, sort_keys=False)
    (project / "suites" / "served.yaml").write_text(text, encoding="utf-8")


def run(project: Path, cache: Path, code: int = 0) -> str:
    done = bench("run", "served", cwd=project, env=environment(cache), timeout=2400)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def records(project: Path) -> dict[str, tuple[store.Attempt, ServeRecord]]:
    found = {}
    for result in store.read_suite(project / "results", "served"):
        (attempt,) = result.attempts
        if attempt.serve:
            found[result.cell.method.name] = (attempt, attempt.serve)
    return found


def servers() -> list[psutil.Process]:
    """Of ours, still running."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if "bench.worker.serving.server" in line and process.info["status"] != "zombie":
            found.append(process)
    return found


def test_serving_can_be_added_to_a_finished_suite(project: Path, cache: Path) -> None:
    """Nothing is trained again: what still has its weights is served, the rest says why not."""
    write(project, ["base", "lora"], None)
    run(project, cache)
    before = {path.name for path in (project / "results" / "served").glob("*_s0_*")}
    write(project, ["base", "lora"], SERVE)
    said = run(project, cache)
    assert "2 of them served: 1 ok, 1 skipped" in said
    assert {path.name for path in (project / "results" / "served").glob("*_s0_*")} == before
    found = records(project)
    attempt, record = found["base"]
    assert record.status is Status.OK, record.reason
    (plain,) = record.variants
    assert plain.same_answers == 1.0 and plain.compared_rows >= 4  # greedy, fp32: to the letter
    assert plain.engine == "transformers" and plain.held_bytes and plain.stored_bytes
    assert {load.concurrency for load in attempt.loads} == {1, 2}
    counted = [request for request in attempt.requests if request.counted]
    assert len(counted) == 8 and len(attempt.requests) == 9
    for request in counted:
        assert request.error is None and request.new_tokens and request.prompt_tokens
        assert request.first_token_s and 0 < request.first_token_s <= request.total_s
    skipped = found["lora"][1]
    assert skipped.status is Status.SKIPPED and "weights are gone" in str(skipped.reason)
    assert "2 of 2 cells are finished already" in run(project, cache)
    report = (project / "results" / "served" / "report" / "report.md").read_text(encoding="utf-8")
    assert "Cost of ownership" in report and "Some API" in report
    assert "tiny-llama × lora: skipped: the trained weights are gone" in report
    # A price is no measurement: another one changes the report alone
    write(project, ["base", "lora"], SERVE | {"api": API | {"name": "Another API"}})
    said = run(project, cache)
    assert "2 of 2 cells are finished already" in said
    report = (project / "results" / "served" / "report" / "report.md").read_text(encoding="utf-8")
    assert "Another API" in report and "Some API" not in report


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    project = make_project(tmp_path_factory.mktemp("served"))
    write(project, list(METHODS), SERVE | {"merged": [False, True]})
    said = run(project, cache)
    assert "5 of them served" in said
    return project


@pytest.mark.parametrize(
    ("method", "variants", "adapted"),
    [
        ("base", ["plain"], 0),
        ("quantized", ["plain"], 0),
        ("full", ["plain"], 0),
        ("lora", ["plain", "merged"], 28),
        ("qlora", ["plain", "merged"], 28),
    ],
)
def test_every_variant_serves_what_was_evaluated(
    served: Path, method: str, variants: list[str], adapted: int
) -> None:
    attempt, record = records(served)[method]
    assert [variant.name for variant in record.variants] == variants
    plain = record.variants[0]
    assert plain.status is Status.OK and plain.same_answers == 1.0
    assert plain.adapted_modules == adapted
    assert bool(plain.quantized_params) is (method in ("quantized", "qlora"))
    if attempt.train:
        assert plain.weights_sha256 == attempt.train.weights_sha256
    for merged in record.variants[1:]:
        assert merged.adapted_modules == 0 and not merged.quantized_params
        if method == "lora":
            assert merged.status is Status.OK and merged.same_openings == 1.0
        else:  # merged into the unquantised base it is another model, and may answer as one
            assert merged.status in (Status.OK, Status.INVALID)


def test_nothing_is_left_behind(served: Path, cache: Path) -> None:
    assert not servers()
    assert not list((cache / "trained").glob("tiny-llama_*lora*"))
    before = build(served / "results", "served").read_bytes()
    assert build(served / "results", "served").read_bytes() == before


def test_a_killed_server_leaves_the_quality_and_is_tried_again(project: Path, cache: Path) -> None:
    write(project, ["lora"], SERVE | {"requests": 400})
    runner = start(project, "served", cache)
    wait_for(lambda: servers() and _requests(project) >= 3, seconds=600)
    servers()[0].kill()
    output, _ = runner.communicate(timeout=300)
    assert runner.returncode == 0, output
    assert "killed in serving" in output and "1 cell: 1 ok" in output
    record = records(project)["lora"][1]
    assert record.status is Status.KILLED and "SIGKILL" in str(record.reason)
    report = (project / "results" / "served" / "report" / "report.md").read_text(encoding="utf-8")
    assert "killed: the server was killed by signal SIGKILL" in report
    write(project, ["lora"], SERVE)
    assert "1 of them served: 1 ok" in run(project, cache)  # the weights were kept for it
    assert records(project)["lora"][1].status is Status.OK


def test_a_killed_runner_leaves_no_server(project: Path, cache: Path) -> None:
    write(project, ["base"], SERVE | {"requests": 400})
    runner = start(project, "served", cache)
    wait_for(lambda: servers() and _requests(project) >= 1, seconds=600)
    runner.kill()
    runner.wait()
    wait_for(lambda: not servers(), seconds=10)


def _requests(project: Path) -> int:
    logs = (project / "results" / "served").glob("*/attempt-*/events.jsonl")
    return sum(row["event"] == "request" for log in logs for row in store.read_lines(log))
