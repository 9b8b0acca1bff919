"""Each method at its own best micro-batch against all at the same, at one global batch.

Where a suite asks for several (`micro_batches: [1, 2, 4]`).  The same micro-batch hides what a
method's lower memory is good for: a larger one.  "The same" is the largest at which every method
worked; "own best" is each method's fastest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from bench.report import show, speeds
from bench.report.compare import Entry, Panel
from bench.report.frames import frame

NOTE = (
    "Each cell was trained with several micro-batches at the same global batch, so that only the "
    "number of sequences at once differs. The same: the largest micro-batch at which every method "
    "of the model worked. Own best: each method's fastest; it is picked after looking, so its lead "
    "is a little too hopeful. Ratios of tokens/s have 95 % intervals over blocks of steps."
)


@dataclass(frozen=True)
class Sizes:
    """One method of a model: its entries by micro-batch."""

    entries: dict[int, Entry]

    @property
    def first(self) -> Entry:
        return next(iter(self.entries.values()))

    @property
    def timed(self) -> dict[int, float]:
        """tokens/s of those that worked."""
        speeds = {size: entry.speed for size, entry in self.entries.items()}
        return {size: s.value for size, s in speeds.items() if s and s.value is not None}

    @property
    def best(self) -> int | None:
        found = self.timed
        return max(found, key=lambda size: found[size], default=None)


def table(panel: Panel) -> pd.DataFrame:
    """One line a method; empty where no method was run with several micro-batches."""
    return frame(line for group in _groups(panel) for line in _lines(panel, group))


def _groups(panel: Panel) -> Iterator[list[Sizes]]:
    """Methods of one model at one global batch, some of them with several micro-batches."""
    found: dict[tuple[str, int], dict[str, dict[int, Entry]]] = {}
    for entry in panel.entries:
        budget = entry.cell.budget
        if entry.cell.method.trains:
            methods = found.setdefault((entry.model, budget.global_batch), {})
            methods.setdefault(entry.rows[0].job, {})[budget.micro_batch] = entry
    for methods in found.values():
        group = [Sizes(dict(sorted(entries.items()))) for entries in methods.values()]
        if any(len(one.entries) > 1 for one in group):
            yield group


def common(group: Sequence[Sizes]) -> int | None:
    """The largest micro-batch at which every method was timed."""
    shared = set.intersection(*(set(one.timed) for one in group))
    return max(shared, default=None)


def _lines(panel: Panel, group: Sequence[Sizes]) -> Iterator[dict[str, str]]:
    same = common(group)
    name = panel.comparison.reference
    reference = next((one for one in group if one.first.cell.method.name == name), None)
    for one in group:
        best = one.best
        yield {
            "model": one.first.model,
            "method": one.first.cell.method.name,
            "global batch": str(one.first.cell.budget.global_batch),
            "tokens/s at each": _each(one),
            "the same": show.count(same),
            "own best": show.count(best),
            "own best ÷ the same": _ratio(one, best, one, same),
            f"the same ÷ {name}'s": _ratio(one, same, reference, same),
            f"own best ÷ {name}'s own best": _ratio(
                one, best, reference, reference.best if reference else None
            ),
        }


def _each(one: Sizes) -> str:
    told = []
    for size, entry in one.entries.items():
        speed = entry.speed
        known = speed.value if speed else None
        text = entry.status if known is None else ("~" if entry.unstable else "")
        told.append(f"{size}: {text}{'' if known is None else show.number(known)}")
    return ", ".join(told)


def _ratio(one: Sizes, size: int | None, other: Sizes | None, against: int | None) -> str:
    if other is None or size is None or against is None:
        return show.NONE
    return speeds.told(one.entries[size], other.entries[against])
