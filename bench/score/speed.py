"""Is one cell faster than another, and how long would an epoch take?

A ratio of two medians, with an interval over steps, and only between speeds that were taken alike:
`unlike` says what forbids it.  Steps follow each other in time (a noisy neighbour slows several in
a row), so blocks of steps are drawn, not single ones (circular block bootstrap, Politis and Romano
1992; block length n^(1/3), Hall, Horowitz and Jing 1995).

Known limit: the interval holds the noise of steps *within* these runs.  Another start of the same
cell may differ by more; only repetitions (seeds) show that.

    python -m pytest tests/score/test_speed.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from bench.record import Environment, StepEvent
from bench.score.resample import RESAMPLES, SEED, FloatArray, known, percentile_interval

# What a step runs through; other packages (rouge_score, datasets …) can't change its speed.
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes")


class Interval(BaseModel):
    """A value, its 95 % interval, and the number of steps that it rests on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    low: float | None
    high: float | None
    n_steps: tuple[int, ...]


# ---------------------------------------------------------------- may they be compared?


@dataclass(frozen=True)
class Setting:
    """What a speed was taken under."""

    environment: Environment | None
    threads: int | None
    protocol: int | None


def unlike(a: Setting, b: Setting) -> list[str]:
    """Why two speeds may not be compared; empty if they may."""
    if a.environment is None or b.environment is None:
        return ["a cell's machine wasn't recorded"]
    one, two = a.environment, b.environment
    pairs = {
        "GPUs": (_gpus(one), _gpus(two)),
        "CPU": (f"{one.cpu}, {one.cpu_cores} cores", f"{two.cpu}, {two.cpu_cores} cores"),
        "driver": (one.driver, two.driver),
        "CUDA": (one.cuda, two.cuda),
        "threads": (a.threads, b.threads),
        "timing protocol": (a.protocol, b.protocol),
        **{name: (one.packages.get(name), two.packages.get(name)) for name in PACKAGES},
    }
    found = [
        f"{name}: {_told(left)} against {_told(right)}"
        for name, (left, right) in pairs.items()
        if left != right
    ]
    shared = max(_parallel(one), _parallel(two))
    return found + ([f"{shared} cells shared the machine"] if shared > 1 else [])


def _parallel(environment: Environment) -> int:
    """Cells that ran at once: first records could say so, today's runner knows only one."""
    return int((environment.model_extra or {}).get("parallel_cells", 1))


def _gpus(environment: Environment) -> str:
    names = environment.gpus
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "none"


def _told(value: object) -> str:
    return "unknown" if value is None else str(value)


# ---------------------------------------------------------------- ratio and epoch


def ratio(a: Sequence[FloatArray], b: Sequence[FloatArray]) -> Interval | None:
    """How many times faster A is: mean over runs of A's median rate ÷ B's.

    One array of step rates for each run (seed).  None where a side has no step.
    """
    one, two = ([run for run in side if len(run)] for side in (a, b))
    if not one or not two:
        return None
    bottom = _mean_median(two)
    if not bottom:
        return None
    low, high = None, None
    if min(map(len, [*one, *two])) > 1:
        generator = np.random.default_rng(SEED)
        low, high = percentile_interval(_drawn(one, generator) / _drawn(two, generator)) or (
            None,
            None,
        )
    return Interval(
        value=known(_mean_median(one) / bottom) or 0.0,
        low=low,
        high=high,
        n_steps=(sum(map(len, one)), sum(map(len, two))),
    )


def _mean_median(runs: Sequence[FloatArray]) -> float:
    return float(np.mean([np.median(run) for run in runs]))


def _drawn(runs: Sequence[FloatArray], generator: np.random.Generator) -> FloatArray:
    """The mean of the runs' medians in each resample."""
    medians = [np.median(run[block_draws(len(run), generator)], axis=1) for run in runs]
    return np.asarray(np.mean(medians, axis=0), dtype=np.float64)


def block_draws(n: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Indices of resamples of n steps, made of blocks of neighbours (the last joins the first)."""
    length = max(1, round(n ** (1 / 3)))
    starts = generator.integers(0, n, size=(RESAMPLES, -(-n // length)))
    index = (starts[:, :, None] + np.arange(length)) % n
    return np.asarray(index.reshape(RESAMPLES, -1)[:, :n], dtype=np.int64)


def epoch_s(steps: Sequence[StepEvent], rows: int | None) -> Interval | None:
    """Predicted step seconds for `rows` training rows: rows × Σ seconds ÷ Σ sequences.

    Sums, not medians: an epoch holds its slow steps too.  Evaluation, loading and saving come on
    top.  None without steps or where the number of rows is unknown.
    """
    sequences = np.array([event.sequences for event in steps], dtype=np.float64)
    seconds = np.array([event.seconds for event in steps], dtype=np.float64)
    if rows is None or not sequences.sum():
        return None
    low, high = None, None
    if len(steps) > 1:
        index = block_draws(len(steps), np.random.default_rng(SEED))
        drawn = rows * seconds[index].sum(axis=1) / sequences[index].sum(axis=1)
        low, high = percentile_interval(drawn) or (None, None)
    value = known(rows * float(seconds.sum() / sequences.sum())) or 0.0
    return Interval(value=value, low=low, high=high, n_steps=(len(steps),))
