"""A local model and one behind an API in one suite, real processes: killed, resumed, reported."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from bench import store, suite
from bench.record import Status
from bench.run.progress import Progress
from bench.run.runner import Run, run_suite

from ..conftest import ROOT, bench, environment
from ..fake_api import Fake, Reply, completion, fake_api
from .test_failures import start, wait_for, worker_of

pytest.importorskip("openai")

KEY = "sk-not-a-real-key-0123456789"
MODEL = """\
name: behind-api
endpoint:
  provider: openai
  base_url: {url}
  model: made
  key_env: TEST_API_KEY
  concurrency: 1
  price:
    usd_per_million_input: 1.0
    usd_per_million_output: 10.0
    provider: Example
    date: 2026-11-01
    source: https://example.com/prices
"""
SUITE = """\
name: mixed
models: [tiny-llama, behind-api]
methods: [majority, {use: base, dtype: fp32}]
datasets: [support-desk]
targets: [cpu, {use: cpu, name: cpu-b}]
budget: {max_steps: 1, max_new_tokens: 8, max_test_rows: 12, max_length: 256}
rules:
  - {when: {model: [tiny-llama], method: [base]}, exclude: true, reason: takes a while here}
"""


@pytest.fixture
def api() -> Iterator[Fake]:
    with fake_api() as fake:
        yield fake


@pytest.fixture
def mixed(tmp_path: Path, api: Fake) -> Path:
    """A project with a model of its own behind the server."""
    suites = tmp_path / "suites"
    for name in ("methods", "datasets", "targets"):
        (suites / name).parent.mkdir(exist_ok=True)
        (suites / name).symlink_to(ROOT / "suites" / name)
    (suites / "models").mkdir()
    (suites / "models" / "tiny-llama.yaml").symlink_to(
        ROOT / "suites" / "models" / "tiny-llama.yaml"
    )
    (suites / "models" / "behind-api.yaml").write_text(MODEL.format(url=api.url), encoding="utf-8")
    (suites / "mixed.yaml").write_text(SUITE, encoding="utf-8")
    (tmp_path / "data").symlink_to(ROOT / "data")
    return tmp_path


def attempt(project: Path) -> store.Attempt:
    found = store.read_suite(project / "results", "mixed")
    (result,) = [r for r in found if r.cell.model.endpoint]
    assert len(result.attempts) == 1
    return result.attempts[0]


def answered(project: Path) -> int:
    files = list((project / "results").glob("*/behind-api_*/attempt-001/predictions.jsonl"))
    return sum(len(store.read_lines(file)) for file in files)


def test_killed_resumed_and_reported(
    mixed: Path, api: Fake, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = bench("run", "mixed", cwd=mixed, env=environment(cache))
    assert done.returncode == 2 and not (mixed / "results").exists() and not api.asked
    assert "model behind-api: the environment variable TEST_API_KEY isn't set" in done.stderr

    monkeypatch.setenv("TEST_API_KEY", KEY)
    api.answer = lambda body, n: Reply(completion().body, delay_s=0 if n < 5 else 60)
    runner = start(mixed, "mixed", cache)
    wait_for(lambda: answered(mixed) == 5 and len(api.asked) == 6)
    worker = worker_of(runner)
    assert worker is not None and KEY not in " ".join(worker.cmdline())
    worker.kill()
    output, _ = runner.communicate(timeout=240)
    generate = attempt(mixed).generate
    assert generate and generate.status is Status.KILLED and generate.rows == 5

    api.answer = lambda body, n: completion(f"from {KEY}", model="another")
    done = bench("run", "mixed", cwd=mixed, env=environment(cache))
    assert done.returncode == 0, done.stdout + done.stderr
    last = attempt(mixed)
    assert last.generate and last.generate.status is Status.OK and last.generate.rows == 12
    asked = Counter(api.questions())
    # All once; only the question that was on its way when the worker died is asked again
    assert len(asked) == 12 and sorted(asked.values()) == [1] * 11 + [2]

    everything = [path for path in mixed.joinpath("results").rglob("*") if path.is_file()]
    assert len(everything) > 20
    for path in everything:
        assert KEY.encode() not in path.read_bytes(), path
    assert KEY not in output + done.stdout + done.stderr
    check_report(mixed / "results" / "mixed" / "report")

    model = mixed / "suites" / "models" / "behind-api.yaml"
    text = model.read_text(encoding="utf-8").replace("input: 1.0", "input: 2.0")
    model.write_text(text, encoding="utf-8")
    number = len(api.asked)
    with Progress(Console(file=io.StringIO())) as progress:
        states = run_suite(
            suite.load(mixed / "suites" / "mixed.yaml").cells, Run(mixed / "results", progress)
        )
    assert len(states) == 3 and len(api.asked) == number  # a price costs no new answer
    (result,) = [r for r in store.read_suite(mixed / "results", "mixed") if r.cell.model.endpoint]
    assert result.cell.model.endpoint and result.cell.model.endpoint.price
    assert result.cell.model.endpoint.price.usd_per_million_input == 2.0


def check_report(folder: Path) -> None:
    """In one table with the local model, on either target; paid by its tokens; what answered."""
    with (folder / "summary.csv").open(encoding="utf-8") as file:
        rows = {row["cell"].partition("_support")[0]: row for row in csv.DictReader(file)}
    row = rows["behind-api_base"]
    assert row["target"] == "api" and row["devices"] == row["usd_per_device_hour"] == ""
    assert float(row["cost_usd"]) == pytest.approx(12 * (100 * 1 + 10 * 10) / 1e6)
    assert row["api_input_tokens"] == "1200" and row["api_output_tokens"] == "120"
    assert row["api_answered"] == "another; made"
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert (
        text.count("Price of behind-api: $1.00 per million tokens of input, $10.0 of output") == 1
    )
    assert "asked for made, but another answered" in text
    for target in ("cpu", "cpu-b"):
        assert f"support-desk on {target}" in text
    assert text.count("| behind-api | [base]") == 1  # one option, whatever the machines
