"""Tiny mixtures of experts of several families, as checkpoints with one tensor an expert."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from bench.worker import experts4bit

COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "initializer_range": 0.1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "intermediate_size": 256,
        "moe_intermediate_size": 128,
        "num_experts": 8,
        "head_dim": 32,
    },
    "mixtral": {"intermediate_size": 128, "num_local_experts": 8, "head_dim": 32},
    "olmoe": {"intermediate_size": 128, "num_experts": 8},
    "deepseek_v3": {
        "intermediate_size": 256,
        "moe_intermediate_size": 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
    },
}


def config(family: str, **more: Any) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(family, **{**COMMON, **FAMILIES.get(family, {}), **more})


def save(family: str, folder: Path, **more: Any) -> None:
    """A random fp32 checkpoint of several shards."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(family, **more), dtype=torch.float32)
    model.save_pretrained(folder, max_shard_size="1MB")


def load(folder: Path, dtype: torch.dtype = torch.float32, double_quant: bool = True) -> Any:
    """The checkpoint through the ordinary 4-bit path."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    from bench.worker.load import keep_4bit_layout

    experts4bit.install()
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=double_quant,
        bnb_4bit_compute_dtype=dtype,
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, quantization_config=quantization
    )
    keep_4bit_layout(model)
    return model


def dequantized(model: Any) -> Any:
    """A copy whose experts are the model's own class again, holding the dequantised weights."""
    twin = copy.deepcopy(model)
    dtype = model.get_input_embeddings().weight.dtype
    for module in experts_of(twin):
        for name in module.full_shapes:
            weights = module.dequantized(name, dtype)
            setattr(module, name, torch.nn.Parameter(weights, requires_grad=False))
            delattr(module, f"{name}_stats")
        module.__class__ = type(module).__mro__[2]
    return twin


def experts_of(model: Any) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, experts4bit.Experts4bit)]


def with_lora(model: Any, experts: bool, checkpointing: bool = False) -> Any:
    """The same adapters on any model: B isn't zero, so that every gradient is."""
    from peft import LoraConfig, get_peft_model

    attention = [n for n in ("q_proj", "q_a_proj") if any(n in name for name, _ in named(model))]
    config = LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=[*attention, "o_proj"],
        target_parameters=["experts.gate_up_proj", "experts.down_proj"] if experts else None,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(1)
    adapted = get_peft_model(model, experts4bit.register(config), autocast_adapter_dtype=False)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in sorted(adapted.named_parameters()):
        if "lora_" in name:
            parameter.data = parameter.data.float()
        if "lora_B" in name:
            parameter.data.normal_(0, 0.02, generator=generator)
    if checkpointing:
        adapted.activation_checkpointing_enable({"use_reentrant": False})
        adapted.enable_input_require_grads()
    return adapted.train()


def named(model: Any) -> Any:
    return model.named_modules()


def step(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits and gradients of one forward and backward."""
    model.zero_grad()
    output = model(input_ids=ids, labels=ids)
    output.loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return output.logits.detach(), gradients
