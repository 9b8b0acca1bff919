"""Speed ratios: only of like with like, and as sure as the steps allow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.record import Environment
from bench.score.speed import Setting, block_draws, epoch_s, ratio, unlike

from .made import quickly, step

MACHINE = Environment(
    hostname_hash="a", os="Linux", python="3.11", cpu="EPYC", cpu_cores=8, ram_bytes=1,
    gpus=["H100", "H100"], driver="550", cuda="12.4", packages={"torch": "2.8.0"},
)  # fmt: skip


def setting(threads: int = 8, protocol: int = 1, **fields: object) -> Setting:
    machine = Environment.model_validate(MACHINE.model_dump() | fields)
    return Setting(machine, threads, protocol)


def test_the_same_kind_of_machine_may_be_another_one() -> None:
    other = setting(hostname_hash="b", load_average=3.0, git_commit="f00", ram_bytes=2)
    assert unlike(setting(), other) == []


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (setting(gpus=["H100"]), "GPUs: 2 × H100 against 1 × H100"),
        (setting(gpus=[]), "GPUs: 2 × H100 against none"),
        (setting(cpu="Xeon"), "CPU: EPYC, 8 cores against Xeon, 8 cores"),
        (setting(driver=None), "driver: 550 against unknown"),
        (setting(packages={"torch": "2.9.0"}), "torch: 2.8.0 against 2.9.0"),
        (setting(threads=4), "threads: 8 against 4"),
        (setting(protocol=2), "timing protocol: 1 against 2"),
        (setting(parallel_cells=2), "2 cells shared the machine"),
        (Setting(None, 8, 1), "a cell's machine wasn't recorded"),
    ],
)
def test_unlike_speeds_say_why(other: Setting, why: str) -> None:
    assert unlike(setting(), other) == [why]


def test_cells_that_shared_a_machine_alike_are_not_compared_either() -> None:
    shared = setting(parallel_cells=2)
    assert unlike(shared, shared) == ["2 cells shared the machine"]


def test_ratio_of_medians() -> None:
    found = ratio([np.array([100.0, 300.0, 200.0])], [np.array([50.0, 100.0, 1000.0])])
    assert found and found.value == 2.0
    assert found.n_steps == (3, 3)
    assert found.low is not None and found.high is not None and found.low <= 2 <= found.high


@quickly
@given(st.lists(st.floats(1, 1000), min_size=1, max_size=30), st.floats(0.1, 10))
def test_a_steady_factor_is_found_whatever_the_rates(rates: list[float], factor: float) -> None:
    run = np.array(rates)
    found = ratio([run * factor], [run])
    assert found and found.value == pytest.approx(factor)


def test_ratio_without_steps_is_unknown() -> None:
    assert ratio([], [np.array([1.0])]) is None
    assert ratio([np.array([])], [np.array([1.0])]) is None
    one = ratio([np.array([2.0])], [np.array([1.0])])
    assert one and (one.value, one.low, one.high) == (2.0, None, None)


def test_the_interval_covers_the_true_ratio() -> None:
    """100 pairs of runs, 40 steps each; a 95 % interval misses about 5 times, 14 is too many."""
    missed = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        found = ratio([1.15 * rng.normal(100, 10, 40)], [rng.normal(100, 10, 40)])
        assert found and found.low is not None and found.high is not None
        missed += not found.low <= 1.15 <= found.high
    assert missed <= 14


def test_slow_stretches_widen_the_interval() -> None:
    """The same rates, once mixed, once with all slow steps in a row: less is known then."""
    rng = np.random.default_rng(0)
    stretch = np.concatenate([rng.normal(100, 2, 32), rng.normal(60, 2, 32)])
    steady = [rng.normal(100, 2, 64)]
    mixed, in_a_row = ratio([rng.permutation(stretch)], steady), ratio([stretch], steady)
    assert mixed and in_a_row and mixed.low and mixed.high and in_a_row.low and in_a_row.high
    assert in_a_row.high - in_a_row.low > mixed.high - mixed.low


def test_blocks_are_neighbours_and_fill_the_sample() -> None:
    index = block_draws(27, np.random.default_rng(0))
    assert index.shape[1] == 27
    assert ((index[:, 1] - index[:, 0]) % 27 == 1).all()
    assert set(np.unique(index)) == set(range(27))


def test_an_epoch_holds_its_slow_steps() -> None:
    steps = [step(1, 1.0), step(2, 1.0), step(3, 4.0)]  # 12 sequences in 6 s
    found = epoch_s(steps, 1200)
    assert found and found.value == 600.0
    assert found.low is not None and found.high is not None and found.low < 600 < found.high
    assert epoch_s(steps, None) is None
    assert epoch_s([], 10) is None
