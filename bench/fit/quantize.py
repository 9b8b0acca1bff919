"""Quantised weights on meta, with the exact bytes that bitsandbytes and GPTQ hold.

NF4 (Dettmers et al. 2023, and bitsandbytes' QuantState): n/2 bytes of codes, and a scale per 64
weights of 4 bytes, or with double quantisation 1 byte plus 4 bytes per 256 scales.  For a 7B model
0.377 GiB of scales without, 0.096 GiB with double quantisation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.fit.request import Quantization

BLOCK = 64
SCALES_PER_BLOCK = 256
_COMPUTE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _bitsandbytes() -> Any:
    import bitsandbytes

    return bitsandbytes


def convert(
    model: nn.Module, quantization: Quantization, dtype: torch.dtype, device: str = "meta"
) -> nn.Module:
    """Replace what the named quantisation replaces; everything else keeps its dtype."""
    if quantization.quant_type == "gptq":
        from bench.fit.gptq_tree import replace_with_gptq

        replace_with_gptq(model, quantization)
    elif hasattr(model, "config"):
        model = _with_bitsandbytes(model, quantization)
    else:
        _replace_plain(model, quantization)
    with torch.device(device):
        _fill(model, quantization, dtype)
    if quantization.experts and quantization.bits == 4:
        _pack_experts(model, quantization)
    model.requires_grad_(False)
    model.is_quantized = True  # type: ignore[assignment]
    if quantization.kbit_preparation:
        _prepare(model)
    return model


def _config(quantization: Quantization) -> Any:
    from transformers import BitsAndBytesConfig

    if quantization.bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantization.quant_type,
        bnb_4bit_use_double_quant=quantization.double_quant,
        bnb_4bit_compute_dtype=_COMPUTE[quantization.compute_dtype],
    )


def _with_bitsandbytes(model: nn.Module, quantization: Quantization) -> nn.Module:
    """transformers' own replacement pass: what it skips, we skip."""
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.utils.quantization_config import QuantizationMethod

    model = replace_with_bnb_linear(
        model,
        modules_to_not_convert=list(quantization.skip),
        quantization_config=_config(quantization),
    )
    four = quantization.bits == 4
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = four, not four  # type: ignore[assignment]
    model.quantization_method = QuantizationMethod.BITS_AND_BYTES  # type: ignore[assignment]
    return model


def _pack_experts(model: nn.Module, quantization: Quantization) -> None:
    """The worker's own 4-bit storage of fused experts; raises CannotBuild where it refuses."""
    from bench.fit.build import CannotBuild
    from bench.worker import experts4bit

    layout = experts4bit.Layout(quantization.quant_type, _COMPUTE[quantization.compute_dtype])
    try:
        experts4bit.convert(model, layout, quantization.double_quant)
    except ValueError as error:
        raise CannotBuild(f"fused experts can't be held in 4 bit: {error}") from error


def _replace_plain(model: nn.Module, quantization: Quantization) -> None:
    """For trees outside transformers: every nn.Linear that isn't skipped."""
    bnb = _bitsandbytes()

    for name, module in list(model.named_modules()):
        if type(module) is not nn.Linear or any(part in name for part in quantization.skip):
            continue
        with torch.device("meta"):
            linear = bnb.nn.Linear4bit(
                module.in_features,
                module.out_features,
                bias=module.bias is not None,
                compute_dtype=_COMPUTE[quantization.compute_dtype],
                compress_statistics=quantization.double_quant,
                quant_type=quantization.quant_type,
            )
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, linear)


def _fill(model: nn.Module, quantization: Quantization, dtype: torch.dtype) -> None:
    bnb = _bitsandbytes()

    for module in model.modules():
        if isinstance(module, bnb.nn.Linear4bit):
            _fill_4bit(module, quantization, dtype)
        elif isinstance(module, bnb.nn.Linear8bitLt):
            _fill_8bit(module)


def _made(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def _fill_4bit(module: Any, quantization: Quantization, dtype: torch.dtype) -> None:
    bnb = _bitsandbytes()

    shape = torch.Size((module.out_features, module.in_features))
    state = _quant_state(shape, quantization, dtype)
    module.weight = bnb.nn.Params4bit(
        _made((shape.numel() + 1) // 2, 1, dtype=torch.uint8),
        requires_grad=False,
        quant_state=state,
        compress_statistics=quantization.double_quant,
        quant_type=quantization.quant_type,
        module=module,
        bnb_quantized=True,
    )
    module.quant_state = state
    module.compute_type_is_set = True


def _quant_state(shape: torch.Size, quantization: Quantization, dtype: torch.dtype) -> Any:
    from bitsandbytes.functional import QuantState

    blocks = -(-shape.numel() // BLOCK)
    dtype = torch.float16 if quantization.half_state else dtype
    common: dict[str, Any] = {
        "shape": shape,
        "code": _made(16, dtype=torch.float32),
        "blocksize": BLOCK,
        "quant_type": quantization.quant_type,
        "dtype": dtype,
    }
    if not quantization.double_quant:
        return QuantState(absmax=_made(blocks, dtype=torch.float32), **common)
    second = QuantState(
        absmax=_made(-(-blocks // SCALES_PER_BLOCK), dtype=torch.float32),
        code=_made(256, dtype=torch.float32),
        blocksize=SCALES_PER_BLOCK,
        dtype=torch.float32,
    )
    return QuantState(
        absmax=_made(blocks, dtype=torch.uint8),
        offset=torch.zeros((), dtype=torch.float32),
        state2=second,
        **common,
    )


def _fill_8bit(module: Any) -> None:
    """LLM.int8: one byte a weight and one fp32 scale a row.

    The trace runs bitsandbytes' own MatMul8bitLt, which keeps each layer's 16-bit input on its
    autograd node, not in save_for_backward.  Non-reentrant checkpointing can't drop what hooks
    don't see, so with an 8-bit base these inputs stay alive from the forward to the end of the
    backward, checkpointing or not (bitsandbytes 0.50, autograd/_functions.py).
    """
    bnb = _bitsandbytes()

    weight = bnb.nn.Int8Params(
        _made(module.out_features, module.in_features, dtype=torch.int8),
        requires_grad=False,
        has_fp16_weights=False,
    )
    weight.CB = weight.data
    weight.SCB = _made(module.out_features, dtype=torch.float32)
    module.weight = weight
    # With transformers' threshold of 6 the outlier columns depend on data.  They are few and left
    # out; the buffers of the search for them are in `kernels.WORKSPACES`.
    module.state.threshold = 0.0


def quant_state_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Scales and codes, which aren't parameters or buffers."""
    found: list[torch.Tensor | None] = []
    for module in model.modules():
        state = getattr(module, "quant_state", None)
        if state is not None:
            second = state.state2
            found += [state.absmax, state.code, state.offset]
            found += [second.absmax, second.code] if second is not None else []
        found.append(getattr(getattr(module, "weight", None), "SCB", None))
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]


def _prepare(model: nn.Module) -> None:
    """peft.prepare_model_for_kbit_training: 16-bit leftovers become fp32."""
    for parameter in model.parameters():
        if parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.to(torch.float32)
