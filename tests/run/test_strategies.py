"""Every strategy trains what `single` trains, is what it is called, and saves all of it.

Two real processes over gloo.  `make test-strategies` runs the whole matrix, `make test` a cut.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.record import Status
from bench.spec import Cell

from ..conftest import ROOT
from .ranks import Trained, make_cell, train

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

SHARDED = ("fsdp", "zero3", "zero3+offload")
STRATEGIES = ("ddp", "fsdp", "zero2", "zero3", "zero3+offload")
CUT = [
    ("tiny-llama", "qlora", "zero3+offload"),
    ("tiny-qwen3-moe", "qlora", "fsdp"),
    ("tiny-qwen3-moe", "full", "zero3"),
]
MATRIX = [
    (model, method, strategy)
    for model in ("tiny-llama", "tiny-qwen3-moe")
    for method in ("full", "lora", "qlora")
    for strategy in STRATEGIES
]
WRAPPER = {
    "ddp": "DistributedDataParallel",
    "zero2": "DeepSpeedEngine",
    "zero3": "DeepSpeedEngine",
    "zero3+offload": "DeepSpeedEngine",
}
Run = Callable[..., Trained]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Run]:
    """Trains a cell once; at the end a table for docs/strategies.md, to $STRATEGIES_TABLE."""
    done: dict[tuple[Any, ...], Trained] = {}
    results = tmp_path_factory.mktemp("results")

    def once(model: str, method: str, under: str, /, **parts: dict[str, Any]) -> Trained:
        key = (model, method, under, repr(parts))
        if key not in done:
            done[key] = train(make_cell(model, method, under, **parts), results)
        return done[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("ADAPTBENCH_CACHE", str(cache))
        yield once
    if path := os.environ.get("STRATEGIES_TABLE"):
        Path(path).write_text("".join(_rows(done)), encoding="utf-8")


def _rows(done: dict[tuple[Any, ...], Trained]) -> Iterator[str]:
    for (model, method, strategy, parts), one in done.items():
        single = done.get((model, method, "single", parts))
        if single is None or not one.attempt.steps:
            continue
        held = max(one.audit.bytes_by_rank) / max(single.audit.bytes_by_rank)
        host = (one.record.memory["load"].host_bytes or 0) / 2**20
        yield (
            f"| {model} | {method} | {strategy} | {one.step_s / single.step_s:.2f} | {held:.2f} "
            f"| {host:.0f} | {one.record.status} |\n"
        )


def _cases() -> list[Any]:
    rest = [case for case in MATRIX if case not in CUT]
    return [*CUT, *(pytest.param(*case, marks=pytest.mark.matrix) for case in rest)]


@pytest.mark.parametrize(("model", "method", "strategy"), _cases())
def test_it_trains_what_single_trains(run: Run, model: str, method: str, strategy: str) -> None:
    single, several = run(model, method, "single"), run(model, method, strategy)
    assert several.record.status is single.record.status is Status.OK, several.record.reason
    assert several.record.ranks == 2 and len(several.record.rank_memory) == 2
    for (loss, norm), (expected, expected_norm) in zip(
        several.curve(), single.curve(), strict=True
    ):
        assert loss == pytest.approx(expected, rel=2e-5)
        assert norm == pytest.approx(expected_norm, rel=1e-3)
    assert several.validation() == pytest.approx(single.validation(), rel=5e-5)
    _counted_once(single, several)
    _is_what_it_is_called(single, several, strategy)
    _saved_all(single, several)


def _counted_once(single: Trained, several: Trained) -> None:
    for name in ("tokens", "padded_tokens", "supervised_tokens"):
        expected = [getattr(step, name) for step in single.attempt.steps]
        assert [getattr(step, name) for step in several.attempt.steps] == expected, name
    assert [step.sequences for step in several.attempt.steps] == [8, 8, 8]


def _is_what_it_is_called(single: Trained, several: Trained, strategy: str) -> None:
    whole, audit = single.audit.bytes_by_rank[0], several.audit
    assert audit.wrapper == WRAPPER.get(strategy, audit.wrapper)
    assert strategy != "fsdp" or audit.wrapper not in WRAPPER.values()
    assert audit.quantized_params == single.audit.quantized_params
    assert audit.total_params == single.audit.total_params
    assert audit.trainable_params == single.audit.trainable_params
    assert audit.quantizable_params == single.audit.quantizable_params
    assert audit.moved_params == audit.trainable_tensors == audit.finite_gradients
    assert audit.frozen_moved == 0 and audit.problems == []
    assert audit.batches == single.audit.batches
    assert audit.quantization_state_bytes == single.audit.quantization_state_bytes
    assert audit.settings["autocast_cache"] is (strategy not in SHARDED)
    state = sum(audit.optimizer_state_bytes.values())
    share = state / sum(single.audit.optimizer_state_bytes.values())
    if strategy in SHARDED:
        assert audit.sharded_tensors and audit.sharded_tensors >= (audit.trainable_tensors or 0)
        assert all(held < 0.51 * whole for held in audit.bytes_by_rank)
        assert sum(audit.bytes_by_rank) >= whole
    else:
        assert audit.sharded_tensors == 0 and audit.bytes_by_rank == [whole, whole]
    assert share == pytest.approx(1.0 if strategy == "ddp" else 0.5, rel=0.02)


def _saved_all(single: Trained, several: Trained) -> None:
    """The same tensors as single's, whole; and what is loaded again scores as what was trained."""
    import torch
    from safetensors.torch import load_file

    from bench import cache

    assert several.record.weights_sha256 == cache.sha256(several.folder)
    saved, expected = (
        {
            name: tensor
            for file in folder.glob("*.safetensors")
            for name, tensor in load_file(file).items()
        }
        for folder in (several.folder, single.folder)
    )
    assert saved.keys() == expected.keys()
    for name, tensor in saved.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-2, atol=2e-4, msg=name)
    assert reloaded_loss(several) == pytest.approx(several.validation()[-1], rel=1e-5)


