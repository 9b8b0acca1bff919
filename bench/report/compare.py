"""What may stand beside what: seeds of one question together, and which questions win.

Comparisons stay inside one dataset and one target.  Only rows that are what they are called
(`Row.comparable`) enter; the others are shown, with their reason.  Whether a difference is more
than noise, `bench/report/pairs.py` asks on the rows in pairs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from bench.report.measures import Estimate, pooled
from bench.report.rows import Row
from bench.score.cost import pareto_frontier
from bench.score.significance import Difference
from bench.score.verdicts import Verdict
from bench.spec import API, Cell, Comparison

# Metrics of `evaluate` that count errors; all others are better when higher.
LOWER_IS_BETTER = frozenset(
    {"cer", "invalid_rate", "mae", "mse", "perplexity", "rmse", "ter", "wer"}
)


@dataclass(frozen=True)
class Entry:
    """One question with all its seeds: model × method × settings on a dataset and a target."""

    rows: tuple[Row, ...]
    tag: str = ""  # tells apart entries of the same names and other settings

    @property
    def cell(self) -> Cell:
        return self.rows[0].cell

    @property
    def model(self) -> str:
        return self.cell.model.name

    @property
    def method(self) -> str:
        return self.cell.method.name + (f" ({self.tag})" if self.tag else "")

    @property
    def label(self) -> str:
        return f"{self.model} × {self.method}"

    @property
    def is_api(self) -> bool:
        return self.cell.model.endpoint is not None

    @cached_property
    def good(self) -> list[Row]:
        return [row for row in self.rows if row.comparable]

    @cached_property
    def bad(self) -> list[Row]:
        return [row for row in self.rows if not row.comparable]

    @property
    def status(self) -> str:
        """`ok`, `ok (2 of 3 seeds)`, or what happened instead."""
        if not self.bad:
            return "ok"
        if self.good:
            return f"ok ({len(self.good)} of {len(self.rows)} seeds)"
        return ", ".join(sorted({row.outcome for row in self.bad}))

    def quality(self, metric: str) -> Estimate | None:
        """Mean over seeds; bounds are the lowest and the highest of any seed's interval."""
        found = [row.quality.metrics.get(metric) for row in self.good if row.quality]
        return pooled(Estimate(m.value, m.low, m.high, m.n) for m in found if m)

    def seeds(self, metric: str) -> list[tuple[int, float]]:
        """(seed, value) of every seed that has one."""
        found = []
        for row in self.good:
            estimate = row.quality and row.quality.metrics.get(metric)
            if estimate and estimate.value is not None:
                found.append((row.cell.seed, estimate.value))
        return found

    def group(self, group: str, metric: str) -> Estimate | None:
        found = [row.quality.groups.get(group, {}).get(metric) for row in self.good if row.quality]
        return pooled(Estimate(v.value, n=v.n) for v in found if v)

    @property
    def cost(self) -> Estimate | None:
        """Mean over seeds of what one run costs, all phases; bounds are the price's range."""
        jobs = [row.cost.job for row in self.good if row.cost]
        if not jobs:
            return None
        if self.is_api:  # one price was found, no range
            return Estimate(fmean(job.usd for job in jobs))
        return Estimate(
            fmean(job.usd for job in jobs),
            fmean(job.low_usd for job in jobs),
            fmean(job.high_usd for job in jobs),
        )

    @property
    def device_hours(self) -> Estimate | None:
        hours = [row.cost.device_hours for row in self.good if row.cost]
        known = [value for value in hours if value is not None]
        return Estimate(fmean(known)) if known else None

    @property
    def speed(self) -> Estimate | None:
        """Training tokens/s: the mean of the seeds' medians, within the widest interval."""
        speeds = [row.training.speed for row in self.good if row.training]
        return pooled(Estimate(s.tokens_per_s, s.low, s.high, s.n_steps) for s in speeds)

    @property
    def unstable(self) -> list[str]:
        """Why the seeds' speeds may not be trusted; empty if they may."""
        speeds = [row.training.speed for row in self.good if row.training]
        return sorted({s.unstable for s in speeds if s.unstable})


# ---------------------------------------------------------------- entries and panels


