"""4-bit fused experts: exact where they can be, off by what NF4 predicts where they can't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bitsandbytes.functional as bnb
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.errors import UserError
from bench.worker import experts4bit
from bench.worker.experts4bit import module as module_file
from bench.worker.experts4bit import packing

from . import moe

IDS = torch.randint(5, 500, (2, 24), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            moe.save(family, made[family])
        return made[family]

    return get


# ---------------------------------------------------------------- packing


@pytest.mark.parametrize("double_quant", [True, False])
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
def test_values_are_bitsandbytes_own(double_quant: bool, quant_type: str) -> None:
    weights = torch.randn(3, 128, 256)
    codes, stats = packing.quantize(weights, double_quant, quant_type)
    assert (codes.shape, stats.shape) == packing.shapes((3, 128, 256), double_quant)
    back = packing.dequantize(codes, stats, torch.float32, quant_type)
    for expert, ours in zip(weights, back, strict=True):
        packed, state = bnb.quantize_4bit(
            expert, blocksize=64, compress_statistics=double_quant, quant_type=quant_type
        )
        assert torch.equal(bnb.dequantize_4bit(packed, state), ours)


def test_bits_a_weight() -> None:
    """docs/experts4bit.md names them, and bench/fit counts with them."""

    def bits(double_quant: bool) -> float:
        codes, stats = packing.shapes((128, 1536, 4096), double_quant)
        return 8 * (torch.Size(codes).numel() + torch.Size(stats).numel()) / (128 * 1536 * 4096)

    assert bits(False) == 4.5
    assert bits(True) == pytest.approx(4.127, abs=5e-4)


def test_error_is_what_nf4_predicts() -> None:
    """Normal weights in blocks of 64: 9.2 % of their size, about 0.09 σ (QLoRA, appendix E)."""
    weights = torch.randn(2, 256, 512, generator=torch.Generator().manual_seed(0))
    back = packing.dequantize(*packing.quantize(weights, True, "nf4"), torch.float32, "nf4")
    assert float((back - weights).norm() / weights.norm()) == pytest.approx(0.092, abs=0.004)


# ---------------------------------------------------------------- the layer


@pytest.mark.parametrize("family", moe.FAMILIES)
def test_equals_dequantise_then_run(family: str, checkpoints: Any) -> None:
    model = moe.load(checkpoints(family))
    assert len(moe.experts_of(model)) == (1 if family == "deepseek_v3" else 2)
    reference = moe.dequantized(model)
    logits, gradients = moe.step(moe.with_lora(model, experts=False), IDS)
    expected, reference_gradients = moe.step(moe.with_lora(reference, experts=False), IDS)
    assert torch.equal(logits, expected)
    assert gradients.keys() == reference_gradients.keys() and gradients
    for name, gradient in gradients.items():
        assert torch.equal(gradient, reference_gradients[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_expert_adapters_match_a_reference(
    checkpoints: Any, dtype: torch.dtype, checkpointing: bool
) -> None:
    """The reference is stock peft, which builds W + BA: in bf16 the two round differently."""
    model = moe.load(checkpoints("qwen3_moe"), dtype)
    reference = moe.dequantized(model)
    ours = moe.step(moe.with_lora(model, True, checkpointing), IDS)
    theirs = moe.step(moe.with_lora(reference, True, checkpointing), IDS)
    tolerance = 1e-5 if dtype is torch.float32 else 0.15
    assert ours[1].keys() == theirs[1].keys()
    assert sum(".experts." in name for name in ours[1]) == 8  # 2 layers × 2 projections × (A, B)
    for name, gradient in theirs[1].items():
        error = (ours[1][name] - gradient).norm() / gradient.norm()
        assert gradient.norm() > 0 and error < tolerance, (name, float(error))


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_few_experts_at_a_time_change_nothing(checkpoints: Any, at_once: int) -> None:
    model = moe.with_lora(moe.load(checkpoints("qwen3_moe")), experts=True)
    whole = moe.step(model, IDS)
    module_file.set_at_once(model, at_once)
    parts = moe.step(model, IDS)
    torch.testing.assert_close(parts[0], whole[0], rtol=1e-5, atol=1e-6)
    for name, gradient in whole[1].items():
        torch.testing.assert_close(parts[1][name], gradient, rtol=1e-4, atol=1e-6)


class _Unpacked(TorchDispatchMode):
    """Follows every dequantised stack: how many are alive at once."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.alive, self.peak, self.made = size, 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        import weakref

        result = func(*args, **(kwargs or {}))
        if "dequantize_4bit" in str(func) and result.numel() >= self.size:
            self.alive += 1
            self.made += 1
            self.peak = max(self.peak, self.alive)
            weakref.finalize(result, self._gone)
        return result

    def _gone(self) -> None:
        self.alive -= 1


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_at_most_one_projection_is_unpacked_at_a_time(
    checkpoints: Any, experts: bool, checkpointing: bool
) -> None:
    model = moe.with_lora(moe.load(checkpoints("qwen3_moe")), experts, checkpointing)
    smallest = 8 * 128 * 128
    with _Unpacked(smallest) as followed:
        moe.step(model, IDS)
    passes = 3 if checkpointing else 2  # forward, forward again, backward
    assert followed.made == 2 * 2 * passes  # layers × projections
    assert followed.peak == 1 and followed.alive == 0