def reloaded_loss(trained: Trained) -> float:
    """The validation loss of what the generate phase would load: logits, in one number."""
    import torch
    from transformers import DataCollatorForSeq2Seq

    from bench.worker import data, load
    from bench.worker.train import validation_loss

    cell = trained.cell
    tokenizer = load.tokenizer(cell.model)
    model = load.model(cell, trained.folder)
    rows = data.rows(cell.dataset, "validation", cell.budget.max_validation_rows)
    encoded = [data.encode(tokenizer, cell, row) for row in rows]
    features = [{"input_ids": e.input_ids, "labels": e.labels} for e in encoded if e]
    batch = DataCollatorForSeq2Seq(tokenizer)(features)
    return validation_loss(model, iter([dict(batch)]), torch.device("cpu"))


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_checkpointing_recomputes_and_changes_nothing(run: Run, method: str, strategy: str) -> None:
    on = {"gradient_checkpointing": True}
    single = run("tiny-llama", method, "single")
    several = run("tiny-llama", method, strategy, method=on)
    assert several.record.status is Status.OK, several.record.reason
    assert several.audit.recomputed_layers == 4 * 2  # layers × micro-batches of one rank
    expected = [loss for loss, _ in single.curve()]
    assert [loss for loss, _ in several.curve()] == pytest.approx(expected, rel=2e-5)


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_mixed_precision_as_the_methods_come(run: Run, method: str, strategy: str) -> None:
    """bf16 autocast; adapters fp32 on a bf16 base: dtypes differ inside a layer."""
    mixed = {"dtype": "fp32" if method == "full" else "bf16", "autocast": "bf16"}
    single = run("tiny-llama", method, "single", method=mixed)
    several = run("tiny-llama", method, strategy, method=mixed)
    assert several.record.status is Status.OK, several.record.reason
    assert several.audit.trainable_params == single.audit.trainable_params
    expected = [loss for loss, _ in single.curve()]
    assert [loss for loss, _ in several.curve()] == pytest.approx(expected, rel=5e-3)


# ---------------------------------------------------------------- answers on the way

ANSWERED = [
    ("tiny-qwen3-moe", "qlora", "fsdp"),
    *(
        pytest.param(*case, marks=pytest.mark.matrix)
        for case in (
            ("tiny-llama", "lora", "ddp"),
            ("tiny-llama", "full", "zero2"),
            ("tiny-llama", "full", "fsdp"),
            ("tiny-llama", "qlora", "zero3+offload"),
            ("tiny-qwen3-moe", "lora", "zero3"),
            ("tiny-llama", "lora", "fsdp"),
        )
    ),
]