@dataclass(frozen=True)
class Pair:
    """Entry A against entry B by one metric, or the reason why not.

    `roles`: what B is to A (base, reference, best).  `family`: how many pairs Holm's correction
    counted.
    """

    a: Entry
    b: Entry
    metric: str
    roles: tuple[str, ...] = ()
    difference: Difference | None = None
    verdict: Verdict | None = None
    family: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Panel:
    """All entries of one dataset on one target: they may be compared with each other.

    A model behind an API is on no machine: its entries stand in every panel of its dataset, last.
    """

    entries: tuple[Entry, ...]
    pairs: tuple[Pair, ...] = ()

    @property
    def cell(self) -> Cell:
        return self.entries[0].cell

    @property
    def dataset(self) -> str:
        return self.cell.dataset.name

    @property
    def target(self) -> str:
        return self.cell.target.name

    @cached_property
    def rows(self) -> list[Row]:
        return [row for entry in self.entries for row in entry.rows]

    @cached_property
    def metric(self) -> str:
        """What is weighed against cost: the dataset's first metric, or the first with a value."""
        known = (m for m in self.metrics if any(e.quality(m) for e in self.entries))
        return next(known, self.cell.dataset.primary_metric)

    @cached_property
    def metrics(self) -> list[str]:
        """All metrics of the dataset, as written, then those that only the scores know."""
        fields = self.cell.dataset.answer
        written = [f"{field.name}.{metric}" for field in fields for metric in field.metrics]
        scored = {m for row in self.rows if row.quality for m in row.quality.metrics}
        return written + sorted(scored - set(written))

    @cached_property
    def first_metrics(self) -> list[str]:
        """The first metric of each answer field: what the page shows; the CSV has them all."""
        firsts: dict[str, str] = {}
        for metric in self.metrics:
            firsts.setdefault(metric.partition(".")[0], metric)
        return list(dict.fromkeys([self.metric, *firsts.values()]))

    @cached_property
    def groups(self) -> list[str]:
        return sorted({g for row in self.rows if row.quality for g in row.quality.groups})

    def base(self, entry: Entry) -> Entry | None:
        """The untuned run of an entry's model that counts, with the fewest examples shown."""
        untuned = [
            other
            for other in self.entries
            if other.model == entry.model and other.cell.method.kind == "base" and other.good
        ]
        return min(untuned, key=lambda other: other.cell.method.shots, default=None)

    @cached_property
    def comparison(self) -> Comparison:
        """How the suite wants methods compared: as its newest version says."""
        newest = max((row.cell for row in self.rows), key=lambda cell: cell.suite_version)
        return newest.comparison

    def pair(self, one: Entry, other: Entry, metric: str) -> Pair | None:
        """The test of two entries, whichever of them is A."""
        return self._by_entries.get((metric, frozenset((id(one), id(other)))))

    @cached_property
    def _by_entries(self) -> dict[tuple[str, frozenset[int]], Pair]:
        return {(p.metric, frozenset((id(p.a), id(p.b)))): p for p in self.pairs}

    @cached_property
    def priced(self) -> bool:
        """False where nobody named a price: device-hours then stand for dollars."""
        return any(e.cost and e.cost.value for e in self.entries)

    def effort(self, entry: Entry) -> Estimate | None:
        """What quality is weighed against: dollars, or device-hours without a price."""
        return entry.cost if self.priced else entry.device_hours


def panels(rows: Sequence[Row]) -> list[Panel]:
    """Rows, in the order of `rows.order`, as panels of entries."""
    found = []
    for _, group in itertools.groupby(rows, key=lambda r: r.cell.dataset.name):
        places: dict[str, list[Row]] = {}
        for row in group:
            places.setdefault(row.cell.target.name, []).append(row)
        guests = tuple(_entries(places.pop(API.name, [])))
        own = [(*_entries(some), *guests) for some in places.values()]
        found += [Panel(entries) for entries in own or [guests]]
    return found


def _entries(rows: list[Row]) -> list[Entry]:
    """Seeds together.  Where settings differ between cells, the entries get a tag."""
    questions: dict[str, list[Row]] = {}
    for row in rows:
        questions.setdefault(row.question, []).append(row)
    alike: dict[tuple[str, str], list[Row]] = {}
    for group in questions.values():
        alike.setdefault(_names(group[0]), []).append(group[0])
    tags = {row.question: tag for group in alike.values() for row, tag in _tags(group)}
    return [Entry(tuple(group), tags[question]) for question, group in questions.items()]


def _tags(group: list[Row]) -> Iterator[tuple[Row, str]]:
    """What tells questions of the same names apart: the micro-batch if that does, else a hash."""
    one_job = len({row.job for row in group}) == 1
    for row in group:
        tag = f"micro-batch {row.cell.budget.micro_batch}" if one_job else row.question
        yield row, tag if len(group) > 1 else ""


def _names(row: Row) -> tuple[str, str]:
    return row.cell.model.name, row.cell.method.name


# ---------------------------------------------------------------- winners


def sign(metric: str) -> int:
    """1 where higher is better, -1 where lower is."""
    return -1 if re.split(r"[.:/]", metric.removesuffix(".py"))[-1] in LOWER_IS_BETTER else 1


def ranked(panel: Panel, metric: str) -> list[tuple[Entry, Estimate]]:
    """Entries with a value, best first; equals in the panel's order."""
    found = [(entry, entry.quality(metric)) for entry in panel.entries]
    scored = [(entry, quality) for entry, quality in found if quality and quality.value is not None]
    return sorted(scored, key=lambda pair: -sign(metric) * (pair[1].value or 0.0))


def pareto(panel: Panel, metric: str | None = None) -> list[Entry]:
    """Entries that no other beats: none is at least as good for no more, and better in one.

    Cheapest first.  Point estimates: intervals are not used here.
    """
    metric = metric or panel.metric
    efforts = [panel.effort(entry) for entry in panel.entries]
    costs = [effort.value if effort else None for effort in efforts]
    scores = [entry.quality(metric) for entry in panel.entries]
    values = [score.value if score else None for score in scores]
    points = [
        (str(index), cost, None if value is None else sign(metric) * value)
        for index, (cost, value) in enumerate(zip(costs, values, strict=True))
    ]
    front = [int(name) for name in pareto_frontier(points)]
    return [panel.entries[i] for i in sorted(front, key=lambda i: (costs[i] or 0.0, i))]


def overlap(one: Estimate, other: Estimate) -> bool | None:
    """Whether two intervals share a value; None where one of them is unknown."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return None
    return one.low <= other.high and other.low <= one.high


# ---------------------------------------------------------------- groups


def group_gain(panel: Panel, entry: Entry, group: str, metric: str) -> float | None:
    """An entry's score in a group minus the untuned model's; None without both."""
    base = panel.base(entry)
    before = base.group(group, metric) if base else None
    after = entry.group(group, metric)
    if before is None or after is None or before.value is None or after.value is None:
        return None
    return after.value - before.value


def group_rows(panel: Panel, group: str) -> int | None:
    """Test rows of a group; None where entries answered different numbers of them."""
    scores = [row.quality.groups.get(group, {}) for row in panel.rows if row.quality]
    counts = {value.n for values in scores for value in values.values()}
    return counts.pop() if len(counts) == 1 else None
