"""DeepSpeed ZeRO-3: parameters, gradients and optimizer state are sharded over the ranks.

Unquantised weights are partitioned as the model is made (zero.Init).  transformers leaves that out
for quantised ones without a word; they go, quantised tensor by tensor, to the rank's own device and
are partitioned when training begins.  DeepSpeed's configuration must not be in force meanwhile:
transformers would then refuse a device map, and bitsandbytes fill each GPU by a default of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.spec import Cell
from bench.worker import shards
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
