"""Bytes by part and dtype, the quantised share, and which tensors moved."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from bench.worker import ranks, shards
from bench.worker.experts4bit import quantized_elements

PARTS = ("embeddings", "attention", "mlp", "experts", "router", "head", "adapters", "other")
# Looked for in a parameter's name inside its decoder layer, in this order.
_LAYER_PARTS = (
    ("experts", r"(^|\.)experts\."),
    ("router", r"(^|\.)(gate|router)\.|(^|\.)(shared_expert_gate)\."),
    ("other", r"norm"),
    ("attention", r"att(n|ention)|mixer"),
    ("mlp", r"mlp|ffn|feed_forward|shared_expert|block_sparse_moe"),
)


def decoder_layers(model: Any) -> list[Any]:
    """The transformer blocks: the longest list of equal modules."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    alike = [m for m in lists if len({type(item) for item in m}) == 1]
    return list(max(alike, key=len, default=[]))


def parts(model: Any) -> dict[str, str]:
    """Parameter name → its part.  Tied embeddings count once, as embeddings."""
    embeddings = _ids(model.get_input_embeddings())
    head = _ids(model.get_output_embeddings())
    blocks = set(decoder_layers(model))
    layers = [name for name, module in model.named_modules() if module in blocks]
    found = {}
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            part = "adapters"
        elif id(parameter) in embeddings:
            part = "embeddings"
        elif id(parameter) in head:
            part = "head"
        else:
            part = _part_in_layer(name, layers)
        found[name] = part
    return found


def _ids(module: Any) -> set[int]:
    return {id(p) for p in module.parameters()} if module is not None else set()


def _part_in_layer(name: str, layers: list[str]) -> str:
    inside = next((name[len(one) + 1 :] for one in layers if name.startswith(f"{one}.")), None)
    if inside is None:
        return "other"
    inside = inside.replace("base_layer.", "")
    return next((part for part, pattern in _LAYER_PARTS if re.search(pattern, inside)), "other")


def is_adapter(name: str) -> bool:
    return "lora_" in name


def facts(model: Any) -> dict[str, Any]:
    """Numbers of parameters (4-bit weights counted one by one) and bytes as held.

    Of sharded parameters the whole model's, whoever holds them; `shards.held_bytes` is a rank's.
    """
    by_part: dict[str, Counter[str]] = defaultdict(Counter)
    counts: Counter[str] = Counter()
    part_of = parts(model)
    for name, parameter, count, quantized in counted(model):
        counts["total_params"] += count
        counts["trainable_params"] += count if parameter.requires_grad else 0
        counts["quantized_params"] += count if quantized else 0
        by_part[part_of[name]][dtype_name(parameter.dtype)] += _whole_bytes(parameter)
    by_dtype: Counter[str] = sum(by_part.values(), Counter())
    return {
        **{name: counts[name] for name in ("total_params", "trainable_params", "quantized_params")},
        "bytes_by_dtype": dict(sorted(by_dtype.items())),
        "bytes_by_part": {p: dict(sorted(by_part[p].items())) for p in PARTS if p in by_part},
        "quantization_state_bytes": sum(map(tensor_bytes, quantization_state(model))),
        "quantizable_params": quantizable_params(model),
    }


def counted(model: Any) -> Iterator[tuple[str, Any, int, bool]]:
    """(name, parameter, weights it stands for, whether it is quantised) of every parameter."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        packed = quantized_elements(module)
        for last, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            name = f"{prefix}.{last}" if prefix else last
            count = packed[last] if last in packed else _elements(parameter)
            yield name, parameter, count, last in packed or _is_quantized(parameter)


def _is_quantized(parameter: Any) -> bool:
    """bitsandbytes' own parameter classes, whatever dtype stores their bits."""
    known = type(parameter).__name__ in ("Params4bit", "Int8Params")
    return known or hasattr(parameter, "quantized_shape")  # FSDP2 replaces the class


