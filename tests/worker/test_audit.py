"""Every fault that libraries commit in silence is injected here, and seen in the audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import set_seed

from bench.errors import UserError
from bench.record import Audit, Status
from bench.spec import Cell
from bench.store import read_lines, read_record
from bench.worker import audit, experts4bit, generate, load, methods, train
from bench.worker.methods import qlora
from bench.worker.proof import adapters, batches, loading, steps, weights
from bench.worker.recorder import Recorder

from . import moe
from .conftest import changed

Cells = dict[tuple[str, str], Cell]
SHORT = {"max_steps": 2, "evaluate_every": 2, "max_train_rows": 16, "max_validation_rows": 2}


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Train a cell for two steps in this process: (status, reason, audit)."""

    def run(cell: Cell) -> tuple[Status, str | None, Audit]:
        attempt = tmp_path / cell.id / "attempt-001"
        attempt.mkdir(parents=True, exist_ok=True)
        status, reason, _ = train.train(cell, attempt, Recorder(attempt, "train"))
        found = read_record(Audit, attempt / "audit.json")
        assert found is not None
        return status, reason, found

    return run


def short(cell: Cell, **parts: Any) -> Cell:
    return changed(cell, budget=SHORT, **parts)


def adapted(cell: Cell) -> Any:
    set_seed(0)
    return methods.module(cell.method.kind).adapt(load.model(cell), cell.method)


# ---------------------------------------------------------------- what a sound cell proves


def test_a_mixture_in_four_bit_proves_itself(cells: Cells, trained: Any) -> None:
    options = {"gradient_checkpointing": True, "lr_warmup_steps": 0}
    cell = short(cells["tiny-qwen3-moe", "qlora"], method=options)
    status, reason, found = trained(cell)
    assert (status, reason) == (Status.OK, None)
    assert found.stage == "after" and found.differences == [] and found.problems == []
    assert found.quantizable_params is not None
    assert found.quantized_params > 0.99 * found.quantizable_params
    parts = found.bytes_by_part
    assert set(parts) == {*weights.PARTS} - {"mlp"}  # every layer is a mixture
    assert set(parts["experts"]) == {"uint8"} and set(parts["attention"]) == {"uint8"}
    experts = 4 * 8 * 3 * 128 * 128
    assert parts["experts"]["uint8"] * 8 / experts == pytest.approx(4.13, abs=0.02)
    assert sum(sum(p.values()) for p in parts.values()) == sum(found.bytes_by_dtype.values())
    assert found.bytes_by_rank == [sum(found.bytes_by_dtype.values())]
    kinds = ("experts.down_proj", "experts.gate_up_proj", "q_proj", "o_proj")
    assert all(found.adapted_modules[kind] == 4 for kind in kinds)
    assert found.router_adapted is False
    micro_batches = cell.accumulation
    assert found.recomputed_layers == 4 * micro_batches
    assert found.finite_gradients == found.trainable_tensors == found.moved_params
    assert found.frozen_moved == 0
    assert found.attention_ops and "flash" in found.attention_ops[0]
    assert found.batches["rows"] == cell.budget.global_batch
    assert found.batches["right_padding"] > 0 == found.batches["left_padding"]
    assert found.optimizer_state_devices.keys() == {"cpu"}
    assert found.optimizer_state_bytes["float32"] > 2 * 4 * found.trainable_params
    assert {"torch", "transformers", "peft", "bitsandbytes"} <= found.libraries.keys()
    assert found.load and found.load.held_bytes and found.load.memory_saving is None  # too small


def test_a_dense_model_in_full(cells: Cells, trained: Any) -> None:
    status, _, found = trained(short(cells["tiny-llama", "full"]))
    assert status is Status.OK and found.router_adapted is None and found.problems == []
    assert set(found.bytes_by_part) == {"embeddings", "attention", "mlp", "other"}  # tied
    assert found.recomputed_layers == 0 and found.finite_gradients == found.trainable_tensors


