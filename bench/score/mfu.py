"""Model FLOPs utilisation: what the training step has to compute ÷ what the machine could.

A token costs 2 FLOPs a weight in the forward pass, 2 more for the gradient of its input, and 2 more
for the weight's own gradient, which frozen weights don't have: 6 a trained weight, 4 a frozen one.
Attention's products with keys and values add 12 · layers · heads · head size · length (Chowdhery et
al. 2022, PaLM, appendix B; not halved for the causal mask).  Of experts only those that a token
meets count.  Recomputed activations, dequantisation and the optimizer don't: they aren't the model.

Known error: length is the mean number of tokens of a sequence, which takes attention a little too
low where lengths vary, and embeddings (looked up, not multiplied) are left out unless they are the
head too.

    python -m pytest tests/score/test_mfu.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.spec import MethodSpec, ModelSpec, TargetSpec

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # in a config.json


def flops_per_token(
    model: ModelSpec, method: MethodSpec, length: float, adapter_params: int = 0
) -> float | None:
    """FLOPs of forward and backward, per token of sequences of `length` tokens; None where the
    configuration doesn't say how attention is built."""
    shape, params = _attention(model.config), model.active_params or model.params
    if shape is None or params is None:
        return None
    base = params - _looked_up(model)
    weights = 6 * base if method.adapter is None else 4 * base + 6 * adapter_params
    return weights + 12 * shape * length


def adapter_in_use(
    model: ModelSpec, method: MethodSpec, params: int, adapted: Mapping[str, int]
) -> int:
    """Adapter weights that a token meets, of `params` in all.  `adapted`: kind of module and how
    many, as the audit counts them; adapters of experts that weren't chosen do nothing."""
    config = _text(model.config)
    experts = next((config[name] for name in EXPERTS if config.get(name)), None)
    chosen, hidden = config.get("num_experts_per_tok"), config.get("hidden_size")
    inner = config.get("moe_intermediate_size") or config.get("intermediate_size")
    if not (method.adapter and experts and chosen and hidden and inner):
        return params
    sizes: dict[str, int] = {
        "gate_up_proj": hidden + 2 * inner,
        "down_proj": inner + hidden,
    }  # in + out
    idle: int = sum(
        count * (experts - chosen) * method.adapter.rank * sizes[kind.rpartition(".")[2]]
        for kind, count in adapted.items()
        if "experts." in kind and kind.rpartition(".")[2] in sizes
    )
    return max(0, params - idle)


def peak_flops(target: TargetSpec, method: MethodSpec) -> float | None:
    """Dense peak of all the target's devices in the dtype that the method multiplies in; None where
    it isn't known: CPUs, and fp32, which may or may not run on tensor cores."""
    quantization = method.quantization
    dtype = (quantization.compute_dtype if quantization else method.autocast) or method.dtype
    tflops = {"bf16": target.bf16_dense_tflops, "fp16": target.fp16_dense_tflops}.get(dtype)
    return None if tflops is None else tflops * 1e12 * target.devices * target.nodes


def mfu(tokens_per_s: float, flops: float, peak: float) -> float:
    """Share of the peak, 0..1: tokens/s of all devices × FLOPs a token ÷ peak of all devices."""
    return tokens_per_s * flops / peak


def _looked_up(model: ModelSpec) -> int:
    """Weights of the embedding table; none where it is multiplied with as the head."""
    config = _text(model.config)
    if config.get("tie_word_embeddings", True):  # transformers' own default
        return 0
    return int(config.get("vocab_size", 0) * config.get("hidden_size", 0))


def _attention(config: dict[str, Any]) -> int | None:
    """Layers × heads × head size."""
    text = _text(config)
    layers, heads = text.get("num_hidden_layers"), text.get("num_attention_heads")
    if not (layers and heads and text.get("hidden_size")):
        return None
    return int(layers * heads * (text.get("head_dim") or text["hidden_size"] // heads))


def _text(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part, where a configuration holds others too."""
    text: dict[str, Any] = config.get("text_config") or config
    return text
