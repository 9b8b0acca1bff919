"""What a person sees while a suite runs: bars with time left, or plain lines in a log file."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from bench.record import PhaseRecord, Status
from bench.spec import Cell

PLAIN_EVERY_S = 15.0
COLOURS = {Status.OK: "green", Status.SKIPPED: "yellow"}


class Progress:
    """Three bars on a terminal (suite, cell, step); a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.suite = self.bars.add_task("suite", total=None)
        self.cell = self.bars.add_task("cell", visible=False)
        self.step = self.bars.add_task("step", total=None, visible=False)
        self._total = 0
        self._done = 0
        self._said = 0.0

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, total: int, done: int) -> None:
        self._total, self._done = total, done
        self.bars.update(self.suite, total=total, completed=done)
        if done:
            self.console.print(
                f"{done} of {total} cells are finished already (--fresh runs them again)"
            )

    def cell_begins(self, cell: Cell) -> None:
        self.console.print(f"begin  {_label(cell)}", markup=False)
        phases = 1 + cell.method.trains + (cell.serve is not None)
        self.bars.reset(self.cell, total=phases, visible=True, description="cell")

    def phase_begins(self, cell: Cell, phase: str) -> Callable[[dict[str, Any]], None]:
        """Returns what takes the phase's events."""
        # A new bar: rich's reset would keep the last phase's total until this one tells its own.
        self.bars.remove_task(self.step)
        self.step = self.bars.add_task(phase, total=None)
        if phase == "probe":
            self.bars.advance(self.cell, -1)  # its end counts like a phase's
        return lambda event: self._event(f"{cell.model.name} {cell.method.name} {phase}", event)

    def _event(self, who: str, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "plan":
            self.bars.update(self.step, total=event.get("steps") or event.get("rows"))
        elif kind == "step":
            self.bars.update(self.step, completed=event["step"])
            speed = event["tokens"] / event["seconds"]
            loss = _number(event["loss"])
            self._plain(f"{who}: step {event['step']}: loss {loss}, {speed:.0f} tokens/s")
        elif kind == "evaluation":
            self._plain(f"{who}: step {event['step']}: validation loss {_number(event['loss'])}")
        elif kind == "scored":
            what = f"{event['rows']} validation rows answered in {event['seconds']:.1f} s"
            self._plain(f"{who}: step {event['step']}: {what}")
        elif kind == "generated":
            self.bars.advance(self.step, event["rows"])
            self._plain(f"{who}: {event['rows']} rows answered in {event['seconds']:.1f} s")
        elif kind == "request":
            self.bars.advance(self.step, 1)
            at_once = f"{event['concurrency']} at once"
            self._plain(f"{who}: {event['variant']}, {at_once}: {event['total_s']:.1f} s")
        elif kind == "phase_end":
            self.bars.advance(self.cell)

    def cell_ends(self, cell: Cell, record: PhaseRecord) -> None:
        self._done += 1
        self.bars.update(self.suite, completed=self._done)
        reason = f": {record.reason}" if record.reason else ""
        if record.phase == "serve" and record.status is not Status.OK:
            reason = f" in serving{reason}"  # what was trained and evaluated stays a result
        colour = COLOURS.get(record.status, "red")
        told = f"[{self._done}/{self._total}] {_label(cell)}: {record.status}{reason}"
        self.console.print(told, style=colour, markup=False)

    def _plain(self, text: str) -> None:
        """A line for logs, not more often than every few seconds."""
        now = time.monotonic()
        if not self.console.is_terminal and now - self._said >= PLAIN_EVERY_S:
            self._said = now
            self.console.print(f"       {text}", markup=False)


def _label(cell: Cell) -> str:
    parts = (cell.model, cell.method, cell.dataset, cell.target)
    return " · ".join([*(part.name for part in parts), f"seed {cell.seed}"])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
