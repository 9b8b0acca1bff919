"""The whole path, for real: two models × four methods, every phase a process of its own."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from bench import store
from bench.cache import trained
from bench.record import Status
from bench.spec import Cell

from ..conftest import bench, environment, make_project


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A project in which `bench run smoke` has ended."""
    folder = make_project(tmp_path_factory.mktemp("smoke"))
    source = Path(__file__).parent.parent.parent / "suites" / "smoke.yaml"
    shutil.copy(source, folder / "suites" / "smoke.yaml")
    done = bench("run", "smoke", cwd=folder, env=environment(cache), timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "report: results/smoke/report/index.html" in done.stdout
    return folder


@pytest.fixture(scope="module")
def results(smoke: Path) -> dict[tuple[str, str], store.CellResult]:
    found = store.read_suite(smoke / "results", "smoke")
    return {(r.cell.model.name, r.cell.method.name): r for r in found}


def attempt(result: store.CellResult) -> store.Attempt:
    assert len(result.attempts) == 1 and result.latest is not None
    return result.latest


def test_every_cell_left_its_result(results: dict[tuple[str, str], store.CellResult]) -> None:
    assert len(results) == 8
    for result in results.values():
        last = attempt(result).phases[-1]
        assert last.status is Status.OK, last.reason


def test_training_learns(results: dict[tuple[str, str], store.CellResult]) -> None:
    for (_, method), result in results.items():
        if method == "base":
            continue
        losses = [event.loss for event in attempt(result).evaluations]
        assert losses[0] is not None and losses[-1] is not None
        assert losses[-1] < 0.6 * losses[0], (result.cell.id, losses)


def test_answers_are_the_adapted_model_s(
    results: dict[tuple[str, str], store.CellResult],
) -> None:
    """Models this small don't learn the task in seconds, but they don't answer as before either."""

    def answers(method: str) -> list[str]:
        return [p.prediction for p in attempt(results["tiny-llama", method]).predictions]

    base, full, lora = answers("base"), answers("full"), answers("lora")
    assert base != full != lora != base


def test_steps_count_real_tokens(results: dict[tuple[str, str], store.CellResult]) -> None:
    for result in results.values():
        if not result.cell.method.trains:
            continue
        steps = attempt(result).steps
        train = attempt(result).train
        assert train is not None
        budget = result.cell.budget
        assert [step.step for step in steps] == list(range(1, (budget.max_steps or 0) + 1))
        for step in steps:
            assert step.sequences == budget.global_batch
            assert 0 < step.supervised_tokens < step.tokens <= step.padded_tokens
            assert step.seconds > 0 and step.grad_norm is not None
        assert train.tokens == sum(step.tokens for step in steps)
        # Validation and saving are off the clock of the steps, and inside the bill.
        assert sum(step.seconds for step in steps) <= train.stage_s["train"] < train.wall_s


def test_audits_prove_the_methods(results: dict[tuple[str, str], store.CellResult]) -> None:
    audits = {key: attempt(r).audit for key, r in results.items() if r.cell.method.trains}
    full, lora, qlora = (audits["tiny-llama", m] for m in ("full", "lora", "qlora"))
    assert full and lora and qlora
    assert full.trainable_params == full.total_params and not full.adapted_modules
    assert set(lora.adapted_modules) == set(qlora.adapted_modules)
    assert lora.adapted_modules["q_proj"] == lora.decoder_layers
    assert lora.quantized_params == 0 and set(lora.bytes_by_dtype) == {"float32"}
    assert qlora.quantized_params > 0.8 * (qlora.total_params - qlora.trainable_params) * 0.8
    assert qlora.bytes_by_dtype["uint8"] < lora.bytes_by_dtype["float32"] / 8
    for audit in audits.values():
        assert audit and audit.frozen_moved == 0 and audit.moved_params
        assert audit.recomputed_layers == 0  # checkpointing is off in this suite
        assert audit.finite_gradients == audit.trainable_tensors and audit.differences == []
    mixture = audits["tiny-qwen3-moe", "qlora"]
    assert mixture and set(mixture.bytes_by_part["experts"]) == {"uint8"}


def test_the_router_is_not_adapted(results: dict[tuple[str, str], store.CellResult]) -> None:
    audit = attempt(results["tiny-qwen3-moe", "lora"]).audit
    assert audit and "gate" not in audit.adapted_modules and audit.router_adapted is False
    assert {"experts.gate_up_proj", "experts.down_proj", "q_proj"} <= set(audit.adapted_modules)


def test_one_cell_is_served_as_it_was_evaluated(
    results: dict[tuple[str, str], store.CellResult], smoke: Path
) -> None:
    served = {key: attempt(result).serve for key, result in results.items()}
    assert [key for key, record in served.items() if record] == [("tiny-llama", "lora")]
    record = served["tiny-llama", "lora"]
    assert record and record.status is Status.OK, record and record.reason
    (plain,) = record.variants
    assert plain.same_answers == 1.0 and plain.compared_rows >= 6
    assert plain.adapted_modules == 28 and plain.host_bytes and plain.start_s
    last = attempt(results["tiny-llama", "lora"])
    assert plain.weights_sha256 == (last.train and last.train.weights_sha256)
    counted = [request for request in last.requests if request.counted]
    assert len(counted) == 6 and all(r.new_tokens and r.first_token_s for r in counted)
    report = smoke / "results" / "smoke" / "report" / "report.md"
    assert "Every measurement of a server" in report.read_text(encoding="utf-8")


def test_predictions_are_kept_row_by_row(results: dict[tuple[str, str], store.CellResult]) -> None:
    ids = {tuple(p.id for p in attempt(r).predictions) for r in results.values() if r.latest}
    assert len(ids) == 1  # all on the same rows
    generate = attempt(results["tiny-llama", "lora"]).generate
    train = attempt(results["tiny-llama", "lora"]).train
    assert generate and train
    assert generate.adapter_changes_logits is True
    assert generate.weights_sha256 == train.weights_sha256  # generated with what was trained
    assert generate.rows == generate.planned_rows == 8


def test_memory_is_known_by_stage(results: dict[tuple[str, str], store.CellResult]) -> None:
    train = attempt(results["tiny-llama", "full"]).train
    assert train
    stages = train.memory
    assert {"import", "load", "train", "evaluate", "save", "process"} <= stages.keys()
    held = stages["train"]
    assert held.host_bytes and held.host_baseline_bytes
    assert held.host_bytes > held.host_baseline_bytes > 50 * 2**20
    assert held.allocated_bytes is None  # no GPU: unknown, not zero


def test_trained_weights_do_not_pile_up(smoke: Path, cache: Path) -> None:
    attempts = [a.path for r in store.read_suite(smoke / "results", "smoke") for a in r.attempts]
    assert attempts
    left = [cache / "trained" / trained(attempt).name for attempt in attempts]
    assert not [path for path in left if path.exists()]


def test_running_again_does_nothing(smoke: Path, cache: Path) -> None:
    before = sorted(path.name for path in (smoke / "results").rglob("attempt-*"))
    started = time.perf_counter()
    done = bench("run", "smoke", cwd=smoke, env=environment(cache))
    assert done.returncode == 0
    assert "8 of 8 cells are finished already" in done.stdout
    assert time.perf_counter() - started < 60
    assert sorted(path.name for path in (smoke / "results").rglob("attempt-*")) == before


def test_redrawing_changes_no_byte(smoke: Path) -> None:
    folder = smoke / "results" / "smoke" / "report"
    before = {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert bench("report", "smoke", cwd=smoke).returncode == 0
    after = {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert before == after and {"index.html", "report.md", "summary.csv"} <= before.keys()


def test_show_and_list_tell_the_same(smoke: Path) -> None:
    listed = json.loads(bench("list", "smoke", "--json", cwd=smoke).stdout)
    assert {row["status"] for row in listed} == {"ok"}
    identity = next(row["id"] for row in listed if row["method"] == "lora")
    shown = json.loads(bench("show", identity, "--json", cwd=smoke).stdout)
    assert shown["id"] == identity
    assert shown["attempts"][0]["train"]["status"] == "ok"
    assert Cell.model_validate(shown["cell"]).id == identity
    human = bench("show", identity, cwd=smoke).stdout
    assert "trainable" in human and "q_proj" in human


def test_fresh_makes_a_new_attempt(smoke: Path, cache: Path) -> None:
    only = "model=tiny-llama,method=base"
    done = bench("run", "smoke", "--only", only, "--fresh", cwd=smoke, env=environment(cache))
    assert done.returncode == 0, done.stderr
    # Not a terminal: plain lines.
    assert not {"\x1b", "\r", "━"} & set(done.stdout)
    assert "begin  tiny-llama · base" in done.stdout and "[1/1] tiny-llama · base" in done.stdout
    found = store.read_suite(smoke / "results", "smoke")
    base = next(
        r for r in found if r.cell.model.name == "tiny-llama" and r.cell.method.name == "base"
    )
    assert [a.path.name for a in base.attempts] == ["attempt-001", "attempt-002"]
    first, second = base.attempts
    assert [p.prediction for p in first.predictions] == [p.prediction for p in second.predictions]


def test_the_same_cell_again_gives_the_same_losses_and_answers(smoke: Path, cache: Path) -> None:
    command = ("rerun", "tiny-llama_lora", "--compare", "--json")
    done = bench(*command, cwd=smoke, env=environment(cache))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["attempts"] == ["attempt-001", "attempt-002"] and told["agrees"]
    verdicts = {line["what"]: line["verdict"] for line in told["lines"] if line["result"]}
    assert set(verdicts.values()) == {"identical"}, told["lines"]
    assert {"step losses", "validation losses", "answers", "score reply.rouge_l"} <= set(verdicts)
    assert told["chance"] == [] and told["environment"] == []  # on a CPU nothing is left to chance


def test_what_can_t_be_rerun_is_one_line(smoke: Path, cache: Path) -> None:
    done = bench("rerun", "tiny-llama", cwd=smoke, env=environment(cache))
    assert done.returncode == 2 and "'tiny-llama' fits 4 cells" in done.stderr
