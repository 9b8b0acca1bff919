"""results/ → one `Row` a cell: every number that a table or chart prints, and where it came from.

Pure arithmetic on what `bench/store.py` reads and `bench/score/` computes.  A value that isn't
there is None, with its reason where there is one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from bench.errors import UserError
from bench.record import ApiPrediction, Audit, Environment, Status, TrainRecord
from bench.report.apis import Asked
from bench.report.apis import asked as asked_of
from bench.report.measures import (
    Answers,
    Peak,
    Training,
    cost_of,
    job_kwh,
    peaks_of,
    quality_of,
    training_of,
)
from bench.report.parallel import mapped
from bench.report.plans import Planned
from bench.report.plans import read as read_plan
from bench.report.serving import Served
from bench.report.serving import of as served_of
from bench.score.convergence import LOSS, TimeToTarget, best_of, goal_of, time_to_target
from bench.score.cost import Cost, api_cost
from bench.score.quality import External, Quality
from bench.spec import Cell
from bench.store import Attempt, CellResult

NOT_RUN = "not run"
PLANNED = "planned"  # predicted, and never begun: no failure
PHASES = ("train", "generate")
COUNTERS = ("reserved", "allocated", "device", "host", "host_above_baseline")


@dataclass(frozen=True)
class Row:
    """All that is known of one cell, from its latest attempt that left a record."""

    cell: Cell
    id: str
    attempts: int = 0
    attempt: str | None = None
    evidence: tuple[str, ...] = ()  # files, relative to the cell's folder
    status: str = NOT_RUN
    reason: str | None = None
    stage: str | None = None
    audit: Audit | None = None
    quality: Quality | None = None
    no_quality: str | None = None
    answers: Answers | None = None
    training: Training | None = None
    convergence: TimeToTarget | None = None
    peaks: tuple[Peak, ...] = ()
    wall_s: dict[str, float] = field(default_factory=dict)  # by phase
    stage_s: dict[str, dict[str, float]] = field(default_factory=dict)
    cost: Cost | None = None
    kwh: float | None = None  # of the GPUs, all phases
    environments: tuple[Environment, ...] = ()
    threads: tuple[int, ...] = ()
    interruptions: int = 0
    resumed: TrainRecord | None = None  # where training went on from a checkpoint
    adapter_works: bool | None = None
    answered: tuple[int | None, int | None] = (None, None)  # test rows, of the whole split
    fingerprints: tuple[str | None, str | None] = (None, None)  # of the training and test rows
    plan: Planned | None = None
    served: Served | None = None
    asked: Asked | None = None  # what an API said and used

    @property
    def problems(self) -> list[str]:
        """Why this isn't what it is called; such a row enters no comparison."""
        found = list(self.audit.problems) if self.audit else []
        if self.adapter_works is False:
            found.append("the adapter changes no logit: it did not load")
        return found

    @property
    def comparable(self) -> bool:
        return self.status == Status.OK and not self.problems

    @property
    def failed(self) -> bool:
        return not self.comparable and self.status != PLANNED

    @property
    def outcome(self) -> str:
        """The status; `invalid` also where only the audit or the adapter says so."""
        return str(Status.INVALID) if self.status == Status.OK and self.problems else self.status

    @property
    def why(self) -> str:
        """Everything that speaks against the row, in one line."""
        return "; ".join(filter(None, [self.reason, *self.problems])) or "no reason was recorded"

    @cached_property
    def question(self) -> str:
        """What the cell asks, its seed aside: rows that share it are repetitions."""
        return _digest(_without_seed(self.cell))

    @cached_property
    def job(self) -> str:
        """What the cell asks, seed and micro-batch aside: the same updates, cut differently."""
        asked = _without_seed(self.cell)
        return _digest(asked | {"budget": asked["budget"] | {"micro_batch": None}})

    def peak(self, phase: str) -> Peak | None:
        """The stage in which the deciding counter stood highest; `process` only if no stage did."""
        device = self.cell.target.device
        counted = [(p.counted(device), p) for p in self.peaks if p.phase == phase]
        known = [(value, p.stage != "process", p) for value, p in counted if value is not None]
        return max(known, key=lambda k: k[:2])[2] if known else None

    def highest(self, phase: str, counter: Callable[[Peak], int | None]) -> int | None:
        values = [counter(p) for p in self.peaks if p.phase == phase]
        return max((v for v in values if v is not None), default=None)

    def link(self, name: str) -> str | None:
        """A file's path relative to the report's folder, if the file is there."""
        paths = (f"../{self.id}/{path}" for path in self.evidence if path.endswith(name))
        return next(paths, None)

    @property
    def trainable_share(self) -> float | None:
        return _ratio(self.audit.trainable_params, self.audit.total_params) if self.audit else None

    @property
    def quantized_share(self) -> float | None:
        return _ratio(self.audit.quantized_params, self.audit.total_params) if self.audit else None


def _without_seed(cell: Cell) -> dict[str, Any]:
    return {key: value for key, value in cell.identity().items() if key != "seed"}