def test_nothing_unpacked_is_saved_for_backward(checkpoints: Any) -> None:
    model = moe.with_lora(moe.load(checkpoints("qwen3_moe")), experts=True)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        model(input_ids=IDS, labels=IDS)
    stacks = [t for t in saved if t.ndim == 3 and len(t) == 8]
    assert [t for t in stacks if t.dtype == torch.uint8]  # the packed ones
    assert not [t for t in stacks if t.is_floating_point() and t.numel() >= 8 * 128 * 128]


# ---------------------------------------------------------------- adapters elsewhere


def test_adapters_load_in_stock_peft(checkpoints: Any, tmp_path: Path) -> None:
    from peft import PeftModel
    from safetensors.torch import load_file

    model = moe.load(checkpoints("qwen3_moe"))
    reference, base = moe.dequantized(model), _unquantised(checkpoints("qwen3_moe"))
    adapted = moe.with_lora(model, experts=True)
    adapted.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert sum(".experts." in name for name in saved) == 8
    with torch.no_grad():
        logits = adapted(input_ids=IDS).logits
        stock = PeftModel.from_pretrained(reference, tmp_path)
        torch.testing.assert_close(stock(input_ids=IDS).logits, logits, rtol=1e-4, atol=1e-5)
        plain = base(input_ids=IDS).logits
        unmerged = PeftModel.from_pretrained(base, tmp_path)
        delta = unmerged(input_ids=IDS).logits
        merged = unmerged.merge_and_unload()(input_ids=IDS).logits
    torch.testing.assert_close(merged, delta, rtol=1e-4, atol=1e-5)
    assert float((delta - plain).abs().max()) > 1e-3  # and they do something


def _unquantised(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_merging_into_4_bit_experts_is_refused(checkpoints: Any) -> None:
    with pytest.raises(NotImplementedError, match="merge there"):
        moe.with_lora(moe.load(checkpoints("qwen3_moe")), experts=True).merge_and_unload()


# ---------------------------------------------------------------- loading and refusing


def test_loaded_equals_quantised_afterwards(checkpoints: Any) -> None:
    loaded = moe.experts_of(moe.load(checkpoints("mixtral")))
    for module, plain in zip(
        loaded,
        [m for _, m in module_file.fused_experts(_unquantised(checkpoints("mixtral")))],
        strict=True,
    ):
        for name in module_file.PROJECTIONS:
            codes, stats = packing.quantize(getattr(plain, name), True, "nf4")
            assert torch.equal(codes, getattr(module, name))
            assert torch.equal(stats, getattr(module, f"{name}_stats"))


def test_what_is_saved_loads_again(checkpoints: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = moe.load(checkpoints("olmoe"))
    model.save_pretrained(tmp_path, save_original_format=False)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


def test_casting_the_model_leaves_codes_and_scales(checkpoints: Any) -> None:
    model = moe.load(checkpoints("qwen3_moe"))
    before = moe.experts_of(model)[0].dequantized("down_proj")
    model.get_submodule("model.layers")[0].mlp.to(torch.bfloat16)
    assert torch.equal(before, moe.experts_of(model)[0].dequantized("down_proj"))


@pytest.mark.parametrize(
    ("family", "more", "reason"),
    [
        ("gpt_oss", {"num_local_experts": 4, "head_dim": 32}, "transposed weights and biases"),
        ("qwen3_moe", {"moe_intermediate_size": 96}, "takes 96 inputs"),
    ],
)
def test_layouts_that_are_refused(
    family: str, more: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    moe.save(family, tmp_path, **more)
    with pytest.raises(UserError, match=f"can't be held in 4 bit: .*{reason}"):
        moe.load(tmp_path)


def test_can_be_built_on_meta() -> None:
    """bench/fit reads the real module tree without a byte of weights."""
    from transformers import AutoModelForCausalLM

    config = moe.config("qwen3_moe")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    layout = module_file.Layout("nf4", torch.bfloat16)
    experts4bit.convert(model, layout, double_quant=True)
    assert len(moe.experts_of(model)) == 2
    with torch.device("meta"):
        wrapped = moe.with_lora(model, experts=True).base_model.model.model.layers[0].mlp.experts
        tokens = torch.zeros(16, 128, dtype=torch.bfloat16, requires_grad=True)
        chosen, shares = torch.zeros(16, 2, dtype=torch.long), torch.zeros(16, 2)
    wrapped(tokens, chosen, shares).sum().backward()
    assert tokens.grad is not None and tokens.grad.shape == (16, 128)
    assert sum(p.grad is not None for p in wrapped.parameters()) == 4
    held = sum(p.numel() for m in moe.experts_of(model) for p in m.parameters(recurse=False))
    assert held == 2 * 8 * (3 * 128 * 128 // 2 + 524 + 264)
