"""Memory and time of generation with a KV cache, in a process of its own.

Weights as deployed, the prompt's forward, then a cache that grows by one position a token.  The
peak is the prompt's forward or the last token, whose concatenation holds one layer's keys and
values twice.  A model too large for one device has its layers spread over all of them, which work
one after another: each then holds its share of the layers, and embeddings and head at most.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.fit import kernels, step
from bench.fit.allocator import CachingAllocator
from bench.fit.depth import shallow_config
from bench.fit.request import Decoding, Request
from bench.fit.simulate import Trace, at_full_depth, record
from bench.fit.trace import Tracer
from bench.plan import GenerationMemory


def generation_memory(request: Request, decoding: Decoding) -> GenerationMemory:
    """Peaks of the fullest device, and the costs of the prompt and of one token on all layers."""
    layers = request.config.get("num_hidden_layers", 0)
    share = request
    if decoding.devices > 1 and layers:
        config = shallow_config(request.config, -(-layers // decoding.devices))
        share = request.model_copy(update={"config": config})
    trace = _trace(share, decoding)
    replay = CachingAllocator(expandable=request.expandable_segments).run(trace.events)
    stages = decoding.devices if share is not request else 1
    return GenerationMemory(
        allocated_bytes=replay.max_allocated,
        reserved_bytes=replay.max_reserved,
        phases={name: peak.allocated for name, peak in trace.peaks.items()},
        devices=stages,
        held_bytes=trace.held_bytes * stages,
        prompt_costs=[(c.flops, c.size, c.fp32, n * stages) for c, n in trace.costs.micro.items()],
        token_costs=[(c.flops, c.size, c.fp32, n * stages) for c, n in trace.costs.update.items()],
    )


def deployed(request: Request) -> Request:
    """The weights of a request, without how they were trained."""
    return Request(
        config=request.config,
        method=request.method if request.adapter else "base",
        tree=request.tree,
        dtype=request.autocast or request.dtype,
        attention=request.attention,
        adapter=request.adapter,
        quantization=request.quantization,
        checkpointing="none",
        seq_len=1,
        compute_capability=request.compute_capability,
    )


def _trace(request: Request, decoding: Decoding) -> Trace:
    def run(model: nn.Module, request: Request, tracer: Tracer) -> None:
        model.eval()
        step.Placement(model, request, tracer).load()
        tracer.hold(kernels.blas_workspace_bytes(request.compute_capability), "workspace")
        with step.traced(tracer, request), torch.no_grad():
            _decode(model, tracer, decoding)

    return at_full_depth(deployed(request), lambda one, _: record(one, run))


def _decode(model: nn.Module, tracer: Tracer, decoding: Decoding) -> None:
    """Left-padded prompts, as bench.worker.generate gives them: attention gets a mask."""
    tracer.start_phase("generate/prompt")
    ids = torch.ones(decoding.batch, decoding.prompt, dtype=torch.long, device="meta")
    mask = torch.ones_like(ids)
    out: Any = model(input_ids=ids, attention_mask=mask, use_cache=True, logits_to_keep=1)
    cache = out.past_key_values
    tracer.leave_layers()
    del out
    if decoding.new > 2:
        tracer.start_phase("generate/cache")
        _grow(cache, decoding.new - 2)
    tracer.start_phase("generate/token")
    mask = torch.ones(decoding.batch, decoding.prompt + max(0, decoding.new - 2) + 1, device="meta")
    model(
        input_ids=ids[:, :1].clone(),
        attention_mask=mask.long(),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    tracer.leave_layers()  # the cache dies


def _grow(cache: Any, positions: int) -> None:
    """As many decoded positions at once."""
    for index, layer in enumerate(cache.layers):
        batch, heads, _, width = layer.keys.shape
        shape = (batch, heads, positions, width)
        keys, values = layer.keys.new_empty(shape), layer.values.new_empty(shape)
        cache.update(keys, values, index)
        del keys, values  # else they die among the next layer's events
