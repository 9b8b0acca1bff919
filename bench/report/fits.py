"""Does it fit?  One `Fit` for each model × method × target, predicted beside measured.

Bytes of the worst device; on a CPU the host's, above baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from bench.report import show
from bench.report.compare import Entry, Panel
from bench.report.frames import Link, frame
from bench.report.plans import Planned
from bench.report.rows import PHASES, Row

Answer = Literal["fits", "narrow", "does not fit", "unknown"]


@dataclass(frozen=True)
class Fit:
    """Over all datasets and seeds: the largest need."""

    entries: tuple[Entry, ...]

    @property
    def cell(self) -> Row:
        return self.entries[0].rows[0]

    @property
    def rows(self) -> list[Row]:
        return [row for entry in self.entries for row in entry.rows]

    @property
    def plan(self) -> Planned | None:
        plans = [row.plan for row in self.rows if row.plan]
        return max(plans, key=lambda plan: plan.device_bytes or 0, default=None)

    @property
    def measured_bytes(self) -> int | None:
        """The deciding counter's highest, of runs that worked."""
        device = self.cell.cell.target.device
        peaks = [p for row in self.rows if row.comparable for ph in PHASES if (p := row.peak(ph))]
        counted = [peak.counted(device) for peak in peaks]
        return max((c for c in counted if c is not None), default=None)

    @property
    def capacity_bytes(self) -> int | None:
        target, budget = self.cell.cell.target, self.cell.cell.budget
        gib = (
            target.device_memory_gib
            if target.device == "cuda"
            else budget.host_memory_limit_gib or target.host_ram_gib
        )
        return None if gib is None else int(gib * show.GIB)

    @property
    def predicted_bytes(self) -> int | None:
        return self.plan.device_bytes if self.plan else None

    @property
    def ran_out(self) -> str | None:
        """Memory that a run really ran out of, with its reason."""
        lost = [row for row in self.rows if row.outcome in ("oom_gpu", "oom_host")]
        return lost[0].why if lost else None

    @property
    def answer(self) -> Answer:
        """A run decides before a plan does."""
        if self.ran_out:
            return "does not fit"
        if self.measured_bytes is not None:
            return "fits"
        if self.plan is None or self.plan.fits is None:
            return "unknown"
        if not self.plan.fits:
            return "does not fit"
        return "narrow" if any("narrow" in note for note in self.plan.notes) else "fits"

    @property
    def breaks(self) -> str:
        if self.ran_out:
            return f"ran out: {self.ran_out}"
        plan = self.plan
        if plan is None:
            return "no plan" if self.measured_bytes is None else ""
        return plan.breaks or ("; ".join(plan.notes) if plan.fits is None else "")


def fits(panels: Sequence[Panel]) -> list[Fit]:
    """One for each model × method × target that runs a model of its own, in the panels'
    order."""
    found: dict[tuple[str, str, str], list[Entry]] = {}
    for panel in panels:
        for entry in panel.entries:
            if entry.cell.method.needs_model and not entry.is_api:
                found.setdefault((entry.model, entry.method, panel.target), []).append(entry)
    return [Fit(tuple(entries)) for entries in found.values()]


def table(panels: Sequence[Panel]) -> pd.DataFrame:
    """Columns that say nothing of any are left out."""
    made = frame(_line(fit) for fit in fits(panels))
    said = [name for name in made if not made[name].astype(str).isin(["", show.NONE]).all()]
    return made[said]


def _line(fit: Fit) -> dict[str, str | Link]:
    row, plan = fit.cell, fit.plan or Planned()
    target = row.cell.target
    planned = row.link("plan.json")
    return {
        "model": row.cell.model.name,
        "method": fit.entries[0].method,
        "target": target.name,
        "fits": Link(fit.answer, planned) if planned else fit.answer,
        "predicted, GiB": _range(plan),
        "measured, GiB": show.gib(fit.measured_bytes),
        "has, GiB": show.gib(fit.capacity_bytes),
        "host predicted, GiB": show.gib(plan.host_bytes),
        "host has, GiB": show.number(target.host_ram_gib),
        "devices": str(target.devices * target.nodes),
        "strategy": plan.strategy or show.NONE,
        "micro-batch": show.count(plan.micro_batch),
        "what breaks": show.plain(fit.breaks, 200),
        "would fit with": "; ".join(plan.changes[:2]),
    }


def _range(plan: Planned) -> str:
    low, high = plan.device_bytes, plan.device_high_bytes
    return show.between(low, high, show.gib) if high and high != low else show.gib(low)


# ---------------------------------------------------------------- by what memory is for


def phases(panels: Sequence[Panel]) -> pd.DataFrame:
    """Predicted peak of each phase, GiB."""
    lines = []
    for fit in fits(panels):
        if fit.plan and fit.plan.phases:
            lines.append(
                _place(fit) | {f"{n}, GiB": show.gib(b) for n, b in fit.plan.phases.items()}
            )
    return frame(lines)


def breakdown(panels: Sequence[Panel]) -> pd.DataFrame:
    """What is alive at the predicted peak, GiB."""
    lines = []
    for fit in fits(panels):
        if fit.plan and fit.plan.breakdown:
            parts = {
                f"{name.replace('_', ' ')}, GiB": show.gib(size)
                for name, size in fit.plan.breakdown.items()
            }
            lines.append(_place(fit) | parts | {"device has, GiB": show.gib(fit.capacity_bytes)})
    return frame(lines)


def _place(fit: Fit) -> dict[str, str]:
    cell = fit.cell.cell
    return {"model": cell.model.name, "method": fit.entries[0].method, "target": cell.target.name}


# ---------------------------------------------------------------- predicted against measured


def errors(panels: Sequence[Panel]) -> pd.DataFrame:
    """Entries with a plan and a run: how far off the plan was."""
    lines = []
    for panel in panels:
        for entry in panel.entries:
            plan = next((row.plan for row in entry.good if row.plan), None)
            if plan is None:
                continue
            fit = Fit((entry,))
            speed = entry.speed.value if entry.speed else None
            usd = entry.cost.value if entry.cost else None
            lines.append(
                {"dataset": panel.dataset}
                | _place(fit)
                | _pair("reserved, GiB", _gib(plan.reserved_bytes), _gib(fit.measured_bytes))
                | _pair("tokens/s", plan.tokens_per_s, speed)
                | _pair("cost, USD", plan.usd, usd)
            )
    return frame(lines)


def _gib(size: int | None) -> float | None:
    return None if size is None else size / show.GIB


def _pair(name: str, predicted: float | None, measured: float | None) -> dict[str, str]:
    off = predicted / measured - 1 if predicted is not None and measured else None
    sign = "" if off is None else "+" if off > 0 else "−" if off < 0 else ""
    return {
        f"{name} predicted": show.number(predicted),
        f"{name} measured": show.number(measured),
        f"{name} off by": show.NONE if off is None else sign + show.share(abs(off)),
    }
