"""A short run of the longest batches, where a plan leaves open whether a cell fits.

It is the cell's own train phase on its longest rows, in a folder of its own, so that an
out-of-memory shows in minutes.  What it took counts as time of the train phase.
"""

from __future__ import annotations

from pathlib import Path

from bench import store
from bench.record import Status, TrainRecord
from bench.run import launch
from bench.run.watch import OnEvent
from bench.spec import Cell

FOLDER = "probe"  # beside train.json
STEPS = 2  # the second one has the optimizer's states


def probe(cell: Cell, attempt: Path, on_event: OnEvent) -> TrainRecord | None:
    """None where it went well; else the record that the cell's train phase would have had."""
    folder = attempt / FOLDER
    folder.mkdir(exist_ok=True)
    store.write_json(folder / "cell.json", probing(cell))
    record = launch.run_phase(probing(cell), folder, "train", on_event)
    assert isinstance(record, TrainRecord)
    if record.status is Status.OK:
        return None
    record.reason = f"in a probe of the longest batches: {record.reason}"
    store.write_json(attempt / "train.json", record)
    return record


def probing(cell: Cell) -> Cell:
    """The cell with a budget of two steps on its longest rows."""
    short = {"max_steps": STEPS, "epochs": None, "probe": True, "score_rows": None}
    budget = {**cell.budget.model_dump(), **short}
    return Cell.model_validate({**cell.model_dump(), "budget": budget})
