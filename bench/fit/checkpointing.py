"""Gradient checkpointing as an input: none, full, selective, reentrant, with offloaded inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from bench.fit.request import Request


def checkpoint_function(request: Request) -> Callable[..., Any]:
    """What transformers calls as `_gradient_checkpointing_func(layer, *inputs)`."""
    if request.checkpointing == "selective":
        return partial(
            checkpoint, use_reentrant=False, context_fn=lambda: _selective_contexts(request)
        )
    if request.reentrant:
        return partial(_reentrant, request)
    return partial(checkpoint, use_reentrant=False, context_fn=lambda: _plain_contexts(request))


def _reentrant(request: Request, function: Callable[..., Any], *args: Any) -> Any:
    """The old form: the whole layer is recomputed, under the autocast of the forward."""

    def run(*inputs: Any) -> Any:
        with autocast_context(request):
            return function(*inputs)

    return checkpoint(run, *args, use_reentrant=True)


def autocast_context(request: Request) -> Any:
    """Autocast for a forward pass, or nothing."""
    from bench.fit.build import TORCH_DTYPES
    from bench.fit.precision import Autocast

    if request.autocast is None:
        return contextlib.nullcontext()
    gathered = request.sharding.kind in ("fsdp", "zero3")
    return Autocast(TORCH_DTYPES[request.autocast], cached=not gathered)


def _plain_contexts(request: Request) -> tuple[Any, Any]:
    """The recomputation runs under the autocast of the forward."""
    return contextlib.nullcontext(), autocast_context(request)


# torchtitan's "op" policy: keep attention outputs and every second matrix product
# (torchtitan/parallelisms/parallelize_llama.py, _save_list, 2024-12).
_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
}


def _selective_contexts(request: Request) -> tuple[Any, Any]:
    products = {"forward": 0, "recompute": 0}

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        mode = "recompute" if context.is_recompute else "forward"
        if operator is torch.ops.aten.mm.default:
            products[mode] += 1
        skipped = operator is torch.ops.aten.mm.default and products[mode] % 2 == 0
        keep = operator in _KEPT and not skipped
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    forward, recompute = create_selective_checkpoint_contexts(policy)
    return forward, recompute
