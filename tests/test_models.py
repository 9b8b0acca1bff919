"""Every model file builds, and has exactly as many parameters as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.spec import ModelSpec
from bench.suite import load_spec

pytest.importorskip("torch")

MODELS = Path(__file__).parent.parent / "suites" / "models"
# Read elsewhere: published sizes, to the digits that are published.
PUBLISHED_BILLIONS = {
    "llama-2-7b": 6.74,
    "llama-2-70b": 68.98,
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.55,
    "qwen2.5-7b": 7.62,
    "qwen2.5-72b": 72.71,
    "qwen3-30b-a3b": 30.53,
    "qwen3-235b-a22b-thinking-2507": 235.09,
    "smollm2-135m": 0.13,
}


def models() -> list[ModelSpec]:
    return [load_spec(ModelSpec, path) for path in sorted(MODELS.glob("*.yaml"))]


@pytest.mark.parametrize("model", models(), ids=lambda model: model.name)
def test_parameters_are_counted_not_claimed(model: ModelSpec) -> None:
    from bench.worker.count import count

    counted = count(model.config)
    assert counted == {"params": model.params, "active_params": model.active_params}
    if model.name in PUBLISHED_BILLIONS:
        assert round(model.params / 1e9, 2) == PUBLISHED_BILLIONS[model.name]


@pytest.mark.parametrize(
    "model", [m for m in models() if m.weights.kind == "hub"], ids=lambda m: m.name
)
def test_hub_models_are_pinned_and_sourced(model: ModelSpec) -> None:
    assert model.weights.kind == "hub"
    assert len(model.weights.revision) == 40
    assert model.licence and model.config_source


@pytest.mark.parametrize(
    "model", [m for m in models() if m.weights.kind == "tiny"], ids=lambda m: m.name
)
def test_tiny_models_suit_4bit_cpu_kernels(model: ModelSpec) -> None:
    import torch

    from bench.worker.count import build

    assert model.params < 4_000_000
    for name, module in build(model.config).named_modules():
        if isinstance(module, torch.nn.Linear):
            assert module.in_features % 64 == 0, name
            assert module.out_features % 32 == 0, name


def test_active_experts_only() -> None:
    """By hand: 2 layers × 4 experts × 3 matrices of 8×16, of which 1 expert in 4 is active."""
    from bench.worker.count import count

    config = {
        "model_type": "qwen3_moe",
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 32,
        "moe_intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 1,
    }
    counted = count(config)
    assert counted["params"] is not None and counted["active_params"] is not None
    assert counted["params"] - counted["active_params"] == 2 * 3 * (3 * 8 * 16)
