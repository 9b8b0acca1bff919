"""The bound by hand, and that it is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import suite
from bench.score import roofline
from bench.score.roofline import Machine, Request, Weights

# 100 GB/s, 1 TFLOP/s; 10 GB of weights, of 5 G parameters
MACHINE = Machine(flops=1e12, bytes_per_s=1e11, memory_bytes=2e10)
DENSE = Weights(held_bytes=1e10, active_params=5e9, cache_bytes=1e5)


def test_one_sequence_by_hand() -> None:
    """A prompt of 100: 1 s.  Each of 10 tokens reads 10 GB and 11 MB: 0.10011 s."""
    found = roofline.at_best(DENSE, MACHINE, Request(100, 10), 1)
    assert found and found.seconds == pytest.approx(1.0 + 10 * 0.10011)
    assert (found.prompt_tokens, found.new_tokens) == (100, 10)


def test_a_large_batch_is_bound_by_arithmetic() -> None:
    found = roofline.at_best(DENSE, MACHINE, Request(0.5, 10), 100)
    assert found and found.seconds == pytest.approx(0.5 + 10 * 1.0)


def test_what_does_not_fit_has_no_bound() -> None:
    assert roofline.at_best(DENSE, MACHINE, Request(1e5, 10), 2) is None


def test_experts_are_read_as_far_as_they_are_used() -> None:
    mixture = Weights(1e10, 1e9, 0, expert_share=0.9, used=0.125)
    assert mixture.read_bytes(1) == pytest.approx(1e9 + 9e9 / 8)
    assert mixture.read_bytes(1000) == pytest.approx(1e10)


@given(st.integers(1, 64), st.floats(1, 500), st.floats(1, 500))
def test_no_machine_beats_its_bandwidth_and_peak(batch: int, prompt: float, new: float) -> None:
    found = roofline.at_best(DENSE, MACHINE, Request(prompt, new), batch)
    if found:
        assert found.seconds >= new * DENSE.held_bytes / MACHINE.bytes_per_s
        assert found.seconds >= batch * (prompt + new) * 2 * 5e9 / MACHINE.flops * (1 - 1e-9)


def test_the_suite_of_the_question() -> None:
    """235B on 4×H100: 470 GB in 16 bit don't fit; in 4 bit a batch may be large."""
    cells = {
        c.method.name: c
        for c in suite.load(Path("suites/prod.yaml")).cells
        if c.model.name.startswith("qwen3-235b") and c.target.name == "4xh100-80gb"
        and c.dataset.name == "bitext-support"
    }  # fmt: skip
    weights = roofline.weights_of(cells["qlora"], 120 * 10**9)
    assert weights and 0.9 < weights.expert_share < 1 and weights.used == 8 / 128
    assert weights.cache_bytes == 2 * 2 * 94 * 4 * 128
    found = roofline.bound(cells["qlora"], 120 * 10**9)
    assert found and found.concurrency > 32
    assert roofline.bound(cells["qlora"], None) is None
    assert roofline.bound(cells["lora"], None) is None  # 470 GB
    seven = next(c for c in suite.load(Path("suites/prod.yaml")).cells if c.method.name == "full")
    held = roofline.served_bytes(seven, 4 * seven.model.params)  # trained in fp32, served in bf16
    assert held == 2 * seven.model.params
