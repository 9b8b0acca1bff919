"""A suite's cells, one after another; whatever is finished is never run again.

What happens to a cell when its suite is run again:

    finished (ok, invalid, skipped, diverged, timeout, out of memory)   left alone
    killed, error                    the phase is tried again; the old record is kept beside it
    interrupted while training       a new attempt; with `checkpoint_every`, the same one goes on
    interrupted while generating     the same attempt goes on with the rows that are missing
    interrupted while serving        the phase is measured anew, while the trained weights are there
    `serve` added or changed later   measured where the weights are still there, else skipped: it is
                                     no part of the cell's id, so nothing is trained again for it
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench import cache, environment, store
from bench.plan import Plan
from bench.record import PhaseRecord, ServeRecord, Status
from bench.run import gpus, launch, planning, probe, process
from bench.run.progress import Progress
from bench.spec import Cell


@dataclass(frozen=True)
class Finished:
    """How a cell stands."""

    cell: Cell
    status: Status
    reason: str | None
    serving: Status | None = None  # of its serve phase, which doesn't change `status`


def phases(cell: Cell) -> tuple[str, ...]:
    """Serving comes last: what it says changes nothing about the cell's quality."""
    made = ("train", "generate") if cell.method.trains else ("generate",)
    return (*made, "serve") if cell.serve else made


@dataclass(frozen=True)
class Run:
    """How to run cells."""

    results: Path
    progress: Progress
    fresh: bool = False
    anyway: bool = False  # run what a plan says won't fit


def run_suite(cells: Sequence[Cell], how: Run) -> list[Finished]:
    """Run every cell that isn't finished, in order.  Interrupts go up to the caller."""
    todo = [cell for cell in cells if _wanted(cell, how)]
    for cell in cells:
        _note(cell, how.results)
    how.progress.begin(total=len(cells), done=len(cells) - len(todo))
    for cell in todo:
        how.progress.cell_begins(cell)
        record = run_cell(cell, how)
        how.progress.cell_ends(cell, record)
    return [state for cell in cells if (state := finished(cell, how.results, retry=False))]


def check_keys(cells: Sequence[Cell], results: Path, fresh: bool) -> None:
    """Before hours or money are spent: the keys of the APIs that will be asked are there.

    Raises UserError.
    """
    for cell in cells:
        asked = cell.model.endpoint and cell.method.needs_model
        if asked and (fresh or finished(cell, results) is None):
            environment.api_key(cell.model)


def _note(cell: Cell, results: Path) -> None:
    """A corrected price, title or margin reaches the report without a new run."""
    path = store.cell_folder(results, cell) / "cell.json"
    written = store.read_record(Cell, path)
    if written is not None and written != cell:
        store.write_json(path, cell)


def _wanted(cell: Cell, how: Run) -> bool:
    state = finished(cell, how.results)
    return how.fresh or state is None or (how.anyway and state.status is Status.SKIPPED)


def run_cell(cell: Cell, how: Run) -> PhaseRecord:
    """Run the phases of one cell that are missing; returns the last record."""
    folder = store.cell_folder(how.results, cell)
    plan = planning.read(how.results, cell)
    decision, reason = planning.decide(plan)
    with store.lock(folder):
        store.write_json(folder / "cell.json", cell)
        if decision is planning.Decision.REFUSE and not how.anyway:
            return _skip(cell, store.new_attempt(folder), reason)
        if cell.method.needs_model and not cache.ready(cell.model):
            how.progress.console.print(f"making {cell.model.name}, once", markup=False)
            process.prepare(folder / "cell.json")  # fails? then the phase says so, in its record
        attempt = None if how.fresh else _resumable(cell, folder)
        attempt = attempt or store.new_attempt(folder)
        cell = _placed(cell, plan, attempt)
        unsure = decision is planning.Decision.PROBE and cell.method.trains
        if unsure and _record(attempt, "train") is None and not _checkpointed(attempt):
            failed = probe.probe(cell, attempt, how.progress.phase_begins(cell, "probe"))
            if failed is not None:
                return failed
        for phase in phases(cell):
            record = _phase(cell, attempt, phase, how)
            if record.status is not Status.OK:
                break
        if record.status.final:
            for one in store.attempt_folders(folder):
                shutil.rmtree(cache.checkpoints(one), ignore_errors=True)
            if not cell.budget.keep_weights:
                shutil.rmtree(cache.trained(attempt), ignore_errors=True)
        return record


