"""Each method does what its name says, on real models; what isn't so is caught."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench.errors import UserError
from bench.record import Status
from bench.spec import Cell
from bench.worker import load, methods
from bench.worker.__main__ import classify
from bench.worker.meter import Diverged
from bench.worker.proof.weights import quantizable_params, quantized_params
from bench.worker.train import validation_loss

from .conftest import changed

Cells = dict[tuple[str, str], Cell]


def adapted(cell: Cell) -> Any:
    torch.manual_seed(0)
    return methods.module(cell.method.kind).adapt(load.model(cell), cell.method)


def gradients(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    model.train()
    model.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_an_evaluation_in_mid_training_changes_no_gradient(cells: Cells) -> None:
    """bitsandbytes repacks 4-bit weights in eval mode on CPUs with AVX512-BF16; we forbid it."""
    model = adapted(cells["tiny-llama", "qlora"])
    quantized = [m for m in model.modules() if hasattr(m, "support_avx512bf16_for_cpu")]
    assert quantized and not any(m.support_avx512bf16_for_cpu for m in quantized)
    with torch.no_grad():  # B starts at zero and would hide most of the gradient
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    ids = torch.randint(5, 1000, (2, 32))
    before = gradients(model, ids)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    validation_loss(model, iter([batch]), torch.device("cpu"))
    after = gradients(model, ids)
    assert before.keys() == after.keys()
    for name, gradient in before.items():
        torch.testing.assert_close(gradient, after[name], rtol=0, atol=0)


def test_validation_loss_weighs_tokens_not_batches(cells: Cells) -> None:
    model = load.model(cells["tiny-llama", "full"])
    ids = torch.randint(5, 1000, (3, 12))
    labels = ids.clone()
    labels[0, :10] = -100  # rows with very different numbers of supervised tokens

    def batch(rows: slice) -> dict[str, torch.Tensor]:
        mask = torch.ones_like(ids)
        return {"input_ids": ids[rows], "attention_mask": mask[rows], "labels": labels[rows]}

    cpu = torch.device("cpu")
    whole = validation_loss(model, iter([batch(slice(0, 3))]), cpu)
    parts = validation_loss(model, iter([batch(slice(0, 1)), batch(slice(1, 3))]), cpu)
    own = float(model(input_ids=ids, labels=labels).loss)
    assert whole == pytest.approx(parts, rel=1e-5) == pytest.approx(own, rel=1e-4)


def test_qlora_holds_four_bits(cells: Cells) -> None:
    model = adapted(cells["tiny-llama", "qlora"])
    assert quantized_params(model) == quantizable_params(model) > 1_000_000
    assert methods.module("qlora").problems(model, cells["tiny-llama", "qlora"].method) == []


def test_fused_experts_are_four_bits_too(cells: Cells) -> None:
    model = adapted(cells["tiny-qwen3-moe", "qlora"])
    cell = cells["tiny-qwen3-moe", "qlora"]
    assert methods.module("qlora").problems(model, cell.method) == []
    assert quantized_params(model) > 0.99 * quantizable_params(model)  # all but the router


def test_the_router_is_left_alone(cells: Cells) -> None:
    model = adapted(cells["tiny-qwen3-moe", "lora"])
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert any(".experts." in name for name in names) and any("q_proj" in name for name in names)
    assert not [name for name in names if ".gate." in name]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_adapters_have_the_dtype_that_was_asked_for(cells: Cells, dtype: str) -> None:
    cell = cells["tiny-llama", "qlora"]
    adapter = cell.method.adapter
    assert adapter is not None
    cell = changed(cell, method={"adapter": adapter.model_dump() | {"dtype": dtype}})
    held = {p.dtype for p in adapted(cell).parameters() if p.requires_grad}
    assert held == {load.torch_dtype(dtype)}


def test_wrong_adapter_dtype_is_a_problem(cells: Cells) -> None:
    cell = cells["tiny-llama", "lora"]
    model = adapted(cell)
    next(p for p in model.parameters() if p.requires_grad).data = torch.zeros(
        1, dtype=torch.bfloat16
    )
    assert "not fp32" in methods.module("lora").problems(model, cell.method)[0]


def test_a_target_that_matches_nothing_is_an_error(cells: Cells) -> None:
    cell = cells["tiny-llama", "lora"]
    adapter = cell.method.adapter
    assert adapter is not None
    targets = {"target_modules": ["q_proj", "query_proj"]}
    cell = changed(cell, method={"adapter": adapter.model_dump() | targets})
    with pytest.raises(UserError, match="'query_proj' matches nothing"):
        adapted(cell)


def test_adapter_keys_that_do_not_match_are_an_error(cells: Cells, tmp_path: Any) -> None:
    from safetensors.torch import load_file, save_file

    cell = cells["tiny-llama", "lora"]
    methods.module("lora").save(adapted(cell), tmp_path)
    loaded = load.model(cell, tmp_path)  # as saved it loads
    assert any("lora_" in name for name, _ in loaded.named_parameters())
    weights = load_file(tmp_path / "adapter_model.safetensors")
    renamed = {name.replace("layers.0.", "layers.9."): w for name, w in weights.items()}
    save_file(renamed, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UserError, match="keys don't match"):
        load.model(cell, tmp_path)


def test_exceptions_are_classified() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    assert classify(caught.value)[0] is Status.OOM_HOST
    assert classify(MemoryError("numpy"))[0] is Status.OOM_HOST
    assert classify(torch.OutOfMemoryError("CUDA out of memory"))[0] is Status.OOM_GPU
    assert classify(Diverged("loss is nan")) == (Status.DIVERGED, "loss is nan")
    assert classify(UserError("no file"))[1] == "no file"
    status, reason = classify(ValueError("two\nlines"))
    assert status is Status.ERROR and reason == "ValueError: two lines"
