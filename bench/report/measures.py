"""One attempt's raw facts → what `bench/score/` makes of them.

The joint between what is on disk and the pure scores: warm-up steps, devices and prices are looked
up in the cell here, so that no table or chart has to.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from bench.record import (
    Environment,
    EvaluationEvent,
    Memory,
    PhaseRecord,
    Prediction,
    ScoredEvent,
    StepEvent,
    TrainRecord,
)
from bench.score import cost, quality
from bench.score.convergence import LOSS, Point
from bench.score.energy import J_PER_WH, Energy, energy_of_steps, phase_j
from bench.score.mfu import adapter_in_use, flops_per_token, mfu, peak_flops
from bench.score.quality import External, Quality
from bench.score.resample import Sums
from bench.score.throughput import Throughput, counted_steps, throughput
from bench.spec import Cell
from bench.store import Attempt


@dataclass(frozen=True)
class Estimate:
    """A number, the bounds it lies between as far as is known, and what it rests on."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Answers:
    """Every row's counts for each built-in metric.  A key is a row's id and its true answer: the
    same key in two cells is the same row, even where the data behind an id were changed."""

    keys: tuple[str, ...]
    groups: tuple[str | None, ...]
    sums: Mapping[str, Sums]


@dataclass(frozen=True)
class Training:
    """What the step and evaluation events of an attempt say."""

    steps: int
    planned_steps: int | None
    tokens: int
    padded_tokens: int
    supervised_tokens: int
    train_s: float
    speed: Throughput
    energy: Energy | None  # of the counted steps
    mfu: float | None  # 0..1, of the counted steps
    curve: tuple[tuple[float, float], ...]  # (training seconds, loss) after each step
    validation: tuple[tuple[float, float], ...]  # (training seconds, loss) of each evaluation
    curve_tokens: tuple[int, ...] = ()  # trained on when each of `curve` was taken
    truncated_rows: int | None = None
    dropped_rows: int | None = None
    points: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)  # see `_points`
    score_rows: int | None = None  # validation rows that each score in `points` rests on
    scoring_s: float = 0.0  # what those answers took, off the clock
    counted: tuple[StepEvent, ...] = ()  # after warm-up: what speeds are taken from
    sequences: int = 0
    epoch_rows: int | None = None  # of the whole split, less what is dropped as too long
    environment: Environment | None = None
    threads: int | None = None
    timing_protocol: int | None = None

    @property
    def first_validation(self) -> float | None:
        return self.validation[0][1] if self.validation else None

    @property
    def last_validation(self) -> float | None:
        return self.validation[-1][1] if self.validation else None


@dataclass(frozen=True)
class Peak:
    """The highest a counter stood in one stage of a phase.  Bytes."""

    phase: str
    stage: str
    reserved: int | None
    allocated: int | None
    device: int | None
    host: int | None
    host_above_baseline: int | None

    def counted(self, device: str) -> int | None:
        """The counter that decides whether a run fits: reserved on a GPU."""
        return self.reserved if device == "cuda" else self.host_above_baseline


def pooled(estimates: Iterable[Estimate | None]) -> Estimate | None:
    """The mean of some estimates, within the widest of their bounds.  None of no estimates."""
    known = [(e.value, e) for e in estimates if e is not None and e.value is not None]
    if not known:
        return None
    lows = [e.low for _, e in known if e.low is not None]
    highs = [e.high for _, e in known if e.high is not None]
    return Estimate(
        value=fmean(value for value, _ in known),
        low=min(lows, default=None),
        high=max(highs, default=None),
        n=known[0][1].n,
    )


def quality_of(
    cell: Cell, attempt: Attempt, extra: Mapping[str, External]
) -> tuple[Quality | None, Answers | None, str | None]:
    """(scores, per-row counts, why there are none)."""
    predictions = attempt.predictions
    if not predictions:
        return None, None, "no predictions"
    try:
        scores, sums = quality.scored(cell.dataset, predictions, extra=extra)
    except ValueError as error:
        return None, None, f"can't be scored: {error}"
    groups = tuple(row.group for row in predictions)
    return scores, Answers(tuple(map(_key, predictions)), groups, sums), None


def _key(row: Prediction) -> str:
    truth = json.dumps(row.reference, sort_keys=True, ensure_ascii=False)
    return f"{row.id} {hashlib.sha256(truth.encode()).hexdigest()[:12]}"


