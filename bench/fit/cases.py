"""A published measurement → the request that describes it.

Rows name their framework; each framework does a few things its own way (loss path, autocast, what
its loop keeps alive).  Those facts are in `STACKS`, each from the framework's source.  Nothing in
here looks at the measured figure.
"""

from __future__ import annotations

import re
from typing import Any

from bench.fit.lengths import typical_lengths
from bench.fit.request import Adapter, Quantization, Request, Sharding

Row = dict[str, Any]

# (pattern on the row's framework, settings of the request).  First match wins.
STACKS: tuple[tuple[str, Row], ...] = (
    # Lightning: own modules, no padding mask, chunked head in the LoRA script.
    ("lit-?gpt", {"tree": "litgpt", "padded": False, "max_grad_norm": None}),
    # fsdp_qlora/train.py: own loop, bf16 everywhere, clip 0.3 by default.
    ("fsdp_qlora", {"loss": "upcast", "max_grad_norm": 0.3}),
    # torchtune recipes: no clipping by default; logits are dropped before the backward.  Its table
    # of memory techniques (v0.5) starts from a whole fp32 loss.
    (r"torchtune.*v0\.5", {"loss": "upcast", "keeps_outputs": False, "max_grad_norm": None}),
    ("torchtune", {"loss": "chunked", "keeps_outputs": False, "max_grad_norm": None}),
    # torchtitan/train.py: `del pred` before the backward; fp32 loss.
    ("torchtitan", {"loss": "upcast", "keeps_outputs": False}),
    # peft/method_comparison/MetaMathQA/run.py: own loop holds `outputs`; cache emptied.
    (r"peft \d", {"loss": "upcast", "empty_cache_every": 10}),
    # Qwen-1's finetune.py and its scripts (accumulation 8), torch 2.0, peft 0.5: LoRA layers are
    # created in fp32 and moved by device only; reentrant checkpointing is torch's default.
    (
        r"finetune\.py.*torch 2\.0",
        {
            "keeps_outputs": False,
            "frees_gradients_at_once": True,
            "accumulation": 8,
            "adapter_dtype": "fp32",
            "optimizer": "adamw_torch_2_0",
            "reentrant": True,
        },
    ),
    # ms-swift 1.x/2.0 defaults: accumulation 16 // (batch × devices); reentrant checkpointing.
    (
        r"ms-swift ~?[12]\.",
        {
            "keeps_outputs": False,
            "frees_gradients_at_once": True,
            "accumulation": 16,
            "reentrant": True,
        },
    ),
    # Hugging Face Trainer: outputs die in compute_loss, gradients right after the update.
    ("", {"loss": "upcast", "keeps_outputs": False, "frees_gradients_at_once": True}),
)

# Trainer with bf16=True on one GPU or DDP: autocast, outputs converted to fp32.  DeepSpeed's bf16
# engine runs without autocast.
TRAINER_AUTOCAST = re.compile(r"finetune\.py|ms-swift|LLaMA-Factory|trl|DeepSpeed", re.I)

_LLAMA = {
    "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj",
    "gate": "gate_proj", "up": "up_proj", "down": "down_proj",
}  # fmt: skip
_FUSED_NEOX = {
    "q": "query_key_value", "k": "query_key_value", "v": "query_key_value", "o": "dense",
    "up": "dense_h_to_4h", "down": "dense_4h_to_h",
}  # fmt: skip
_NAMES: dict[str, dict[str, str]] = {
    "phi": {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "dense", "up": "fc1", "down": "fc2"},
    "phi3": {
        "q": "qkv_proj", "k": "qkv_proj", "v": "qkv_proj", "o": "o_proj",
        "gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj",
    },
    "gpt_neox": _FUSED_NEOX,
    "falcon": _FUSED_NEOX,
}  # fmt: skip

_NOT_CONFIG = ("arch", "proxy_arch", "source", "approx_params", "notes")


def config_of(model: Row) -> Row:
    """models.json's dimensions → a transformers config.json."""
    family = model.get("proxy_arch") or model["arch"]
    config = {name: value for name, value in model.items() if name not in _NOT_CONFIG}
    config["model_type"] = family
    config["max_position_embeddings"] = max(32768, config.get("max_position_embeddings", 0))
    if not config.get("num_experts"):
        config.pop("num_experts", None)
    if family == "falcon":
        new = bool(config.get("new_decoder_architecture"))
        config.pop("head_dim", None)  # transformers' class derives it, and can't be told
        config.update(
            num_kv_heads=config.pop("num_key_value_heads", None),
            multi_query=not new,
            parallel_attn=True,
            bias=False,
            alibi=False,
            ffn_hidden_size=config.pop("intermediate_size"),
        )
        config["intermediate_size"] = config["ffn_hidden_size"]
    return config


