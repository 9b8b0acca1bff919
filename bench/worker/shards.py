"""Parameters whose bytes are spread over ranks: what this rank holds, and the whole of them.

FSDP2 shards a parameter as a DTensor, ZeRO-3 leaves an empty one that owns `ds_tensor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bench.worker import ranks


def is_dtensor(parameter: Any) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(parameter, DTensor)


def is_sharded(parameter: Any) -> bool:
    """Whether this rank holds a part of the parameter only."""
    if is_dtensor(parameter):
        return any(place.is_shard() for place in parameter.placements)
    return hasattr(parameter, "ds_tensor")


def local(parameter: Any) -> Any:
    """The tensor that this rank holds, whole or a shard."""
    if is_dtensor(parameter):
        return parameter.to_local()
    return getattr(parameter, "ds_tensor", parameter)


def settle(model: Any) -> None:
    """Let each rank hold its own shards only: FSDP2 keeps the last layers whole after a forward."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def held_bytes(model: Any) -> int:
    """Bytes of parameters that this rank holds."""
    held = (local(parameter) for parameter in model.parameters())
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


def whole(parameter: Any) -> Any:
    """The parameter put together, on the CPU.  All ranks must call it; the copy is one tensor."""
    if is_dtensor(parameter):
        # CPU-offloaded shards live on the host, and NCCL gathers on the GPU only
        parameter = parameter.detach()
        mesh_device = parameter.device_mesh.device_type
        if parameter.device.type != mesh_device:
            parameter = parameter.to(mesh_device)
        return parameter.full_tensor().cpu()
    if hasattr(parameter, "ds_tensor"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().cpu().clone()
    return parameter.detach().cpu()


def trained_state(model: Any) -> dict[str, Any]:
    """The trainable parameters by name, whole, on rank 0; empty elsewhere.

    One at a time: no rank holds more than its shards, rank 0's host beside them the result.
    """
    state = {}
    for name, parameter in _trainable(model):
        tensor = whole(parameter)
        if ranks.rank() == 0:
            state[name] = tensor
    return state


def _trainable(model: Any) -> Iterator[tuple[str, Any]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def shape(parameter: Any) -> torch.Size:
    """The whole parameter's shape."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))
