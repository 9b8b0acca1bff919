"""FSDP2 (torch's fully_shard): parameters, gradients and optimizer state are sharded over ranks.

Never through the trainer's own `fsdp=` option: accelerate drops it on a CPU and runs DDP without a
word, and there nothing could be tested.  The model comes sharded, and the trainer leaves it alone.

Two load paths.  Unquantised weights: transformers shards the empty model and each rank reads its
own part of every tensor.  Quantised ones: bitsandbytes can't quantise a shard ('DTensor' object has
no attribute 'compress_statistics'), so each rank loads layer by layer and keeps its part
(worker/parts); a layer is whole again in the moment in which it is sharded, adapters included.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from bench.spec import Cell
from bench.worker import parts, ranks, shards
from bench.worker.strategies._common import (
    check,
    gloo,
    keep_no_casts,
    own_device,
    too_few,
    trained_dtype,
)

__all__ = ["arguments", "check", "loading", "placement", "problems", "shard", "supports"]


def supports(cell: Cell) -> str | None:
    method, strategy = cell.method, cell.strategy
    if strategy.offload_params != strategy.offload_optimizer:
        return "fsdp offloads parameters and optimizer together: set both, or neither"
    if strategy.offload_params and cell.target.device == "cpu":
        return "fsdp has nowhere to offload to on a CPU: its parameters are on the host already"
    if method.autocast == "fp16":
        return "fsdp in fp16 needs a sharded loss scaler that is not tested here: use bf16 or fp32"
    if method.optimizer in ("adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"):
        return f"bitsandbytes' {method.optimizer} can't step fsdp's sharded tensors: use adamw"
    return _quantized(cell) or too_few(cell)


def _quantized(cell: Cell) -> str | None:
    quantization, dtype = cell.method.quantization, trained_dtype(cell)
    if quantization and quantization.bits == 8:
        return "fsdp can't gather 8-bit weights: bitsandbytes keeps their scales outside the tensor"
    if quantization and quantization.storage_dtype not in ("uint8", dtype):
        return (
            f"qlora under fsdp needs quantization.storage_dtype equal to adapter.dtype ({dtype}), "
            f"not {quantization.storage_dtype}; uint8 is replaced by it"
        )
    return None


def loading(cell: Cell) -> AbstractContextManager[None]:
    keep_no_casts()
    return parts.loading() if cell.method.quantization else nullcontext()


def placement(cell: Cell) -> dict[str, Any]:
    if not cell.method.quantization:
        from transformers.distributed.configuration_utils import DistributedConfig

        return {
            "distributed_config": DistributedConfig(
                fsdp_size=ranks.world(), fsdp_cpu_offload=cell.strategy.offload_params
            )
        }
    from bench.worker.load import torch_dtype
    from bench.worker.methods import module

    # Stored as the adapters' dtype, so that a layer's parameters are gathered without a detour
    # through bytes and no mixed-precision policy can tell them from ordinary weights.
    arguments = module(cell.method.kind).load_arguments(cell.method)["quantization_config"]
    arguments.bnb_4bit_quant_storage = torch_dtype(trained_dtype(cell))
    return {**own_device(cell), "quantization_config": arguments}


def shard(model: Any, cell: Cell) -> None:
    """Shard what the load path left whole: a quantised model, or the adapters of a sharded one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    from bench.worker.proof.weights import decoder_layers

    base = model.get_base_model() if cell.method.adapter else model
    more: dict[str, Any] = {"mesh": init_device_mesh(cell.target.device, (ranks.world(),))}
    if cell.strategy.offload_params:
        more["offload_policy"] = CPUOffloadPolicy()
    if cell.method.quantization:
        _round_adapters(model)
        for layer in decoder_layers(base):
            parts.whole_again(layer)
            _shard_quantized(layer, lambda module: fully_shard(module, **more))
        _shard_quantized(base, lambda module: fully_shard(module, **more))
        _hand_over(base)
        return
    for layer in decoder_layers(base):
        # One group a layer: one gather for all of its adapters
        whole = [m for m in layer.modules() if _own(m) and not any(map(shards.is_dtensor, _own(m)))]
        if whole:
            fully_shard(whole, **more)


def _round_adapters(model: Any) -> None:
    """TRL rounds the adapters of quantised models to bf16 when its trainer is made, which misses
    sharded ones: round them before, so that all strategies start alike."""
    import torch

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16).to(parameter.dtype)


def _own(module: Any) -> list[Any]:
    return list(module.parameters(recurse=False))


def _shard_quantized(module: Any, fully_shard: Any) -> None:
    """Shard, and keep what the old parameters' class knew: the scales, and the unpacked shape."""
    states = {
        linear: linear.weight.quant_state
        for linear in module.modules()
        if getattr(linear._parameters.get("weight"), "quant_state", None) is not None
    }
    fully_shard(module)
    for linear, state in states.items():
        linear.quant_state = state  # where its forward looks when the parameter has none
        linear.weight.quantized_shape = state.shape


def _hand_over(base: Any) -> None:
    """Tell the trainer that the model places itself, as one that came sharded says."""
    from transformers.distributed.configuration_utils import DistributedConfig

    base._is_distributed_loading_by_transformers = True
    base._is_fsdp_managed_module = True
    base.config.distributed_config = DistributedConfig(fsdp_size=ranks.world())


def arguments(cell: Cell) -> dict[str, Any]:
    return gloo(cell)


def problems(model: Any, wrapped: Any) -> list[str]:
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    whole = [name for name, p in model.named_parameters() if not shards.is_sharded(p)]
    found = []
    if isinstance(wrapped, DistributedDataParallel):
        found.append("not fsdp: the trainer wrapped the model in DDP")
    if not any(isinstance(module, FSDPModule) for module in model.modules()):
        found.append("not fsdp: no module is managed by FSDP2")
    if whole:
        found.append(f"not fsdp: {len(whole)} parameters are whole on each rank, e.g. {whole[0]}")
    return found
