from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.record import StepEvent
from bench.score.throughput import padded_batch, padding_share, throughput, without_evaluation

from .made import quickly, step


def test_golden_protocol() -> None:
    seconds = [9.0, 2.0, 0.8, 0.8, 4.8, 0.8, 0.8]
    steps = [step(i, s) for i, s in enumerate(seconds)]
    found = throughput(without_evaluation(steps, {4: 4.0}), warmup_steps=2, devices=2)
    assert found.tokens_per_s == found.low == found.high == found.overall_tokens_per_s == 2560
    assert found.tokens_per_s_per_device == 1280
    assert found.supervised_tokens_per_s == 1280
    assert found.sequences_per_s == 5
    assert found.step_s == 0.8
    assert found.n_steps == 5 and found.unstable is None


def test_a_stall_moves_the_sum_and_is_named() -> None:
    steps = [step(i, s) for i, s in enumerate([0.8, 0.8, 4.8, 0.8, 0.8])]
    found = throughput(steps)
    assert found.tokens_per_s == 2560
    assert found.overall_tokens_per_s == 1280
    assert "-50% off the median step" in (found.unstable or "")


def test_padding() -> None:
    assert padded_batch([7, 12, 33, 48]) == (100, 192)
    assert padding_share(100, 192) == pytest.approx(0.479167, abs=1e-6)
    assert padding_share(0, 0) is None and padded_batch([]) == (0, 0)
    steps = [step(i, 1.0, 100, padded_tokens=192) for i in range(3)]
    assert throughput(steps).padding_share == pytest.approx(0.479167, abs=1e-6)


def test_too_few_steps() -> None:
    found = throughput([step(1, 1.0), step(2, 1.0)], warmup_steps=1)
    assert found.n_steps == 1 and found.tokens_per_s == 2048
    assert found.low is None and found.spread is None
    assert found.unstable == "1 counted step, 3 needed"
    none = throughput([], warmup_steps=2)
    assert none.tokens_per_s is None and none.padding_share is None and none.unstable


def test_spread_and_trend_are_named() -> None:
    wild = throughput([step(i, s) for i, s in enumerate([1, 2, 1, 2, 1, 2])])
    assert "spread" in (wild.unstable or "")
    slowing = throughput([step(i, 1 + 0.04 * i) for i in range(10)])
    assert "slower than the first" in (slowing.unstable or "")
    assert throughput([step(i, 1 + 0.001 * (i % 3)) for i in range(10)]).unstable is None


def test_warmup_goes_by_position() -> None:
    """A resumed attempt starts at step 51, and warms up again; events may be out of order."""
    steps = [step(53, 0.5), step(51, 9.0), step(52, 9.0), step(54, 0.5), step(55, 0.5)]
    assert throughput(steps, warmup_steps=2).tokens_per_s == 4096


@quickly
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_interval_holds_the_median(seconds: list[float], random: object) -> None:
    found = throughput([step(i, s) for i, s in enumerate(seconds)])
    assert found.tokens_per_s is not None
    assert 2048 / max(seconds) - 1 <= found.tokens_per_s <= 2048 / min(seconds) + 1
    if found.low is not None and found.high is not None:
        assert found.low <= found.tokens_per_s <= found.high


def test_memory_that_grows_is_a_leak() -> None:
    def held(bytes_: list[int]) -> list[StepEvent]:
        return [step(i, 1.0, allocated_bytes=b) for i, b in enumerate(bytes_)]

    assert throughput(held([100] * 8)).unstable is None
    leaking = throughput(held([100 + 10 * i for i in range(8)])).unstable
    assert leaking == "GPU memory held after a step grew by 35%"
    assert throughput(held([100, 200, 300])).unstable is None  # too few to tell
