"""A trace lengthened from few layers is the trace of all of them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from bench.fit import depth, simulate
from bench.fit.allocator import ALLOC, FREE, CachingAllocator
from bench.fit.build import build
from bench.fit.request import Adapter, Quantization, Request, Sharding

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
}
METHODS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "autocast": "bf16", "dtype": "fp32"},
    "qlora": {
        "method": "qlora",
        "adapter": Adapter(rank=8, dtype="fp32"),
        "quantization": Quantization(),
        "accumulation": 2,
        "optimizer": "adamw_8bit",
    },
}
SHARDINGS = {
    "single": Sharding(),
    "fsdp": Sharding(kind="fsdp", devices=4),
    "zero2": Sharding(kind="zero2", devices=4, fp32_master=True, bucket_elements=1_000_000),
    "zero3": Sharding(kind="zero3", devices=4, max_live_elements=700_000),
}


def request(**fields: Any) -> Request:
    return Request(**{"config": TINY, "seq_len": 256, "micro_batch": 2, "loss": "trl", **fields})


@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("method", METHODS)
def test_lengthened_trace_equals_the_full_one(method: str, sharding: str) -> None:
    asked = request(**METHODS[method], sharding=SHARDINGS[sharding])
    full = simulate.trace_request(asked)
    made = simulate.full_trace(asked)
    assert made.marks == ()  # it is a lengthened one
    assert len(made.events) == len(full.events)
    for name, peak in full.peaks.items():  # the vector of gradient norms is rounded to 512 bytes
        assert made.peaks[name].allocated == pytest.approx(peak.allocated, abs=2048)
    reserved = [CachingAllocator().run(trace.events).max_reserved for trace in (full, made)]
    assert reserved[0] == reserved[1]
    for name in ("parameters", "trainable", "held_bytes", "trained_bytes", "host_bytes"):
        assert getattr(made, name) == getattr(full, name)
    assert made.costs.flops(4) == pytest.approx(full.costs.flops(4))


def test_layers_that_differ_are_traced_in_full() -> None:
    gemma = {
        "model_type": "gemma2",
        "hidden_size": 64,
        "num_hidden_layers": 18,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "intermediate_size": 128,
        "vocab_size": 512,
        "max_position_embeddings": 512,
    }
    asked = request(config=gemma, attention="eager")
    assert not depth.uniform(build(asked))
    assert simulate.full_trace(asked).marks != ()


def test_a_free_that_reaches_past_the_neighbours_is_refused() -> None:
    events = [(ALLOC, layer, 512, 0) for layer in range(5)]
    events += [(FREE, 4 - layer, 0, 0) for layer in range(5)]
    forward = [0, 1, 2, 3, 4]
    made = depth.lengthen(events, [*forward, 4, 3, 2, 1, 0], 2, 3)
    assert [e[0] for e in made.events] == [ALLOC] * 8 + [FREE] * 8
    assert [e[1] for e in made.events[8:]] == list(range(8, 0, -1))
    far = [*events[:5], (FREE, 2, 0, 0), *events[5:7], *events[8:]]  # freed at once by layer 4
    with pytest.raises(depth.CannotLengthen):
        depth.lengthen(far, [*forward, 4, 4, 3, 1, 0], 2, 3)


def test_a_deeper_trace_that_differs_is_noticed() -> None:
    events = [(ALLOC, layer, 512, 0) for layer in range(5)]
    made = depth.lengthen(events, range(5), 2, 1)
    deeper = [(ALLOC, 10 + layer, 512, 0) for layer in range(6)]
    assert depth.growth(events, made, deeper) == {}
    bigger = [*deeper[:-1], (ALLOC, 99, 1024, 0)]
    assert depth.growth(events, made, bigger) == {4: 512}
    with pytest.raises(depth.CannotLengthen):  # one of two repeated layers differs
        depth.growth(events, made, [*deeper[:2], (ALLOC, 99, 1024, 0), *deeper[3:]])
    with pytest.raises(depth.CannotLengthen):
        depth.growth(events, made, deeper[:-1])
