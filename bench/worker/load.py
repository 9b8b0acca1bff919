"""Model and tokenizer of a cell, with every setting that matters said aloud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from bench.errors import UserError
from bench.spec import Cell, HubWeights, ModelSpec
from bench.worker import experts4bit, methods, weights
from bench.worker.proof import loading
from bench.worker.strategies import single

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def torch_dtype(name: str) -> torch.dtype:
    return DTYPES[name]


def tokenizer(model: ModelSpec) -> Any:
    """The model's tokenizer, with a padding token.

    Raises UserError where the model is said to chat but its tokenizer has no chat template.
    """
    place, revision = guarded(model, lambda: weights.locate(model))
    loaded = guarded(model, lambda: AutoTokenizer.from_pretrained(place, revision=revision))
    if model.chat and not loaded.chat_template:
        raise UserError(
            f"model {model.name}: `chat: true`, but its tokenizer has no chat template: "
            "set `chat: false` in its file"
        )
    if loaded.eos_token is None:
        raise UserError(f"model {model.name}: its tokenizer has no end-of-sequence token")
    if loaded.pad_token is None:
        loaded.pad_token = loaded.eos_token
    return loaded


def model(cell: Cell, trained: Path | None = None, strategy: Any = single) -> Any:
    """The model as the method trains it; with `trained`, as a user would then deploy it: in the
    dtype that training computed in, whatever dtype its weights were updated in.

    dtype, attention and quantisation are explicit: defaults differ between versions.  `strategy`
    is the one that trains; a model that generates has its layers spread over the devices.
    """
    from bench.worker import quantize

    method = methods.module(cell.method.kind)
    place, revision = guarded(cell.model, lambda: weights.locate(cell.model))
    if trained and method.REPLACES_BASE:
        place, revision = str(trained), None
    arguments: dict[str, Any] = {
        "dtype": torch_dtype((cell.method.autocast if trained else None) or cell.method.dtype),
        "attn_implementation": cell.method.attention,
        "revision": revision,
        **method.load_arguments(cell.method),
        **strategy.placement(cell),
    }
    if written := quantize.find(cell, arguments):
        place = str(written)
        arguments = quantize.reading_arguments(written, arguments)
    with loading.host_peak() as peak:
        loaded = guarded(cell.model, lambda: weights.load(cell.model, place, **arguments))
    loaded.load_facts = loading.facts(loaded, arguments["dtype"], peak)
    if cell.method.quantization:
        experts4bit.set_at_once(loaded, cell.method.quantization.experts_at_once)
    strategy.check(loaded)
    keep_4bit_layout(loaded)
    loaded.config.use_cache = False
    if hasattr(loaded.config, "output_router_logits"):
        # Router logits belong to the training loss (TRL asks for them); generation breaks on them
        loaded.config.output_router_logits = False
    return method.load_trained(loaded, trained) if trained else loaded


def keep_4bit_layout(loaded: Any) -> None:
    """Stop bitsandbytes from repacking 4-bit weights on CPUs with AVX512-BF16.

    An eval-mode forward would repack them in place; later training forwards then take a path
    without autograd, and adapter gradients are wrong by up to 102 % with only a warning
    (bitsandbytes 0.50, nn/modules.py, Linear4bit.forward).
    """
    for module in loaded.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def guarded(model_spec: ModelSpec, action: Any) -> Any:
    """Turn the hub's many ways of saying no into one line."""
    try:
        return action()
    except OSError as error:
        hub = isinstance(model_spec.weights, HubWeights)
        if error.errno is not None or not hub:
            raise  # a full disk or a missing file, not the hub
        name = getattr(model_spec.weights, "id", model_spec.name)
        text = str(error)
        if "gated" in text.lower() or "401" in text or "403" in text:
            raise UserError(
                f"model {model_spec.name}: {name} is gated: accept its licence on the hub and "
                "set HF_TOKEN"
            ) from error
        raise UserError(
            f"model {model_spec.name}: {name} is neither cached nor reachable on the hub: "
            f"check the connection and the id ({text.splitlines()[0][:160]})"
        ) from error
