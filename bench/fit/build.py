"""The real transformers + peft + bitsandbytes module tree, on the meta device.

Nothing is downloaded and nothing is allocated: a 235B model takes half a second and half a GiB.
The libraries' own passes run (4-bit conversion, adapter injection, checkpointing), so what they
silently skip is skipped here too: bitsandbytes converts exactly `nn.Linear`, so Falcon's linear
class and fused experts stay 16-bit.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from bench.fit.request import Adapter, Request

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class CannotBuild(Exception):
    """The tree can't be made on meta: one line says why."""


def build(request: Request, device: str = "meta") -> nn.Module:
    """The model as the training loop holds it: quantised, adapted, checkpointing set."""
    from bench.fit import quantize

    try:
        with torch.device(device):
            model = _base(request)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotBuild(f"config of {request.config['model_type']}: {error}") from error
    if request.quantization is not None:
        model = quantize.convert(model, request.quantization, TORCH_DTYPES[request.dtype], device)
    if request.method == "base":
        model.requires_grad_(False)
    elif request.tree == "litgpt" and request.adapter is not None:
        from bench.fit.litgpt_tree import add_lora

        model = add_lora(model, request.adapter, TORCH_DTYPES[request.adapter.dtype])  # type: ignore[arg-type]
    elif request.adapter is not None:
        model = adapt(model, request.adapter, device)
    if request.checkpointing != "none" and request.method != "base":
        _enable_checkpointing(model, request)
    model.train()
    return model


def _base(request: Request) -> nn.Module:
    if request.tree == "litgpt":
        from bench.fit.litgpt_tree import build_litgpt

        return build_litgpt(request.config, TORCH_DTYPES[request.dtype])
    from transformers import AutoModelForCausalLM

    config = model_config(request.config)
    config.use_cache = False
    attention = _attention_name(request.attention)
    return AutoModelForCausalLM.from_config(
        config, dtype=TORCH_DTYPES[request.dtype], attn_implementation=attention
    )


def model_config(config: dict[str, Any]) -> Any:
    """config.json → transformers' config object; multimodal ones give their text tower."""
    from transformers import AutoConfig

    rest = {name: value for name, value in config.items() if name != "model_type"}
    rest.pop("auto_map", None)
    made = AutoConfig.for_model(config["model_type"], **rest)
    return made.get_text_config()


def _attention_name(name: str) -> str:
    """flash_attention_2 isn't installed here: a stand-in calls torch's flash operator.

    Its name must not hold "flash": transformers would ask for that library's kernels.
    """
    if name != "flash_attention_2":
        return name
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register("bench_packed", sdpa_attention_forward)
    AttentionMaskInterface.register("bench_packed", lambda *_, **__: None)
    return "bench_packed"


# ---------------------------------------------------------------- adapters


def adapt(model: nn.Module, adapter: Adapter, device: str = "meta") -> nn.Module:
    """peft.get_peft_model, which makes its weights on `device`, then the adapter's dtype."""
    from peft import get_peft_model

    config = peft_config(adapter)
    if adapter.worker_targets and hasattr(config, "target_modules"):
        from bench.worker.methods import lora

        config.target_modules = set(lora.target_modules(model, adapter))  # type: ignore[arg-type]
    try:
        with torch.device(device):
            adapted: nn.Module = get_peft_model(model, config, autocast_adapter_dtype=False)
    except (NotImplementedError, RuntimeError) as error:
        raise CannotBuild(
            f"peft method {adapter.kind} needs real data to set up ({error}): memory unknown"
        ) from error
    _set_adapter_dtype(adapted, adapter)
    return adapted


def peft_config(adapter: Adapter) -> Any:
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    cls: Any = PEFT_TYPE_TO_CONFIG_MAPPING.get(adapter.kind)  # type: ignore[call-overload]
    if cls is None:
        raise CannotBuild(f"peft has no method {adapter.kind}")
    wanted: dict[str, Any] = {
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "target_modules": _names(adapter.target_modules),
        "exclude_modules": list(adapter.exclude_modules) or None,
        "target_parameters": list(adapter.target_parameters) or None,
        "modules_to_save": list(adapter.modules_to_save) or None,
        "use_dora": adapter.dora,
        "use_rslora": adapter.rslora,
        "task_type": "CAUSAL_LM",
        **adapter.options,
    }
    known = inspect.signature(cls.__init__).parameters
    return cls(**{name: value for name, value in wanted.items() if name in known})


def _names(targets: str | tuple[str, ...]) -> str | list[str]:
    return targets if isinstance(targets, str) else list(targets)


def _set_adapter_dtype(model: nn.Module, adapter: Adapter) -> None:
    dtype = TORCH_DTYPES[adapter.dtype]
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or "modules_to_save" in name:
            continue
        parameter.data = parameter.data.to(dtype)
        if not adapter.train_a and "lora_A" in name:
            parameter.requires_grad_(False)


# ---------------------------------------------------------------- checkpointing


def _enable_checkpointing(model: nn.Module, request: Request) -> None:
    from bench.fit.checkpointing import checkpoint_function

    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    enable: Any = getattr(base, "gradient_checkpointing_enable", None)
    if enable is None:
        raise CannotBuild(f"{type(base).__name__} has no gradient checkpointing")
    enable()
    function = checkpoint_function(request)
    for module in base.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = function
    if request.adapter is not None:
        model.enable_input_require_grads()  # type: ignore[operator]


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks, in order: what is wrapped for sharding and checkpointing."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    candidates = [item for item in lists if len(item) > 1 and not _inside_layer(item, lists)]
    if not candidates:
        candidates = [item for item in lists if len(item)]
    return list(max(candidates, key=_list_parameters)) if candidates else []


def _inside_layer(item: nn.ModuleList, lists: list[nn.ModuleList]) -> bool:
    return any(item is not other and any(item is sub for sub in other.modules()) for other in lists)


def _list_parameters(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