def _digest(asked: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# ---------------------------------------------------------------- reading


def rows(results: list[CellResult], extra: Mapping[str, External] | None = None) -> list[Row]:
    """One row a cell, ordered by dataset, target, model, method, settings, seed.

    `extra` holds the `evaluate:…` metrics, see `bench/report/external.py`.
    """
    reached: dict[tuple[str, ...], list[float]] = {}
    made = mapped(lambda result: _readable(result, extra or {}), results)
    for row in made:
        for place, value in _bests(row):
            reached.setdefault(place, []).append(value)
    best = {place: fmean(values) for place, values in reached.items()}
    return sorted((_converged(row, best) for row in made), key=order)


def order(row: Row) -> tuple[object, ...]:
    cell = row.cell
    names = (cell.dataset.name, cell.target.name)
    size = (cell.model.params or math.inf, cell.model.name)
    settings = (cell.budget.micro_batch, row.question)
    return (*names, *size, method_order(cell), *settings, cell.seed, row.id)


def method_order(cell: Cell) -> tuple[int, str]:
    """base, full, lora, qlora, then others by name."""
    kinds = ("base", "full", "lora", "qlora")
    kind = cell.method.kind
    return (kinds.index(kind) if kind in kinds else len(kinds), cell.method.name)


def _readable(result: CellResult, extra: Mapping[str, External]) -> Row:
    """A cell's row; a damaged file makes it invalid and leaves the others alone."""
    row = Row(cell=result.cell, id=result.path.name, attempts=len(result.attempts))
    try:
        return _row(row, result, extra)
    except UserError as error:
        reason = str(error).replace(f"{result.path}/", "")
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{error.title}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return replace(row, status=str(Status.INVALID), reason=reason, stage="report")


def _row(row: Row, result: CellResult, extra: Mapping[str, External]) -> Row:
    row = replace(row, plan=read_plan(result.path))
    attempt = result.latest
    if attempt is None:
        planned = bool(row.plan and not result.attempts)
        return replace(
            row,
            status=PLANNED if planned else NOT_RUN,
            reason=_why_not_run(result),
            evidence=_evidence(row.plan, result.attempts[-1:]),
        )
    status, reason, stage = _outcome(result.cell, attempt)
    generate = attempt.generate
    training = training_of(result.cell, attempt)
    scores, answers, no_scores = quality_of(result.cell, attempt, extra)
    row = replace(
        row,
        attempt=attempt.path.name,
        evidence=_evidence(row.plan, [attempt]),
        status=status,
        reason=reason,
        stage=stage,
        audit=attempt.audit,
        quality=scores,
        no_quality=no_scores,
        answers=answers,
        training=training,
        peaks=peaks_of(attempt.phases),
        wall_s={record.phase: record.wall_s for record in attempt.phases},
        stage_s={record.phase: record.stage_s for record in attempt.phases},
        kwh=job_kwh(attempt.phases, attempt),
        cost=cost_of(result.cell, attempt.phases, training),
        environments=tuple(r.environment for r in attempt.phases if r.environment),
        threads=tuple(r.threads for r in attempt.phases if r.threads is not None),
        interruptions=sum(record.interruptions for record in attempt.phases),
        resumed=attempt.train if attempt.resumed_from_step is not None else None,
        adapter_works=generate.adapter_changes_logits if generate else None,
        answered=(generate.rows, generate.test_rows) if generate else (None, None),
        fingerprints=(
            attempt.train.rows_fingerprint if attempt.train else None,
            generate.rows_fingerprint if generate else None,
        ),
        served=served_of(result.cell, attempt),
    )
    return row if result.cell.model.endpoint is None else _of_api(row, attempt)


def _of_api(row: Row, attempt: Attempt) -> Row:
    """The machine that asked says nothing about who answered: its memory and versions stay out."""
    endpoint = row.cell.model.endpoint
    assert endpoint is not None
    answers = [p for p in attempt.predictions if isinstance(p, ApiPrediction)]
    return replace(
        row,
        cost=api_cost(endpoint.price, answers),
        asked=asked_of(answers),
        peaks=(),
        environments=(),
        threads=(),
    )


def _why_not_run(result: CellResult) -> str:
    if not result.attempts:
        return "no attempt was made"
    return f"{result.attempts[-1].path.name} was begun, but left no record of a phase"


def _evidence(plan: Planned | None, attempts: list[Attempt]) -> tuple[str, ...]:
    records = ("train.json", "generate.json", "serve.json", "audit.json")
    names = ("events.jsonl", "predictions.jsonl", *records, "log.txt", "server.txt")
    files = [a.path / name for a in attempts for name in names]
    found = [f"{path.parent.name}/{path.name}" for path in files if path.exists()]
    return (*found, *(["plan.json"] if plan else []))


def _outcome(cell: Cell, attempt: Attempt) -> tuple[str, str | None, str | None]:
    """(status, reason, stage) of the first phase that isn't ok, or of one that is missing."""
    for record in attempt.phases:
        if record.status != Status.OK:
            return str(record.status), record.reason, record.stage or record.phase
    if cell.method.trains and attempt.train is None:
        return NOT_RUN, "the train phase left no record", "train"
    if attempt.generate is None:
        return NOT_RUN, "the generate phase left no record", "generate"
    return str(Status.OK), None, None


# ---------------------------------------------------------------- convergence

# A relative target looks at the mean over seeds of one method's best losses (or scores), at the
# same model, dataset and target: with one seed's own, a lucky seed would move the line for all.


def _place(cell: Cell, measure: str, method: str | None = None) -> tuple[str, ...]:
    name = method or cell.method.name
    return (cell.model.name, cell.dataset.name, cell.target.name, measure, name)


def _bests(row: Row) -> Iterator[tuple[tuple[str, ...], float]]:
    if not row.comparable or row.training is None:
        return
    for measure, points in row.training.points.items():
        value = best_of(points, measure)
        if value is not None:
            yield _place(row.cell, measure), value


def _converged(row: Row, best: Mapping[tuple[str, ...], float]) -> Row:
    target = row.cell.converged
    if target is None or row.training is None:
        return row
    measure = LOSS if target.score is None else target.metric(row.cell.dataset)
    place = _place(row.cell, measure, target.relative_to)
    goal = goal_of(target, measure, {place[-1]: best.get(place)})
    points = row.training.points.get(measure, ())
    return replace(row, convergence=time_to_target(points, goal))
