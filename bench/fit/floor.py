"""What a device holds at least, without tracing: rules out what can't fit."""

from __future__ import annotations

import functools
from dataclasses import astuple, dataclass

from bench.fit.build import build
from bench.fit.depth import shallow_config
from bench.fit.quantize import quant_state_tensors
from bench.fit.request import Request


@dataclass(frozen=True)
class Weights:
    """Bytes of one copy: frozen (packed, with scales), trained, and trained elements."""

    frozen: int
    trained: int
    elements: int


# Bytes of optimizer state for each trained weight, as a multiple of the updated precision's width
# or absolute where states are 8-bit; paged states may leave the device.
_STATE_WIDTHS = {"adamw": 2.0, "adamw_fused": 2.0, "adamw_torch_2_0": 2.0}
_STATE_BYTES = {"adamw_8bit": 2.0}


def floor_bytes(request: Request) -> int:
    """Bytes that one device holds at least: weights, gradients and optimizer states.

    Raises CannotBuild.
    """
    held = _weights(asked_of_weights(request).model_dump_json())
    sharding = request.sharding
    share = sharding.devices if sharding.kind in ("fsdp", "zero3") else 1
    weights = 0.0 if sharding.offload_params else (held.frozen + held.trained) / share
    if sharding.kind == "pipeline":
        return int((held.frozen + held.trained) / sharding.devices)
    if sharding.offload_params or sharding.offload_optimizer:
        return int(weights)
    fp32 = sharding.fp32_master or sharding.mixed_precision
    width = 4 if fp32 else held.trained / held.elements if held.elements else 0
    states = _STATE_WIDTHS.get(request.optimizer, 0.0) * width
    states += _STATE_BYTES.get(request.optimizer, 0.0) + (width if fp32 else 0)
    spread = sharding.devices if sharding.kind not in ("single", "ddp") else 1
    kept = 0 if request.optimizer_in_backward else held.trained
    return int(weights + (kept + states * held.elements) / spread)


def asked_of_weights(request: Request) -> Request:
    """What decides the weights: the same for every strategy, length and batch."""
    return Request(
        config=request.config,
        method=request.method,
        tree=request.tree,
        dtype=request.dtype,
        attention=request.attention,
        adapter=request.adapter,
        quantization=request.quantization,
        checkpointing="none",
        seq_len=1,
    )


@functools.cache
def _weights(asked: str) -> Weights:
    """Built with one and with two layers, where the layers are numbered in the usual field."""
    request = Request.model_validate_json(asked)
    layers = request.config.get("num_hidden_layers", 0)
    if layers <= 2:
        return _held(request)
    one, two = (
        _held(request.model_copy(update={"config": shallow_config(request.config, count)}))
        for count in (1, 2)
    )
    more = layers - 1
    return Weights(*(a + more * (b - a) for a, b in zip(astuple(one), astuple(two), strict=True)))


def _held(request: Request) -> Weights:
    model = build(request)
    frozen = sum(_size(tensor) for tensor in quant_state_tensors(model))
    trained = elements = 0
    for parameter in model.parameters():
        if parameter.requires_grad:
            trained += _size(parameter)
            elements += parameter.numel()
        else:
            frozen += _size(parameter)
    return Weights(frozen, trained, elements)


def _size(tensor: object) -> int:
    return int(tensor.numel() * tensor.element_size())  # type: ignore[attr-defined]
