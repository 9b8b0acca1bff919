"""Memory of the phases without gradients: validation loss, and generation with a KV cache.

Generation runs in its own process: weights, the prompt's forward, then a cache that grows by one
position a step.  Its peak is the prompt's forward or the last step, whose concatenation holds one
layer's keys and values twice.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bench.fit import kernels, step
from bench.fit.allocator import CachingAllocator
from bench.fit.build import build
from bench.fit.request import Request, Sharding
from bench.fit.trace import Tracer


@dataclass
class Decoding:
    """What is generated: sequences at once, tokens of the prompt, tokens to write."""

    batch: int
    prompt: int
    new: int


def generation_bytes(request: Request, decoding: Decoding) -> tuple[int, int]:
    """(allocated, reserved) peak bytes of one device that holds the whole model."""
    quiet = request.model_copy(
        update={"checkpointing": "none", "sharding": Sharding(), "loss": "native"}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(quiet)
        model.eval()
        tracer = Tracer(kernels.workspace_bytes)
        step.Placement(model, quiet, tracer).load()
        tracer.hold(kernels.blas_workspace_bytes(quiet.compute_capability), "workspace")
        with step.traced(tracer, quiet), torch.no_grad():
            _decode(model, tracer, decoding)
    replay = CachingAllocator(expandable=quiet.expandable_segments).run(tracer.events)
    return replay.max_allocated, replay.max_reserved


def _decode(model: nn.Module, tracer: Tracer, decoding: Decoding) -> None:
    ids = torch.ones(decoding.batch, decoding.prompt, dtype=torch.long, device="meta")
    tracer.start_phase("generate/prompt")
    out: Any = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    cache = out.past_key_values
    del out
    if decoding.new > 2:
        tracer.start_phase("generate/cache")
        _grow(cache, decoding.new - 2)
    tracer.start_phase("generate/token")
    model(input_ids=ids[:, :1].clone(), past_key_values=cache, use_cache=True, logits_to_keep=1)


def _grow(cache: Any, positions: int) -> None:
    """As many decoded positions at once."""
    for index, layer in enumerate(cache.layers):
        batch, heads, _, width = layer.keys.shape
        shape = (batch, heads, positions, width)
        keys, values = layer.keys.new_empty(shape), layer.values.new_empty(shape)
        cache.update(keys, values, index)