# ---------------------------------------------------------------- faults while loading


def test_experts_left_in_16_bit(cells: Cells, trained: Any, monkeypatch: Any) -> None:
    """What every other tool does today: stopped before the first step."""
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
    from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer

    monkeypatch.setitem(AUTO_QUANTIZER_MAPPING, "bitsandbytes_4bit", Bnb4BitHfQuantizer)
    monkeypatch.setattr(experts4bit, "install", lambda: None)
    status, reason, found = trained(short(cells["tiny-qwen3-moe", "qlora"]))
    assert status is Status.INVALID and "fused expert parameters stay unquantised" in str(reason)
    assert found.stage == "before" and found.moved_params is None


def test_attention_left_in_16_bit_is_told(cells: Cells, monkeypatch: Any) -> None:
    """As sharded loading needs it: still QLoRA where experts are nearly all of the weights."""
    cell = cells["tiny-qwen3-moe", "qlora"]
    original = qlora.load_arguments

    def skipping(method: Any) -> dict[str, Any]:
        arguments = original(method)
        skip = ["q_proj", "k_proj", "v_proj", "o_proj", "lm_head"]
        arguments["quantization_config"].llm_int8_skip_modules = skip
        return arguments

    monkeypatch.setattr(qlora, "load_arguments", skipping)
    found = audit.loaded(cell, adapted(cell))
    assert "attention weights are held in float32, not in 4 bit" in found.warnings
    assert not found.problems


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_weights_of_another_dtype(cells: Cells, method: str, trained: Any) -> None:
    """k-bit preparation and silent upcasts: the cell says bf16, the model holds fp32."""
    cell = short(cells["tiny-llama", method], method={"dtype": "bf16"})
    model = load.model(cell)
    assert not audit.loaded(cell, methods.module(method).adapt(model, cell.method)).problems
    for parameter in model.parameters():
        if parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.float()
    found = audit.loaded(cell, model)
    assert any("are not bf16" in problem for problem in found.problems)


def test_kbit_preparation_upcasts(cells: Cells) -> None:
    from peft import prepare_model_for_kbit_training

    cell = changed(cells["tiny-llama", "qlora"], method={"dtype": "bf16"})
    model = load.model(cell)
    prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    model = methods.module("qlora").adapt(model, cell.method)
    problems = audit.loaded(cell, model).problems
    assert len(problems) == 1 and "are not bf16" in problems[0]


def test_a_dead_target(cells: Cells) -> None:
    cell = cells["tiny-llama", "lora"]
    assert cell.method.adapter is not None
    asked = {"target_modules": ["q_proj", "query_proj"]}
    broken = changed(cell, method={"adapter": cell.method.adapter.model_dump() | asked})
    with pytest.raises(UserError, match="'query_proj' matches nothing"):
        adapted(broken)
    problems = audit.loaded(broken, adapted(cell)).problems  # and where a library let it pass
    assert "no module carries an adapter for query_proj" in problems


def test_an_adapted_router(cells: Cells) -> None:
    cell = cells["tiny-qwen3-moe", "lora"]
    model = adapted(cell)
    assert adapters.router_adapted(model) is False
    model.base_model.model.model.layers[0].mlp.gate.weight.requires_grad_(True)
    assert "the router is adapted, although it is excluded" in audit.loaded(cell, model).problems


def test_shared_experts_that_peft_leaves_out_are_named(tmp_path: Path, cells: Cells) -> None:
    moe.save("deepseek_v3", tmp_path)
    cell = cells["tiny-qwen3-moe", "qlora"]
    model = methods.module("qlora").adapt(moe.load(tmp_path), cell.method)
    found = audit.loaded(cell, model)
    assert any("kinds of linear layer carry no adapter" in one for one in found.warnings)
    assert cell.method.adapter is not None
    assert "mlp.shared_experts.up_proj" in adapters.missed(model, cell.method.adapter)


