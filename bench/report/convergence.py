"""What it took to reach the target: each run, and all seeds of an entry together.

A run that did not reach it stays in: as "≥" in a mean, in the share that reached, and in the
restricted mean, which compares methods up to a horizon that all of them were followed to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from bench.record import Status
from bench.report import show
from bench.report.compare import Entry, Panel
from bench.report.frames import frame
from bench.report.rows import Row
from bench.score.convergence import Goal, Point, Reached, TimeToTarget, restricted
from bench.score.cost import rental

# A run that died on its way counts as one that had not arrived yet; these have nothing to count.
NO_RUN = (Status.INVALID, Status.SKIPPED)


@dataclass(frozen=True)
class Run:
    """A trained run that has a target to reach."""

    row: Row
    found: TimeToTarget

    @property
    def score_rows(self) -> int | None:
        """Validation rows that its target's score rests on; None for a loss."""
        training = self.row.training
        return training.score_rows if training and not self.found.goal.falls else None

    def taken(self, what: str) -> float | None:
        """Seconds, steps or tokens until it arrived."""
        return _of(self.found.interpolated, what)

    def without(self, what: str) -> float:
        """How far it went without arriving; one that diverged never will."""
        gone = self.row.status == Status.DIVERGED
        return math.inf if gone else _of(self.found.spent, what) or 0.0


def _of(point: Point | None, what: str) -> float | None:
    return None if point is None else float(getattr(point, what))


def followed(entry: Entry) -> list[Run]:
    """The runs of an entry that were trained, and have a target to reach."""
    return [
        Run(row, row.convergence)
        for row in entry.rows
        if row.convergence
        and row.convergence.goal.value is not None
        and row.convergence.spent
        and row.outcome not in NO_RUN
    ]


def table(panel: Panel) -> pd.DataFrame:
    """One line an entry, all seeds together."""
    lines = []
    for entry in panel.entries:
        trained = [row for row in entry.rows if row.training]
        if not entry.cell.method.trains or not trained or not (entry.good or followed(entry)):
            continue
        lines.append(_names(entry) | _losses(entry) | _together(panel, entry))
    return frame(lines)


def _losses(entry: Entry) -> dict[str, str]:
    trainings = [row.training for row in entry.good if row.training]
    return {
        "status": entry.status,
        "first loss": _mean([one.first_validation for one in trainings]),
        "last loss": _mean([one.last_validation for one in trainings]),
    }


def _together(panel: Panel, entry: Entry) -> dict[str, str]:
    runs = followed(entry)
    goals = [row.convergence.goal for row in entry.rows if row.convergence]
    met = [run for run in runs if run.found.reached]
    hours = "GPU-hours" if entry.cell.target.device == "cuda" else "device-hours"
    seconds = _reached(runs, "train_s")
    return {
        "target": _target(goals),
        "reached": f"{len(met)} of {len(runs)}" if runs else show.NONE,
        "to target, s": _taken(runs, "train_s"),
        "steps": _taken(runs, "step"),
        "tokens": _taken(runs, "tokens"),
        hours: _least(seconds, _device_hours(entry, seconds.restricted_mean) if seconds else None),
        "USD": _usd(entry, seconds),
        "restricted mean, s": _restricted(runs, horizon(panel, entry)),
    }


def horizon(panel: Panel, entry: Entry) -> float | None:
    """Training seconds up to which every method of this model was followed; None: all runs of all
    methods reached the target, and nothing is cut off."""
    ends = []
    for other in panel.entries:
        runs = followed(other) if other.model == entry.model else []
        taken, censored = _times(runs, "train_s")
        ended = [seconds for seconds in censored if seconds < math.inf]
        if ended and max(ended) >= max(taken, default=0.0):
            ends.append(max(ended))
    return min(ends, default=None)


def _times(runs: Sequence[Run], what: str) -> tuple[list[float], list[float]]:
    """What those took that reached the target, and how far the others went."""
    taken = [value for run in runs if (value := run.taken(what)) is not None]
    return taken, [run.without(what) for run in runs if run.taken(what) is None]


def _reached(runs: Sequence[Run], what: str, until: float | None = None) -> Reached | None:
    return restricted(*_times(runs, what), until)