def request_of(row: Row, models: dict[str, Row]) -> Request:
    """One row of a cases file → the step it describes."""
    config = config_of(models[row["model"]])
    extras = row.get("extras") or {}
    stack = _stack(row)
    fields: Row = {
        "config": _untied(config, extras),
        "method": _method(row),
        "dtype": row.get("base_dtype") or "bf16",
        "attention": "eager" if row.get("attention") == "eager" else "sdpa",
        "adapter": _adapter(row, config, stack),
        "quantization": _quantization(row, extras),
        "optimizer": _optimizer(row),
        "checkpointing": _checkpointing(row),
        "reentrant": bool(extras.get("reentrant")),
        "micro_batch": row["micro_batch"],
        "seq_len": row["seq_len"],
        "padded": row.get("padding") == "padded" and row.get("attention") != "flash",
        "activation_offload": bool(extras.get("activation_offload")),
        "optimizer_in_backward": bool(extras.get("optimizer_in_backward")),
        "fused_kernels": bool(extras.get("compile")),
        "sharding": _sharding(row, extras, config),
        "compute_capability": _capability(row.get("gpu_type") or ""),
    }
    if _lengths_vary(row, fields, stack):
        fields["lengths"] = typical_lengths(row["seq_len"])
    if stack.get("tree") == "litgpt" and row["seq_len"] % 64:
        # No one's cap: the data's longest sample, so the one before it is a typical one.
        fields["previous_length"] = int(0.35 * row["seq_len"])
    stack.pop("adapter_dtype", None)
    if fields["sharding"].kind.startswith("zero"):
        fields["optimizer"] = "adamw_fused"  # DeepSpeed's own Adam kernels have no temporaries
    if fields["optimizer"] != "adamw":
        stack.pop("optimizer", None)
    fields.update(stack)
    fields.update(_loss(row, extras, stack))
    if fields["sharding"].mixed_precision:
        fields["dtype"] = "bf16"
    if models[row["model"]]["arch"] == "qwen1" and fields.get("loss", "upcast") == "upcast":
        fields["loss"] = "native"  # modeling_qwen.py: cross-entropy on the 16-bit logits
    return Request(**fields)


def _lengths_vary(row: Row, fields: Row, stack: Row) -> bool:
    """Padded data of unknown lengths: reserved memory grows.  Not where the cache is emptied."""
    padded = row.get("padding") == "padded" and stack.get("tree") != "litgpt"
    return padded and not stack.get("empty_cache_every") and row["seq_len"] >= 128


def _stack(row: Row) -> Row:
    framework = row.get("framework") or ""
    settings = next(dict(found) for pattern, found in STACKS if re.search(pattern, framework, re.I))
    sharded = str(row.get("strategy", "")).startswith("zero")
    trainer = TRAINER_AUTOCAST.search(framework)
    if trainer and not sharded and row.get("base_dtype") in ("bf16", "fp16"):
        settings.update(autocast=row["base_dtype"], fp32_outputs=True)
    return settings


def _loss(row: Row, extras: Row, stack: Row) -> Row:
    if extras.get("liger") or re.search("liger", row.get("notes") or "", re.I):
        return {"loss": "liger"}
    if extras.get("chunked_ce"):
        return {"loss": "chunked"}
    if stack.get("tree") == "litgpt":
        return {"loss_chunk": extras.get("lm_head_chunk") or 0}
    return {}


def _method(row: Row) -> str:
    method = row["method"]
    if method in ("full", "qlora"):
        return str(method)
    return "qlora" if (row.get("bits") or 16) < 16 else "lora"


def _checkpointing(row: Row) -> str:
    value = row.get("gradient_checkpointing")
    return "selective" if value == "selective" else "full" if value else "none"


def _optimizer(row: Row) -> str:
    name = (row.get("optimizer") or "adamw").lower()
    known = {
        "adamw": "adamw",
        "adamw_fused": "adamw_fused",
        "adamw8bit": "adamw_8bit",
        "adamw_8bit": "adamw_8bit",
        "paged_adamw": "paged_adamw_32bit",
        "paged_adamw_32bit": "paged_adamw_32bit",
        "paged_adamw8bit": "paged_adamw_8bit",
        "paged_adamw_8bit": "paged_adamw_8bit",
        "adafactor": "adafactor",
        "sgd": "sgd",
        "lora_fa": "adamw_fused",  # peft's LoraFAOptimizer: two states, one parameter at a time
    }
    if name in known:
        return known[name]
    squeezed = name.replace("-", "_")
    return "adamw_8bit" if "8bit" in squeezed else "adamw"


