"""Predicted bytes against bytes that a real allocator hands out, on the CPU.

The oracle is torch's own profiler of the CPU allocator, which knows nothing of our tracer.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from bench.fit import kernels, step  # noqa: E402
from bench.fit.build import build  # noqa: E402
from bench.fit.patches import meta_behaves_like_cuda  # noqa: E402
from bench.fit.quantize import quant_state_tensors  # noqa: E402
from bench.fit.request import Adapter, Quantization, Request  # noqa: E402
from bench.fit.trace import Tracer  # noqa: E402

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1408,
    "vocab_size": 8000,
    "max_position_embeddings": 2048,
}
MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "intermediate_size": 512,
    "vocab_size": 4000,
    "max_position_embeddings": 2048,
}
ADAPTER = Adapter(rank=16, target_modules="all-linear", dtype="fp32")
ATTENTION_ONLY = Adapter(rank=8, target_modules=("q_proj", "v_proj"), dtype="fp32")


def request(method: str, **changes: Any) -> Request:
    fields: dict[str, Any] = {
        "config": LLAMA,
        "method": method,
        "dtype": "fp32",
        "attention": "eager",
        "micro_batch": 2,
        "seq_len": 192,
        "adapter": None if method == "full" else ADAPTER,
        "quantization": Quantization(compute_dtype="fp32") if method == "qlora" else None,
    }
    return Request(**{**fields, **changes})


class NoTracer:
    """The tracer's interface, counting nothing."""

    host_bytes = 0

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None

    @contextlib.contextmanager
    def new_tensors_are(self, _: str) -> Iterator[None]:
        yield


def traced(wanted: Request, workspace: bool = True) -> Tracer:
    model = build(wanted)
    tracer = Tracer(kernels.workspace_bytes if workspace else None, granularity=1)
    with meta_behaves_like_cuda(), tracer:
        step.run(model, wanted, tracer, step.Placement(model, wanted, tracer), _nothing())
    return tracer


def predicted_bytes(wanted: Request, workspace: bool = True) -> int:
    """Peak allocated on meta, byte-exact, without the CUDA-only workspace of cuBLAS."""
    peak = traced(wanted, workspace).peak.allocated
    return peak - kernels.blas_workspace_bytes(wanted.compute_capability)


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


def measured_bytes(wanted: Request) -> int:
    """Peak of the real CPU allocator over the same loop."""
    from torch.profiler import ProfilerActivity, profile

    model = build(wanted, device="cpu")
    tensors = [*model.parameters(), *model.buffers(), *quant_state_tensors(model)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    tracer: Any = NoTracer()
    placement = step.Placement(model, wanted, tracer)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step.run(model, wanted, tracer, placement, _nothing())
    current = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    del model
    gc.collect()
    return sum(storages.values()) + peak


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_prediction_is_within_one_percent_of_the_real_allocator(
    method: str, checkpointing: str
) -> None:
    wanted = request(method, checkpointing=checkpointing)
    assert predicted_bytes(wanted) == pytest.approx(measured_bytes(wanted), rel=0.01)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_8bit_base_is_within_one_percent(
    checkpointing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bitsandbytes takes another autograd function on CPUs; here it takes CUDA's."""
    from bitsandbytes.autograd import _functions

    monkeypatch.setattr(_functions, "MatMul8bitFp", _functions.MatMul8bitLt)
    wanted = request("qlora", quantization=Quantization(bits=8), checkpointing=checkpointing)
    without = predicted_bytes(wanted, workspace=False)
    assert without == pytest.approx(measured_bytes(wanted), rel=0.01)
    assert without <= predicted_bytes(wanted)


def test_8bit_layers_keep_their_inputs_through_checkpointing() -> None:
    """Not hidden in another term: what is alive after the forward, against 4 bit."""
    alive = {}
    for bits in (4, 8):
        wanted = request("qlora", quantization=Quantization(bits=bits, compute_dtype="fp32"))
        tracer = traced(wanted)
        alive[bits] = tracer.peaks["steady/backward"].categories["forward"]
    tokens, hidden, wide = 2 * 192, LLAMA["hidden_size"], LLAMA["intermediate_size"]
    # q, k and v read one tensor, gate and up another; o and down have their own
    inputs = 6 * tokens * (3 * hidden + wide) * 4
    assert alive[8] - alive[4] == pytest.approx(inputs, rel=0.1)


def test_mixture_of_experts_is_within_one_percent() -> None:
    # bf16: torch's grouped product takes nothing else on meta
    wanted = request(
        "lora",
        config=MOE,
        dtype="bf16",
        seq_len=64,
        adapter=ATTENTION_ONLY,
        checkpointing="none",
    )
    assert predicted_bytes(wanted) == pytest.approx(measured_bytes(wanted), rel=0.01)


def test_accumulation_is_within_one_percent() -> None:
    wanted = request("full", accumulation=2, checkpointing="full", micro_batch=1)
    assert predicted_bytes(wanted) == pytest.approx(measured_bytes(wanted), rel=0.01)