def training_of(cell: Cell, attempt: Attempt) -> Training | None:
    """None where no step was recorded."""
    steps = sorted(attempt.steps, key=lambda event: event.step)
    evaluations = sorted(attempt.evaluations, key=lambda event: event.step)
    if not steps and not evaluations:
        return None
    spent = list(itertools.accumulate(event.seconds for event in steps))
    record = attempt.train
    warmup = cell.budget.timing_warmup_steps
    counted = counted_steps(steps, warmup)
    energy = energy_of_steps(attempt.gpu_samples, counted)
    speed = throughput(
        steps,
        warmup_steps=warmup,
        devices=devices(cell),
        trouble=energy.trouble if energy else None,
    )
    return Training(
        steps=len(steps),
        planned_steps=record.planned_steps if record else None,
        tokens=sum(event.tokens for event in steps),
        padded_tokens=sum(event.padded_tokens for event in steps),
        supervised_tokens=sum(event.supervised_tokens for event in steps),
        train_s=spent[-1] if spent else 0.0,
        speed=speed,
        energy=energy,
        mfu=_mfu(cell, attempt, speed, counted),
        curve=tuple(
            (second, event.loss)
            for second, event in zip(spent, steps, strict=True)
            if event.loss is not None
        ),
        validation=tuple((e.train_s, e.loss) for e in evaluations if e.loss is not None),
        curve_tokens=tuple(
            tokens
            for tokens, event in zip(
                itertools.accumulate(event.tokens for event in steps), steps, strict=True
            )
            if event.loss is not None
        ),
        truncated_rows=record.truncated_rows if record else None,
        dropped_rows=record.dropped_rows if record else None,
        points=_points(cell, attempt),
        score_rows=min((event.rows for event, _ in attempt.scored), default=None),
        scoring_s=sum(event.seconds for event, _ in attempt.scored),
        counted=tuple(counted),
        sequences=sum(event.sequences for event in steps),
        epoch_rows=_epoch_rows(record),
        environment=record.environment if record else None,
        threads=record.threads if record else None,
        timing_protocol=record.timing_protocol if record else None,
    )


def _mfu(
    cell: Cell, attempt: Attempt, speed: Throughput, counted: Sequence[StepEvent]
) -> float | None:
    """None on another machine than the target's too: its peak isn't known."""
    record, audit, target = attempt.train, attempt.audit, cell.target
    sequences = sum(event.sequences for event in counted)
    peak = peak_flops(target, cell.method)
    gpus = record.environment.gpus if record and record.environment else []
    here = [name for name in gpus if target.match and re.search(target.match, name)]
    if not (audit and peak and here and sequences and speed.tokens_per_s):
        return None
    length = sum(event.tokens for event in counted) / sequences
    model, method = cell.model, cell.method
    adapters = adapter_in_use(model, method, audit.trainable_params, audit.adapted_modules)
    flops = flops_per_token(model, method, length, adapters)
    return mfu(speed.tokens_per_s, flops, peak) if flops else None


def _points(cell: Cell, attempt: Attempt) -> dict[str, tuple[Point, ...]]:
    """What each evaluation measured, by measure: the loss, and scores where rows were answered."""
    found: dict[str, list[Point]] = {LOSS: [_point(e, e.loss) for e in attempt.evaluations]}
    for event, answers in attempt.scored:
        for name, sums in quality.statistics(cell.dataset, answers).items():
            found.setdefault(name, []).append(_point(event, sums.value()))
    return {name: tuple(sorted(p, key=lambda one: one.step)) for name, p in found.items()}


def _point(event: EvaluationEvent | ScoredEvent, value: float | None) -> Point:
    return Point(train_s=event.train_s, step=event.step, tokens=event.tokens, value=value)


def _epoch_rows(record: TrainRecord | None) -> int | None:
    """Rows that training on the whole split would use: as many are dropped as in the part run."""
    if record is None or not record.split_rows or not record.train_rows:
        return None
    kept = record.train_rows / (record.train_rows + (record.dropped_rows or 0))
    return round(record.split_rows * kept)


def job_kwh(phases: Iterable[PhaseRecord], attempt: Attempt) -> float | None:
    """Energy of all phases; None where a phase's GPUs told none."""
    joules = [phase_j(attempt.gpu_samples, record.phase) for record in phases]
    known = [value for value in joules if value is not None]
    return sum(known) / J_PER_WH / 1000 if joules and len(known) == len(joules) else None


def devices(cell: Cell) -> int:
    return cell.target.devices * cell.target.nodes


def cost_of(
    cell: Cell, phases: Iterable[PhaseRecord], training: Training | None
) -> cost.Cost | None:
    """None where no phase ran; `train` is the price of the steps alone."""
    wall_s: dict[str, float] = {record.phase: record.wall_s for record in phases}
    if not wall_s:
        return None
    ran = training is not None and training.steps > 0
    return cost.job_cost(
        wall_s,
        cell.target.price,
        # A CPU machine is rented whole, however many processes share it
        devices=cell.target.devices if cell.target.device == "cuda" else 1,
        nodes=cell.target.nodes,
        train_s=training.train_s if training and ran else None,
        tokens=training.tokens if training and ran else None,
    )


def peaks_of(phases: Iterable[PhaseRecord]) -> tuple[Peak, ...]:
    """A peak for each phase and stage; a stage without a baseline uses its phase's lowest."""
    found = []
    for record in phases:
        baselines = [m.host_baseline_bytes for m in record.memory.values()]
        baseline = min((b for b in baselines if b is not None), default=None)
        for stage, memory in sorted(record.memory.items()):
            found.append(_peak(record.phase, stage, memory, baseline))
    return tuple(found)


def _peak(phase: str, stage: str, memory: Memory, baseline: int | None) -> Peak:
    host, own = memory.host_bytes, memory.host_baseline_bytes
    baseline = baseline if own is None else own
    above = None if host is None or baseline is None else max(0, host - baseline)
    return Peak(
        phase=phase,
        stage=stage,
        reserved=memory.reserved_bytes,
        allocated=memory.allocated_bytes,
        device=memory.device_bytes,
        host=host,
        host_above_baseline=above,
    )