def _placed(cell: Cell, plan: Plan | None, attempt: Path) -> Cell:
    """The cell with the strategy that `auto` means here, kept in the attempt: the worker reads it.

    An attempt that goes on keeps the strategy that it began with.
    """
    if cell.strategy.name != "auto":
        return cell
    begun = store.read_record(Cell, attempt / "cell.json")
    strategy = begun.strategy if begun else planning.resolved(cell, plan)
    placed = Cell.model_validate({**cell.model_dump(), "strategy": strategy.model_dump()})
    store.write_json(attempt / "cell.json", placed)
    return placed


def _skip(cell: Cell, attempt: Path, reason: str) -> PhaseRecord:
    """A result without a run: nobody's hours are spent on what is predicted not to fit."""
    phase = phases(cell)[0]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record = launch.KINDS[phase].model_validate(
        {"phase": phase, "status": "skipped", "reason": reason, "started_at": now, "wall_s": 0.0}
    )
    store.write_json(attempt / f"{phase}.json", record)
    return record


def _phase(cell: Cell, attempt: Path, phase: str, how: Run) -> PhaseRecord:
    """The phase's final record, or the one that running it leaves."""
    record = _record(attempt, phase)
    if record and record.status.final and not _asks_otherwise(cell, record):
        return record
    _supersede(attempt, phase)
    for name in ("events.jsonl", "predictions.jsonl", gpus.FILE):
        store.cut_torn_line(attempt / name)
    follow = how.progress.phase_begins(cell, phase)
    return launch.run_phase(cell, attempt, phase, follow)


def finished(cell: Cell, results: Path, *, retry: bool = True) -> Finished | None:
    """The cell's result; None where something is left to do.

    With `retry`, killed and error count as something to do.
    """
    attempts = store.attempt_folders(store.cell_folder(results, cell))
    if not attempts:
        return None
    serving = None
    for phase in phases(cell):
        record = _record(attempts[-1], phase)
        if record is None or (retry and not record.status.final) or _asks_otherwise(cell, record):
            return None
        if phase == "serve":
            serving = record.status
        elif record.status is not Status.OK:
            return Finished(cell, record.status, record.reason)
    return Finished(cell, Status.OK, None, serving)


def _asks_otherwise(cell: Cell, record: PhaseRecord) -> bool:
    """Serving was measured with other settings than the suite asks for now."""
    if not isinstance(record, ServeRecord) or cell.serve is None:
        return False
    return bool(record.settings) and record.settings != cell.serve.identity()


def _resumable(cell: Cell, folder: Path) -> Path | None:
    """The last attempt, where what it has is worth going on with."""
    attempts = store.attempt_folders(folder)
    if not attempts:
        return None
    last = attempts[-1]
    first = _record(last, phases(cell)[0])
    if first is not None and first.status is Status.SKIPPED:
        return None
    return last if not cell.method.trains or _goes_on(cell, last) else None


def _goes_on(cell: Cell, attempt: Path) -> bool:
    """Whether a trained method's attempt has what its next phase needs."""
    generated = _record(attempt, "generate")
    if generated is not None and generated.status is Status.OK:
        return True  # serving alone is missing; without its weights it says so
    trained = _record(attempt, "train")
    if trained is None or not trained.status.final:
        return bool(cell.budget.checkpoint_every) and _checkpointed(attempt)
    return trained.status is Status.OK and cache.trained(attempt).is_dir()


def _checkpointed(attempt: Path) -> bool:
    return store.checkpoint(attempt, cache.checkpoints(attempt)) is not None


def _record(attempt: Path, phase: str) -> PhaseRecord | None:
    """A phase's record; composed from its events where the runner died before writing it."""
    path = attempt / f"{phase}.json"
    if not path.exists() and launch.left_last_word(attempt, phase):
        store.write_json(path, launch.compose(attempt, phase, None))
    return store.read_record(launch.KINDS[phase], path)


def _supersede(attempt: Path, phase: str) -> None:
    """Keep the record of a killed or failed try beside the one to come."""
    path = attempt / f"{phase}.json"
    if path.exists():
        number = len(list(attempt.glob(f"{phase}.[0-9]*.json"))) + 1
        path.rename(attempt / f"{phase}.{number}.json")
