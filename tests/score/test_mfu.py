"""FLOPs of a token by the formula, checked against what a real training step calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.score.mfu import adapter_in_use, flops_per_token, mfu, peak_flops
from bench.spec import MethodSpec, ModelSpec, TargetSpec
from bench.suite import load_spec

SUITES = Path(__file__).parents[2] / "suites"


def model(name: str) -> ModelSpec:
    return load_spec(ModelSpec, SUITES / "models" / f"{name}.yaml")


def method(name: str) -> MethodSpec:
    return load_spec(MethodSpec, SUITES / "methods" / f"{name}.yaml")


def test_palm_s_formula_for_a_dense_model() -> None:
    llama = model("llama-2-7b")
    whole = flops_per_token(llama, method("full"), 1000)
    weights = llama.params - 32000 * 4096  # the embedding table is looked up
    assert whole == pytest.approx(6 * weights + 12 * 32 * 4096 * 1000)
    frozen = flops_per_token(llama, method("qlora"), 1000, 40_000_000)
    assert frozen == pytest.approx(4 * weights + 6 * 40e6 + 12 * 32 * 4096 * 1000)


def test_a_tied_table_is_multiplied_as_the_head_and_idle_experts_are_not() -> None:
    small = model("smollm2-135m")
    assert flops_per_token(small, method("full"), 0) == 6 * small.params
    mixture = model("qwen3-30b-a3b")
    assert mixture.active_params
    active = mixture.active_params - 151936 * 2048
    assert flops_per_token(mixture, method("full"), 0) == 6 * active


def test_adapters_of_idle_experts_do_nothing() -> None:
    """4 layers × 8 experts × rank 16 × ((128 + 256) + (128 + 128)), of which 2 in 8 are met."""
    tiny, adapted = model("tiny-qwen3-moe"), {"q_proj": 4, "experts.gate_up_proj": 4}
    whole = adapted | {"experts.down_proj": 4}
    experts = 4 * 8 * 16 * 640
    assert adapter_in_use(tiny, method("lora"), 581_632, whole) == 581_632 - experts * 6 // 8
    assert adapter_in_use(model("llama-2-7b"), method("lora"), 581_632, whole) == 581_632
    assert adapter_in_use(tiny, method("full"), 2_037_120, whole) == 2_037_120


def test_peaks_are_those_of_the_dtype_and_unknown_is_none() -> None:
    h100 = load_spec(TargetSpec, SUITES / "targets" / "4xh100-80gb.yaml")
    assert peak_flops(h100, method("lora")) == pytest.approx(4 * 989.4e12)
    plain = method("lora").model_copy(update={"autocast": None, "dtype": "fp32"})
    assert peak_flops(h100, plain) is None
    assert peak_flops(load_spec(TargetSpec, SUITES / "targets" / "cpu.yaml"), plain) is None
    assert mfu(1000.0, 4e10, 4e14) == pytest.approx(0.1)
    nothing = ModelSpec.model_validate(
        {**model("llama-2-7b").model_dump(), "config": {"model_type": "odd"}}
    )
    assert flops_per_token(nothing, method("full"), 100) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [("tiny-llama", "full"), ("tiny-llama", "qlora"), ("tiny-qwen3-moe", "full")],
)
def test_a_traced_step_calls_as_many(name: str, kind: str) -> None:
    """Every operator of a step of the worker's own, on the meta device, without recomputation."""
    pytest.importorskip("torch")
    from bench.fit.cache import Cache
    from bench.fit.cell import request_of_cell
    from bench.spec import Budget, Cell, DatasetSpec, Strategy

    plain = method(kind).model_copy(update={"gradient_checkpointing": False})
    cell = Cell(
        suite="made",
        suite_version=1,
        model=model(name),
        method=plain,
        dataset=load_spec(DatasetSpec, SUITES / "datasets" / "support-desk.yaml"),
        target=load_spec(TargetSpec, SUITES / "targets" / "1xh200-141gb.yaml"),
        strategy=Strategy(),
        budget=Budget(max_steps=1, micro_batch=2, global_batch=2, max_length=256),
        seed=0,
    )
    request = request_of_cell(cell).as_long_as_longest()
    step = Cache().memory(request)
    traced = sum(flops * calls for flops, _, _, calls in step.micro_costs) / step.micro_batches
    found = flops_per_token(cell.model, plain, request.seq_len, step.trainable)
    assert found == pytest.approx(traced / (2 * request.seq_len), rel=0.03)
