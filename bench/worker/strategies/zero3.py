"""DeepSpeed ZeRO-3: parameters, gradients and optimizer state are sharded over the ranks.

Unquantised weights are partitioned as the model is made (zero.Init).  transformers leaves that out
for quantised ones without a word; of those each rank loads and keeps its own part, layer by layer
(worker/parts).  DeepSpeed's configuration must not be in force meanwhile: transformers would then
refuse a device map, and bitsandbytes fill each GPU by a default of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.spec import Cell
from bench.worker import parts, shards
from bench.worker.strategies import _zero
from bench.worker.strategies._common import check, keep_no_casts, own_device

__all__ = ["arguments", "check", "loading", "placement", "problems", "shard", "supports"]


def supports(cell: Cell) -> str | None:
    if cell.method.quantization and cell.method.quantization.bits == 8:
        return "zero3 can't partition 8-bit weights: bitsandbytes keeps them outside the tensor too"
    return _zero.supports(cell)


def placement(cell: Cell) -> dict[str, Any]:
    return own_device(cell) if cell.method.quantization else {}


@contextmanager
def loading(cell: Cell) -> Iterator[None]:
    _zero.join(cell)
    keep_no_casts()
    if cell.method.quantization:
        with parts.loading():
            yield
        return
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

    settings = _zero.configuration(cell, stage=3)
    # zero.Init makes every tensor in the dtype of this switch, whatever dtype was asked for
    settings["bf16"] = {"enabled": cell.method.dtype == "bf16"}
    alive = HfDeepSpeedConfig(settings)
    yield
    del alive
    unset_hf_deepspeed_config()


def shard(model: Any, cell: Cell) -> None:
    """Partition what came quantised, and see to an output layer that is trained."""
    if cell.method.quantization:
        _partition(model, cell)
    _keep_head_gathered(model)


def _partition(model: Any, cell: Cell) -> None:
    """Partition the frozen weights of one decoder layer after another; DeepSpeed does the rest.

    Not by zero.Init(module=layer): it sends rank 0's values to all, and rank 0 has its own only.
    """
    import torch
    from deepspeed.runtime.zero import partition_parameters

    from bench.worker.proof.weights import decoder_layers

    settings = _zero.configuration(cell, stage=3)
    engine = partition_parameters.Init(torch.nn.Module(), config_dict_or_path=settings)
    for layer in decoder_layers(model):
        parts.whole_again(layer)
        for parameter in layer.parameters():
            if not parameter.requires_grad:
                engine._convert_to_deepspeed_param(parameter)
                parameter.partition()


def _keep_head_gathered(model: Any) -> None:
    """Keep an output layer that is trained gathered while the loss runs back.

    TRL multiplies with its weight outside of its module, where DeepSpeed doesn't see it; the
    gradient then meets an empty tensor ("size of tensor a (0) must match …").
    """
    import deepspeed

    head = model.get_output_embeddings()
    if head is not None and head.weight.requires_grad:
        deepspeed.zero.register_external_parameter(model, head.weight)


def arguments(cell: Cell) -> dict[str, Any]:
    settings = _zero.arguments(cell, stage=3)
    if cell.method.adapter:
        # DeepSpeed releases a layer's weights before the other kind of recomputation has used
        # them (huggingface/trl issue 2514)
        settings["activation_checkpointing_kwargs"] = {"use_reentrant": True}
    return settings


def problems(model: Any, wrapped: Any) -> list[str]:
    found = _zero.problems(wrapped, stage=3)
    whole = [name for name, p in model.named_parameters() if not shards.is_sharded(p)]
    if whole:
        found.append(f"not zero3: {len(whole)} parameters are whole on each rank, e.g. {whole[0]}")
    return found