def _adapter(row: Row, config: Row, stack: Row) -> Adapter | None:
    lora = row.get("lora")
    if not lora:
        return None
    extras = row.get("extras") or {}
    roles = tuple(lora.get("target_roles") or ())
    if stack.get("tree") == "litgpt":
        targets: Any = roles
    else:
        targets = _modules(roles, config["model_type"]) or lora.get("target_modules")
    head = "lm_head" in roles and "lm_head" not in (extras.get("modules_to_save") or ())
    if head and not isinstance(targets, str) and "lm_head" not in targets:
        targets = (*targets, "lm_head")
    return Adapter(
        rank=lora.get("r") or 8,
        alpha=lora.get("alpha") or 16,
        dropout=extras.get("lora_dropout") or lora.get("dropout") or 0.0,
        target_modules=targets if isinstance(targets, str) else tuple(targets),
        modules_to_save=_saved(extras.get("modules_to_save") or ()),
        dtype=stack.get("adapter_dtype") or row.get("adapter_dtype") or "fp32",
        dora=row["method"] == "dora" or bool(extras.get("dora")),
        rslora=row["method"] == "rslora",
        train_a=row["method"] != "lora_fa",
    )


def _modules(roles: tuple[str, ...], family: str) -> tuple[str, ...]:
    names = _NAMES.get(family, _LLAMA)
    return tuple(dict.fromkeys(names[role] for role in roles if role in names))


def _saved(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple({"wte": "embed_tokens"}.get(name, name) for name in names)


def _quantization(row: Row, extras: Row) -> Quantization | None:
    bits = row.get("bits") or 16
    if bits >= 16:
        return None
    base = row.get("base_dtype") or "bf16"
    version = bitsandbytes_minor(row.get("framework") or "")
    return Quantization(
        bits=bits,
        quant_type=row.get("quant_type") or "nf4",
        double_quant=bool(row.get("double_quant")),
        compute_dtype=base,
        skip=() if extras.get("quantize_lm_head") else ("lm_head",),
        saves_inputs=version is not None and version < 43,
        half_state=version is not None and version < 43 and base == "bf16",
        kbit_preparation=bool(extras.get("kbit_preparation")),
    )


def bitsandbytes_minor(framework: str) -> int | None:
    """0.x of the row's bitsandbytes.  litgpt pinned 0.42 through 2024 and names 0.41 before."""
    found = re.search(r"(?:bnb|bitsandbytes)\s*[=>]*\s*0\.(\d+)", framework)
    if found:
        return int(found.group(1))
    return 42 if re.search("litgpt 2024", framework, re.I) else None


def _sharding(row: Row, extras: Row, config: Row) -> Sharding:
    offload = row.get("offload") or "none"
    kind = row.get("strategy") or "single"
    zero = kind.startswith("zero")
    # transformers fills "auto" in ZeRO-3 configs with hidden² and 0.9 hidden²; its ZeRO-2 examples
    # set 2e8 (docs/deepspeed).
    square = config["hidden_size"] ** 2
    return Sharding(
        bucket_elements=square if kind == "zero3" else 200_000_000,
        prefetch_elements=int(0.9 * square) if zero else 0,
        kind={"fsdp2": "fsdp", "naive": "pipeline"}.get(kind, kind),
        devices=row.get("num_gpus") or 1,
        offload_params="param" in offload,
        offload_optimizer="optimizer" in offload,
        fp32_master=zero,  # DeepSpeed's 16-bit engines always keep fp32 masters and states
        separate_ends="torchtune" in (row.get("framework") or ""),  # custom_sharded_layers
        mixed_precision=kind.startswith("fsdp") and row.get("base_dtype") == "fp32",
    )


def _capability(gpu: str) -> float:
    for pattern, value in (("B200|GB200", 10.0), ("H100|H200|H20|H800", 9.0), ("L4|4090", 8.9)):
        if re.search(pattern, gpu):
            return value
    return 8.6 if re.search("3090|A10G|A10|A6000|RTX 30", gpu) else 8.0


def _untied(config: Row, extras: Row) -> Row:
    return {**config, "tie_word_embeddings": False} if extras.get("untied") else config