# ---------------------------------------------------------------- faults while training


@pytest.mark.parametrize("asked", [True, False])
def test_checkpointing_that_is_silently_otherwise(
    cells: Cells, trained: Any, monkeypatch: Any, asked: bool
) -> None:
    arguments = train.trainer_arguments

    def other(cell: Cell, output: Path) -> Any:
        made = arguments(cell, output)
        made.activation_checkpointing = made.gradient_checkpointing = not asked
        return made

    monkeypatch.setattr(train, "trainer_arguments", other)
    cell = short(cells["tiny-llama", "lora"], method={"gradient_checkpointing": asked})
    status, reason, _ = trained(cell)
    assert status is Status.INVALID and "recomputed" in str(reason)


def test_labels_that_are_all_masked(cells: Cells, trained: Any, monkeypatch: Any) -> None:
    collate = train.RecordingTrainer.training_step

    def masked(self: Any, model: Any, inputs: Any, *rest: Any) -> Any:
        inputs["labels"] = torch.full_like(inputs["labels"], -100)
        return collate(self, model, inputs, *rest)

    monkeypatch.setattr(train.RecordingTrainer, "training_step", masked)
    status, reason, found = trained(short(cells["tiny-llama", "lora"]))
    assert status is Status.INVALID and "every label was masked" in str(reason)
    assert found.batches["unsupervised_rows"] == found.batches["rows"]


def test_settings_that_the_trainer_changes(cells: Cells, trained: Any, monkeypatch: Any) -> None:
    arguments = train.trainer_arguments

    def other(cell: Cell, output: Path) -> Any:
        made = arguments(cell, output)
        made.learning_rate = 1e-7
        return made

    monkeypatch.setattr(train, "trainer_arguments", other)
    status, reason, found = trained(short(cells["tiny-llama", "lora"]))
    assert status is Status.INVALID
    assert "learning_rate: asked for 0.005, in effect 1e-07" in str(reason)
    assert [one.setting for one in found.differences] == [
        "learning_rate",
        "learning rate of the optimizer",
    ]


def test_a_difference_of_cost_is_a_warning(cells: Cells, trained: Any, monkeypatch: Any) -> None:
    cell = short(cells["tiny-llama", "lora"], method={"optimizer": "adamw_fused"})
    monkeypatch.setitem(train.OPTIMIZERS, "adamw_fused", "adamw_torch")
    status, _, found = trained(cell)
    assert status is Status.OK and found.problems == []
    assert "fused optimizer: asked for True, in effect False" in found.warnings


def test_an_adapter_that_no_token_reaches(cells: Cells) -> None:
    model = adapted(cells["tiny-llama", "lora"])
    gradients = steps.Gradients(model)
    ids = torch.randint(5, 1000, (1, 16))
    model(input_ids=ids, labels=ids).loss.backward()
    gradients.look()
    trainable = sum(p.requires_grad for p in model.parameters())
    assert gradients.finite == trainable and not gradients.missing + gradients.broken
    parameters = [p for p in model.parameters() if p.requires_grad]
    parameters[0].grad = None
    assert parameters[1].grad is not None
    parameters[1].grad[0, 0] = float("nan")
    gradients.look()
    assert len(gradients.missing) == len(gradients.broken) == 1
    auditor = audit.Auditor(cells["tiny-llama", "lora"], model)
    auditor.gradients = gradients
    problems = "; ".join(auditor.report(None).problems)
    assert "1 trainable tensors got no gradient" in problems
    assert "1 gradients were not finite" in problems and "no trainable weight moved" in problems


def test_a_frozen_weight_that_moves(cells: Cells) -> None:
    model = adapted(cells["tiny-llama", "lora"])
    auditor = audit.Auditor(cells["tiny-llama", "lora"], model)
    frozen = next(p for p in model.parameters() if not p.requires_grad)
    with torch.no_grad():
        frozen.add_(1e-3)
    assert "1 frozen tensors changed" in auditor.report(None).problems


