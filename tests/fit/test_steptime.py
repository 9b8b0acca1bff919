"""Seconds of a step: which resource sets the pace, and published speeds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.fit import speed
from bench.fit.cache import Cache
from bench.fit.constants import constant
from bench.fit.costs import Cost, cost_of
from bench.fit.kernels import cuda_attention
from bench.fit.steptime import find_gpu, gpu_of, roofline_s

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
A100 = gpu_of(find_gpu("A100-SXM4-80GB") or {})


def test_the_slowest_resource_sets_the_pace() -> None:
    product, copy, tiny = Cost(10**12, 10**6, False), Cost(0, 10**9, False), Cost(0, 10, False)
    efficiency = constant("matmul_efficiency", A100.name)
    assert roofline_s(Counter({product: 9}), A100) == pytest.approx(9 / 312 / efficiency)
    copies = 1 / 2039 / constant("memory_efficiency")
    assert roofline_s(Counter({copy: 3}), A100) == pytest.approx(3 * copies)
    slow = roofline_s(Counter({Cost(10**12, 10**6, True): 1}), A100)
    assert slow == pytest.approx(1 / 19.5 / efficiency)
    launched = 1000 * constant("dispatch_s")
    assert roofline_s(Counter({tiny: 1000}), A100) == pytest.approx(launched)
    # The host runs ahead while the GPU is busy: small kernels then cost their own time only
    both = roofline_s(Counter({product: 9, tiny: 1000}), A100)
    assert both == pytest.approx(9 / 312 / efficiency + 1000 * constant("kernel_s"))


class _Costs(TorchDispatchMode):
    """Cost of each operator by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Cost] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        self.found[func._schema.name] = cost_of(func, args, kwargs or {}, out)
        return out


def test_causal_attention_costs_half_and_runs_at_the_16_bit_rate() -> None:
    """Its backward reads an fp32 logsumexp, which makes it no fp32 product."""
    found = {}
    for causal in (False, True):
        q, k, v = (
            torch.empty(1, 2, 64, 32, device="meta", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        )
        with _Costs() as costs:
            cuda_attention(q, k, v, is_causal=causal).sum().backward()
        found[causal] = [cost for name, cost in costs.found.items() if "flash" in name]
    full, half = found[False], found[True]
    assert len(full) == len(half) == 2
    for one, other in zip(full, half, strict=True):
        assert one.flops == 2 * other.flops > 0
        assert not one.fp32 and not other.fp32
    assert full[0].flops == 4 * 2 * 64 * 64 * 32


@pytest.mark.skipif(not CASES.exists(), reason="the cases are not part of the project")
def test_published_speeds_of_three_kinds(tmp_path: Path) -> None:
    """Launch-bound (1.8B, 256 tokens), a mixture of both, and bound by products (8,192 tokens)."""
    wanted = {"qwen-07", "qwen-10", "qwen-12"}
    rows = (CASES / "throughput_measured.jsonl").read_text().splitlines()
    some = tmp_path / "rows.jsonl"
    some.write_text("\n".join(row for row in rows if json.loads(row)["id"] in wanted))
    found, skipped = speed.run(
        some, CASES / "vram_measured.jsonl", CASES / "models.json", Cache(tmp_path / "cache")
    )
    assert {one.id for one in found} == wanted and not skipped
    for one in found:
        assert one.error == pytest.approx(0, abs=0.15), one
