from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.record import GpuReading, GpuSample
from bench.score.energy import energy_of_steps, phase_j, used_j
from bench.score.throughput import throughput

from .made import quickly, step


def sample(t: float, *joules: float | None, phase: str = "train", **more: object) -> GpuSample:
    """A sample of a phase that began at 100; one GPU for each amount of energy."""
    values = {"readings": 2, "utilization": 0.5, "temperature_c": 60.0, **more}
    devices = [GpuReading.model_validate({"energy_j": j, **values}) for j in joules]
    return GpuSample(phase=phase, since=float(more.pop("since", 100)), t=t, devices=devices)  # type: ignore[arg-type]


# Two GPUs of 100 W and 300 W.
STEADY = [sample(100.0 + s, 100.0 * s, 300.0 * s) for s in range(0, 101, 10)]


def at(number: int, end: float, seconds: float = 2.0, tokens: int = 1000) -> object:
    return step(number, seconds, tokens).model_copy(update={"t": end})


def test_a_step_has_what_the_line_gained_while_it_ran() -> None:
    assert used_j(STEADY, 113.0, 115.5) == pytest.approx(400 * 2.5)
    steps = [at(i, 110.0 + 5 * i) for i in range(10)]  # 2 s of each 5: the rest is evaluation
    found = energy_of_steps(STEADY, steps)  # type: ignore[arg-type]
    assert found is not None and found.n_steps == 10
    assert found.joules == pytest.approx(8000) and found.power_w == pytest.approx(400)
    # 8,000 J = 2.222 Wh for 10,000 tokens
    assert found.wh_per_million_tokens == pytest.approx(222.22, abs=0.01)
    assert found.low == pytest.approx(222.22, abs=0.01) == found.high
    assert found.utilization == 0.5 and found.temperature_c == 60 and found.trouble is None


def test_steps_outside_the_samples_are_left_out_not_guessed() -> None:
    assert used_j(STEADY, 99.0, 101.0) is None and used_j(STEADY, 199.0, 201.0) is None
    found = energy_of_steps(STEADY, [at(1, 102.0), at(2, 300.0)])  # type: ignore[list-item]
    assert found is not None and found.n_steps == 1
    assert energy_of_steps([], [at(1, 102.0)]) is None  # type: ignore[list-item]


def test_a_silent_device_makes_the_sum_unknown() -> None:
    silent = [sample(t, j, None) for t, j in ((100, 0.0), (110, 10.0))]
    assert used_j(silent, 102, 104) is None and phase_j(silent, "train") is None
    assert energy_of_steps(silent, [at(1, 104.0)]) is None  # type: ignore[list-item]


def test_a_phase_that_was_started_again_counts_twice() -> None:
    again = [s.model_copy(update={"since": 500.0, "t": s.t + 400}) for s in STEADY]
    assert phase_j(STEADY, "train") == 40_000
    assert phase_j([*STEADY, *again], "train") == 80_000
    assert phase_j(STEADY, "generate") is None
    assert used_j([*STEADY, *again], 513, 515) == pytest.approx(800)
    assert used_j([*STEADY, *again], 190, 510) is None  # between two processes


def test_heat_makes_a_speed_unstable() -> None:
    hot = [sample(100.0 + s, 100.0 * s, slowed={"heat": 1, "power cap": 2}) for s in range(12)]
    steps = [at(i, 102.0 + i, 1.0) for i in range(8)]
    found = energy_of_steps(hot, steps)  # type: ignore[arg-type]
    assert found is not None and found.slowed == {"heat": 0.5, "power cap": 1.0}
    assert found.trouble == "heat held the clocks back in 50% of readings"
    assert throughput(steps, trouble=found.trouble).unstable == found.trouble  # type: ignore[arg-type]


@quickly
@given(
    st.lists(st.floats(0, 500), min_size=2, max_size=12),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
)
def test_parts_add_up_and_more_time_never_takes_less(watts: list[float], cuts: list[float]) -> None:
    total, samples = 0.0, [sample(100.0, 0.0)]
    for index, power in enumerate(watts, start=1):
        total += power
        samples.append(sample(100.0 + index, total))
    moments = sorted(100 + cut * len(watts) for cut in [0.0, *cuts, 1.0])
    pairs = itertools.pairwise(moments)
    parts = [used_j(samples, start, end) or 0.0 for start, end in pairs]
    assert sum(parts) == pytest.approx(total) and min(parts) >= 0