def _elements(parameter: Any) -> int:
    """Weights that a tensor stands for: bitsandbytes packs 4-bit ones, several to an element."""
    state = getattr(parameter, "quant_state", None)
    shape = state.shape if state is not None else shards.shape(parameter)
    return int(torch.Size(getattr(parameter, "quantized_shape", shape)).numel())


def quantized_params(model: Any) -> int:
    return sum(count for _, _, count, quantized in counted(model) if quantized)


def quantizable_params(model: Any) -> int:
    """Weights of linear layers and fused experts inside the decoder blocks, adapters apart.

    Embeddings, norms and the head are outside what QLoRA promises; fused experts are 3-D.
    """
    return sum(
        count
        for layer in decoder_layers(model)
        for name, parameter, count, quantized in counted(layer)
        if not is_adapter(name) and (quantized or len(shards.shape(parameter)) >= 2)
    )


def unquantized_parts(model: Any) -> dict[str, str]:
    """Parts of the decoder that quantisation is for and whose matrices aren't: part → dtype."""
    part_of = parts(model)
    return {
        part_of[name]: dtype_name(parameter.dtype)
        for name, parameter, _, quantized in counted(model)
        if part_of[name] in ("attention", "mlp", "experts")
        and not quantized
        and parameter.is_floating_point()
        and len(shards.shape(parameter)) >= 2
    }


def quantization_state(model: Any) -> list[torch.Tensor]:
    """bitsandbytes' scales and code tables, which are neither parameters nor buffers.

    (Those of 4-bit experts are parameters.)
    """
    found: list[Any] = []
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            state = getattr(parameter, "quant_state", None)
            if hasattr(parameter, "quantized_shape"):  # under FSDP2 the module keeps it
                state = module.quant_state
            if state is not None:
                found += [state.absmax, state.code, state.offset]
                found += [state.state2.absmax, state.state2.code] if state.nested else []
            found.append(getattr(parameter, "SCB", None))
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]


def wrong_dtypes(model: Any, dtype: torch.dtype) -> list[str]:
    """Frozen unquantised weights of another dtype: k-bit preparation upcasts them to fp32.

    What the model's own code keeps in fp32 is as it should be.
    """
    keep = _kept_in_fp32(model)
    return [
        name
        for name, parameter, _, quantized in counted(model)
        if not (quantized or is_adapter(name) or any(part in name for part in keep))
        and parameter.is_floating_point()
        and parameter.dtype != dtype
    ]


def _kept_in_fp32(model: Any) -> set[str]:
    kept: set[str] = set()
    for module in model.modules():
        for attribute in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"):
            kept |= set(getattr(module, attribute, None) or ())
    return kept


def checksums(model: Any) -> dict[str, float]:
    """Sum of each tensor's values that this rank holds, accumulated in float64 without a copy."""
    with torch.no_grad():
        return {name: _checksum(p, quantized) for name, p, _, quantized in counted(model)}


def _checksum(parameter: Any, quantized: bool) -> float:
    held = shards.local(parameter)
    if quantized:  # bits stored as floats may spell NaN, which never equals itself
        held = held.view(torch.uint8)
    return float(held.sum(dtype=torch.float64))


def moved(before: dict[str, float], after: dict[str, float]) -> set[str]:
    """Tensors whose checksum changed on any rank.  All ranks must call it."""
    changed = [float(value != before[name]) for name, value in after.items()]
    anywhere = ranks.largest(changed)
    return {name for name, flag in zip(after, anywhere, strict=True) if flag}


def full_bytes(model: Any, dtype: torch.dtype) -> int:
    """Bytes that the model would take with every weight in `dtype`."""
    return sum(count for _, _, count, _ in counted(model)) * dtype.itemsize


def _whole_bytes(parameter: Any) -> int:
    return int(shards.shape(parameter).numel() * parameter.element_size())


def tensor_bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