def _taken(runs: Sequence[Run], what: str) -> str:
    """`34 (30 to 40)`: interpolated, between the evaluations around it; `≥ 34` where some run did
    not arrive; `not in 50` where none did."""
    found = _reached(runs, what)
    if found is None:
        return show.NONE
    if not found.reached:
        return f"not in {show.number(found.restricted_mean)}"
    if found.reached < found.n:
        return f"≥ {show.number(found.restricted_mean)}"
    low = fmean(_of(run.found.missed or run.found.reached, what) or 0.0 for run in runs)
    high = fmean(_of(run.found.reached, what) or 0.0 for run in runs)
    return f"{show.number(found.restricted_mean)} ({show.between(low, high)})"


def _least(found: Reached | None, value: float | None) -> str:
    """A mean over seeds, `≥` where some did not arrive."""
    if found is None or value is None:
        return show.NONE
    return ("" if found.reached == found.n else "≥ ") + show.number(value)


def _device_hours(entry: Entry, seconds: float) -> float:
    target = entry.cell.target
    return seconds / 3600 * target.devices * target.nodes


def _usd(entry: Entry, seconds: Reached | None) -> str:
    """With the range of the price."""
    if seconds is None:
        return show.NONE
    target = entry.cell.target
    found = rental(
        seconds.restricted_mean, target.price, devices=target.devices, nodes=target.nodes
    )
    return f"{_least(seconds, found.usd)} ({show.between(found.low_usd, found.high_usd)})"


def _restricted(runs: Sequence[Run], until: float | None) -> str:
    found = _reached(runs, "train_s", until)
    if found is None:
        return show.NONE
    bounds = show.between(found.low, found.high)
    cut = "" if until is None else f", cut at {show.number(until)}"
    return show.number(found.restricted_mean) + (f" ({bounds})" if bounds else "") + cut


def _target(goals: Sequence[Goal]) -> str:
    """`loss ≤ 1.6`, `intent.f1 ≥ 0.8`, or why there is none."""
    found = dict.fromkeys(goal_text(goal) for goal in goals)
    return "; ".join(found) or show.NONE


def goal_text(goal: Goal) -> str:
    if goal.value is None:
        return f"none: {goal.reason}"
    name, sign = ("loss", "≤") if goal.falls else (goal.measure, "≥")
    return f"{name} {sign} {show.number(goal.value)}"


# ---------------------------------------------------------------- each run


def runs(panel: Panel) -> pd.DataFrame:
    """One line a run: between which evaluations it arrived, or how far it went without."""
    return frame(_run(entry, run) for entry in panel.entries for run in followed(entry))


def _run(entry: Entry, run: Run) -> dict[str, str]:
    found = run.found
    at = found.interpolated or found.spent
    assert at is not None  # chosen by followed
    target = entry.cell.target
    usd = rental(at.train_s, target.price, devices=target.devices, nodes=target.nodes)
    return _names(entry) | {
        "seed": str(run.row.cell.seed),
        "status": run.row.outcome,
        "target": goal_text(found.goal),
        "reached": "yes" if found.reached else found.reason or "no",
        "missed at, s": show.number(found.missed.train_s if found.missed else None),
        "met at, s": show.number(found.reached.train_s if found.reached else None),
        "interpolated, s": show.number(at.train_s if found.reached else None),
        "spent without, s": show.number(None if found.reached else at.train_s),
        "steps": show.number(at.step),
        "tokens": show.number(at.tokens),
        "device-hours": show.number(_device_hours(entry, at.train_s)),
        "USD": f"{show.number(usd.usd)} ({show.between(usd.low_usd, usd.high_usd)})",
        "validation rows": show.count(run.score_rows),
    }


def _names(entry: Entry) -> dict[str, str]:
    return {"model": entry.model, "method": entry.method}


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return show.number(fmean(known) if known else None)


def notes(panels: Sequence[Panel]) -> Iterator[str]:
    """How to read the tables, where there is a target."""
    every = [one for panel in panels for entry in panel.entries for one in followed(entry)]
    if not every:
        return
    yield (
        "To target: training seconds, evaluations off the clock, on the straight line between the "
        "last evaluation that missed it and the first that met it; in brackets those two as "
        "measured (means over seeds). ≥: some seed did not arrive, so the mean is at least this; "
        "it counts with all that it spent. Restricted mean: what a run spends on average if it is "
        "stopped at the shown second, arrived or not, the same for all methods of a model, with a "
        "95 % interval over seeds (Kaplan–Meier; none of one seed)."
    )
    rows = sorted({run.score_rows for run in every if run.score_rows is not None})
    if rows:
        yield (
            f"Scores on the way rest on {show.listed([str(n) for n in rows], 'or')} validation "
            "rows: the first that meets the target may owe it to luck."
        )