def test_eager_attention_calls_no_kernel(cells: Cells) -> None:
    cell = cells["tiny-llama", "lora"]
    for attention, fused in (("sdpa", True), ("eager", False)):
        model = load.model(changed(cell, method={"attention": attention}))
        kernel = steps.AttentionKernel(weights.decoder_layers(model))
        kernel.begin()
        model(input_ids=torch.randint(5, 1000, (1, 16)))
        assert bool(kernel.ops) == fused and kernel.ops is not None
    assert "attention is eager, not sdpa" in audit.loaded(cell, model).problems


# ---------------------------------------------------------------- faults in batches


def test_sides_of_padding() -> None:
    seen = batches.Batches()
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]])
    labels = torch.tensor([[-100] * 4, [1] * 4, [-100, 1, 1, 1]])
    seen.add({"input_ids": mask, "attention_mask": mask, "labels": labels})
    packed = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])
    seen.add({"input_ids": packed, "position_ids": packed})
    assert seen.facts() == {
        "rows": 5,
        "left_padding": 2,
        "right_padding": 1,
        "packed_rows": 1,
        "unsupervised_rows": 1,
    }


def test_a_tokenizer_that_pads_on_the_right(cells: Cells, tmp_path: Path, monkeypatch: Any) -> None:
    cell = changed(cells["tiny-llama", "base"], budget={"max_test_rows": 4, "max_new_tokens": 2})
    attempt = tmp_path / cell.id / "attempt-001"
    attempt.mkdir(parents=True)
    run = generate.generate(cell, attempt, Recorder(attempt, "generate"))
    assert run[0] is Status.OK and run[2]["paddings"]["left_padding"] > 0
    found = read_record(Audit, attempt / "audit.json")
    assert found is not None and found.stage == "generate" and not found.problems
    (attempt / "predictions.jsonl").unlink()
    original = load.tokenizer

    def stubborn(model: Any) -> Any:
        made = original(model)
        pad = made.pad
        made.pad = lambda *a, **k: pad(*a, **k, padding_side="right")
        return made

    monkeypatch.setattr(load, "tokenizer", stubborn)
    status, reason, _ = generate.generate(cell, attempt, Recorder(attempt, "generate"))
    assert status is Status.INVALID and "stood right of the prompts" in str(reason)
    assert len(read_lines(attempt / "predictions.jsonl")) == 4


# ---------------------------------------------------------------- faults in memory


def test_loading_everything_unquantised_is_seen(cells: Cells) -> None:
    """70 MiB of weights: held once, then held twice for a moment."""
    size = 70 * 2**20

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(size // 4))

    with loading.host_peak() as peak:
        model = Model()
    facts = loading.facts(model, torch.float32, peak)
    assert facts.memory_saving is True and facts.host_held_bytes == facts.held_bytes == size
    del model
    with loading.host_peak() as peak:
        model = Model()
        copy = model.weight.detach().clone()
    assert loading.facts(model, torch.float32, peak).memory_saving is False
    assert len(copy)
    cell = cells["tiny-llama", "lora"]
    real = adapted(cell)
    real.get_base_model().load_facts = loading.facts(model, torch.float32, peak)
    assert any("not memory-saving" in one for one in audit.loaded(cell, real).warnings)


def test_the_audit_is_there_when_a_cell_dies(
    cells: Cells, trained: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    def out_of_memory(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(train.RecordingTrainer, "train", out_of_memory)
    cell = short(cells["tiny-llama", "lora"])
    with pytest.raises(torch.OutOfMemoryError):
        trained(cell)
    found = read_record(Audit, tmp_path / cell.id / "attempt-001" / "audit.json")
    assert found is not None and found.stage == "before" and found.total_params > 1e6
