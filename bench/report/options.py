"""What can be chosen: every entry with the few numbers that a choice weighs.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from bench.report import compare
from bench.report.compare import Entry, Pair, Panel
from bench.report.measures import Estimate
from bench.report.plans import Planned
from bench.report.rows import PLANNED, Row
from bench.report.serving import Point
from bench.score.verdicts import Outcome
from bench.spec import Constraints

FLIPPED: dict[Outcome, Outcome] = {
    "better": "worse",
    "worse": "better",
    "equivalent": "equivalent",
    "not resolved": "not resolved",
}


@dataclass(frozen=True)
class Against:
    """One option minus another by the dataset's first metric, as the paired test found it."""

    value: float
    low: float | None
    high: float | None
    p: float | None
    outcome: Outcome  # of the first option
    rows_needed: int | None
    margin: float | None


@dataclass(frozen=True)
class Option:
    """An entry on its target."""

    entry: Entry
    panel: Panel

    @property
    def target(self) -> str:
        return self.entry.cell.target.name

    @property
    def good(self) -> list[Row]:
        return self.entry.good

    @property
    def measured(self) -> bool:
        return bool(self.good)

    @property
    def planned(self) -> bool:
        """Predicted and never begun."""
        return all(row.status == PLANNED for row in self.entry.rows)

    @cached_property
    def plan(self) -> Planned | None:
        return next((row.plan for row in self.entry.rows if row.plan), None)

    @cached_property
    def score(self) -> Estimate | None:
        return self.entry.quality(self.panel.metric)

    @cached_property
    def usd(self) -> Estimate | None:
        """Of one run: measured over all phases, else predicted for training."""
        if self.entry.cost or not self.plan or self.plan.usd is None:
            return self.entry.cost
        return Estimate(self.plan.usd, self.plan.usd_low, self.plan.usd_high)

    @cached_property
    def hours(self) -> float | None:
        """Wall hours of one run: measured over all phases, else predicted for training."""
        seconds = [sum(row.wall_s.values()) for row in self.good]
        if seconds:
            return fmean(seconds) / 3600
        return self.plan.hours if self.plan else None

    def served(self, asked: Constraints) -> Point | None:
        """How it would be served within the latency that is asked for.

        Of several seeds the one of median throughput, so that all figures are of one measurement.
        """
        points = [
            point
            for row in self.good
            if row.served and (point := row.served.best(asked.max_latency_ms))
        ]
        points.sort(key=lambda point: point.load.tokens_per_s)
        return points[len(points) // 2] if points else None

    def serving_usd(self, asked: Constraints) -> float | None:
        """Dollars of a month's serving and storing at the volume that is asked for; of an API at
        the mix of input and output that it had."""
        if self.entry.is_api and asked.monthly_tokens is not None:
            prices = [row.asked.usd_a_token(row.cost) if row.asked else None for row in self.good]
            known = [price for price in prices if price is not None]
            return fmean(known) * asked.monthly_tokens if known else None
        point = self.served(asked)
        if point is None or asked.monthly_tokens is None:
            return None
        return point.offer.monthly(asked.monthly_tokens).usd

    def against(self, other: Option) -> Against | None:
        """What the paired test says of this option against another; None where none was made."""
        for panel in (self.panel, other.panel):  # an API's entry stands in both
            if pair := panel.pair(self.entry, other.entry, self.panel.metric):
                return _against(pair, flipped=pair.a is not self.entry)
        return None


def _against(pair: Pair, flipped: bool) -> Against | None:
    found, verdict = pair.difference, pair.verdict
    if found is None or verdict is None:
        return None
    value, low, high, outcome = found.value, found.low, found.high, verdict.outcome
    if flipped:
        value, outcome = -value, FLIPPED[outcome]
        low, high = (None if high is None else -high), (None if low is None else -low)
    return Against(value, low, high, verdict.p, outcome, found.rows_needed, found.margin)


def options(panels: Sequence[Panel]) -> Iterator[Option]:
    """All entries of some panels of one dataset, in their order, each once."""
    seen: set[int] = set()
    for panel in panels:
        for entry in panel.entries:
            if id(entry) not in seen:
                seen.add(id(entry))
                yield Option(entry, panel)


def reference(option: Option, all_options: Sequence[Option]) -> Option | None:
    """The same model's run of the suite's reference method on the same target (usually full), with
    the same micro-batch where there is one.

    For an API, of which nothing is trained, the best run of that method.
    """
    name, own = option.panel.comparison.reference, option.entry.cell.budget.micro_batch
    found = [
        other
        for other in all_options
        if other.panel is option.panel
        and other.entry.cell.method.name == name
        and (option.entry.is_api or other.entry.model == option.entry.model)
    ]
    if not option.entry.is_api:
        return min(found, key=lambda o: o.entry.cell.budget.micro_batch != own, default=None)
    best = [id(entry) for entry, _ in compare.ranked(option.panel, option.panel.metric)]
    scored = [other for other in found if id(other.entry) in best]
    return min(scored, key=lambda other: best.index(id(other.entry)), default=None)