@pytest.mark.parametrize(("model", "method", "strategy"), ANSWERED)
def test_it_answers_what_single_answers(run: Run, model: str, method: str, strategy: str) -> None:
    """Five rows by two: one rank has a batch less, and must go along where weights are sharded."""
    asked = {"score_rows": 5, "generate_batch": 2, "max_new_tokens": 12}
    single, several = (run(model, method, s, budget=asked) for s in ("single", strategy))
    plain = run(model, method, strategy)
    assert several.record.status is single.record.status is Status.OK, several.record.reason
    assert several.curve() == plain.curve()  # answering changed nothing that was trained
    for (event, answers), (expected, others) in zip(
        several.attempt.scored, single.attempt.scored, strict=True
    ):
        assert (event.step, event.rows, event.tokens) == (expected.step, 5, expected.tokens)
        assert [a.id for a in answers] == [a.id for a in others]
        assert [a.prompt_tokens for a in answers] == [a.prompt_tokens for a in others]
        same = [a.prediction == b.prediction for a, b in zip(answers, others, strict=True)]
        assert all(same) if event.step == 0 else sum(same) >= 3  # steps differ by rounding
    assert several.attempt.scored[0][1] != several.attempt.scored[-1][1]


# ---------------------------------------------------------------- what can't be served

REFUSED = [
    ("ddp", {"strategy": {"offload_optimizer": True}}, "ddp keeps everything"),
    ("single", {"strategy": {"offload_params": True}}, "single keeps everything"),
    ("ddp", {"target": {"devices": 1}}, "needs two devices"),
    ("zero2", {"strategy": {"offload_params": True}}, "offload the optimizer only"),
    ("fsdp", {"strategy": {"offload_params": True}}, "set both, or neither"),
    (
        "fsdp",
        {"strategy": {"offload_params": True, "offload_optimizer": True}},
        "nowhere to offload to on a CPU",
    ),
    ("fsdp", {"method": {"autocast": "fp16"}}, "loss scaler"),
    ("zero3", {"method": {"autocast": "fp16"}}, "loss scaler"),
    ("fsdp", {"method": {"optimizer": "adamw_8bit"}}, "can't step"),
]


def _quantization(**fields: Any) -> dict[str, Any]:
    found = make_cell("tiny-llama", "qlora", "single").method.quantization
    assert found is not None
    return {"method": {"quantization": found.model_dump() | fields}}


def _adapter(**fields: Any) -> dict[str, Any]:
    found = make_cell("tiny-llama", "qlora", "single").method.adapter
    assert found is not None
    return {"method": {"adapter": found.model_dump() | fields}}


@pytest.mark.parametrize(
    ("strategy", "parts", "reason"),
    [
        *REFUSED,
        ("fsdp", _quantization(storage_dtype="bf16"), "storage_dtype equal to adapter.dtype"),
        ("fsdp", _quantization(bits=8), "8-bit"),
        ("zero3", _quantization(bits=8), "8-bit"),
        ("zero3", _adapter(dtype="bf16"), "always updates fp32 copies"),
    ],
)
def test_supports_says_why_not(strategy: str, parts: Any, reason: str) -> None:
    from bench.worker import strategies

    cell = make_cell("tiny-llama", "qlora", strategy, **parts)
    with pytest.raises(strategies.Unsupported, match=reason):
        strategies.require(cell)


def test_qlora_under_fsdp_is_stored_as_its_adapters_are() -> None:
    import torch

    from bench.worker.strategies import fsdp

    def storage(cell: Cell) -> Any:
        return fsdp.placement(cell)["quantization_config"].bnb_4bit_quant_storage

    assert storage(make_cell("tiny-llama", "qlora", "fsdp")) is torch.float32
    cell = make_cell("tiny-llama", "qlora", "fsdp", **_adapter(dtype="bf16"))
    assert storage(cell) is torch.bfloat16


def test_what_a_strategy_cannot_serve_is_skipped(run: Run) -> None:
    skipped = run("tiny-llama", "lora", "ddp", strategy={"offload_optimizer": True})
    assert skipped.record.status is Status.SKIPPED and skipped.record.status.final
    assert str(skipped.record.reason).startswith("ddp keeps everything on each device")
    assert not skipped.attempt.steps
