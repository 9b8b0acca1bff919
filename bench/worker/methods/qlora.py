"""QLoRA: adapters on a base held in 4 (or 8) bit (Dettmers et al. 2023, arXiv:2305.14314)."""

from __future__ import annotations

from typing import Any

from bench.spec import MethodSpec
from bench.worker.methods import lora

REPLACES_BASE = False
# Of the weights of linear layers and experts.  A router may stay unquantised.
PROMISED_SHARE = 0.85

adapt = lora.adapt
save = lora.save
load_trained = lora.load_trained


def load_arguments(method: MethodSpec) -> dict[str, Any]:
    from transformers import BitsAndBytesConfig

    from bench.worker import experts4bit
    from bench.worker.load import torch_dtype

    quantization = method.quantization
    assert quantization is not None  # checked by MethodSpec
    if quantization.bits == 8:
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}
    experts4bit.install()
    storage = quantization.storage_dtype
    return {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=quantization.quant_type,
            bnb_4bit_use_double_quant=quantization.double_quant,
            bnb_4bit_compute_dtype=torch_dtype(quantization.compute_dtype),
            bnb_4bit_quant_storage="uint8" if storage == "uint8" else torch_dtype(storage),
        )
    }


def problems(model: Any, method: MethodSpec) -> list[str]:
    return [*lora.problems(model, method), *too_little_quantized(model)]


def too_little_quantized(model: Any) -> list[str]:
    """Less of the base is held in few bits than the method's name promises.

    Transformers 5 keeps a mixture's experts as fused 3-D parameters, which bitsandbytes skips
    without a word (experts4bit doesn't); `is_loaded_in_4bit` still says True.
    """
    from bench.worker.proof.weights import (
        quantizable_params,
        quantized_params,
        unquantized_parts,
    )

    promised, held = quantizable_params(model), quantized_params(model)
    found = []
    if held < PROMISED_SHARE * promised:
        found.append(
            f"not quantised: {held / promised:.0%} of the linear and expert weights are quantised "
            f"({held:,} of {promised:,})"
        )
    if experts := unquantized_parts(model).get("experts"):
        found.append(f"fused expert parameters stay unquantised, in {experts}")
    return found
