"""Which entries are tested against each other, on the rows that both answered, and what came out.

Within a model every method against every other; across models each entry against the best, and an
API's against all, that only by the dataset's first metric.  Holm's correction counts all pairs that
could have been tested, since the best is only known after looking.  One family a metric, over all
panels of the report; pairs with a trivial baseline are one of their own: a check of each method, no
choice between them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.report import compare
from bench.report.compare import Entry, Pair, Panel
from bench.report.measures import Answers
from bench.report.parallel import mapped
from bench.score.resample import Sums
from bench.score.significance import Difference, Question, Side
from bench.score.significance import compare as difference
from bench.score.verdicts import judge
from bench.spec import scale

Rows = tuple[str, ...]


# With more pairs than this only the first metric of each answer field is tested: the page shows no
# others, and each test takes some 20 ms.
MANY = 1500


def tested(panels: Sequence[Panel]) -> list[Panel]:
    """The same panels with their `pairs` filled in."""
    found = [_Tests(panel) for panel in panels]
    asked = [(tests, pair) for tests in found for m in tests.panel.metrics for pair in tests.of(m)]
    if len(asked) > MANY:
        asked = [(t, pair) for t, pair in asked if pair.metric in t.panel.first_metrics]
    answers = mapped(lambda item: item[0].answer(item[1]), asked)
    made = [
        (tests, replace(pair, **more)) for (tests, pair), more in zip(asked, answers, strict=True)
    ]
    judged = _judged(made, found)
    return [
        replace(tests.panel, pairs=tuple(pair for own, pair in judged if own is tests))
        for tests in found
    ]


def _judged(
    made: Sequence[tuple[_Tests, Pair]], found: Sequence[_Tests]
) -> list[tuple[_Tests, Pair]]:
    """Corrected by metric, over all panels; in the order of the metrics."""
    judged = []
    metrics = dict.fromkeys(metric for tests in found for metric in tests.panel.metrics)
    for metric, trivial in itertools.product(metrics, (False, True)):
        own = [(t, pair) for t, pair in made if (pair.metric, _trivial(pair)) == (metric, trivial)]
        family = sum(tests.possible(metric, trivial) for tests in found)
        verdicts = iter(judge([pair.difference for _, pair in own if pair.difference], family))
        for tests, pair in own:
            known = (
                replace(pair, verdict=next(verdicts), family=family) if pair.difference else pair
            )
            judged.append((tests, known))
    return judged


def _trivial(pair: Pair) -> bool:
    return not (pair.a.cell.method.needs_model and pair.b.cell.method.needs_model)


class _Tests:
    """The pairs of one panel.  Sides are kept: each entry stands in many pairs."""

    def __init__(self, panel: Panel) -> None:
        self.panel = panel
        self._sides: dict[tuple[int, str, Rows], Side] = {}

    def possible(self, metric: str, trivial: bool) -> int:
        """Pairs that there are: of methods with a model, or with a trivial baseline in them."""
        ranked = [entry for entry, _ in compare.ranked(self.panel, metric)]
        models = sum(entry.cell.method.needs_model for entry in ranked)
        whole, without = math.comb(len(ranked), 2), math.comb(models, 2)
        return whole - without if trivial else without

    def of(self, metric: str) -> Iterator[Pair]:
        ranked = compare.ranked(self.panel, metric)
        if not ranked:
            return
        best = ranked[0][0]
        scored = [entry for entry in self.panel.entries if any(entry is e for e, _ in ranked)]
        for one, two in itertools.combinations(scored, 2):
            crosses = metric == self.panel.metric and (
                one is best or two is best or one.is_api or two.is_api
            )
            if one.model == two.model or crosses:
                yield self._pair(one, two, best, metric)

    def _pair(self, one: Entry, two: Entry, best: Entry, metric: str) -> Pair:
        a, b = sorted((one, two), key=lambda entry: -self._rank(entry, best, one.model, two.model))
        return Pair(a, b, metric, roles=tuple(self._roles(a, b, best)))

    def answer(self, pair: Pair) -> dict[str, Any]:
        """The difference, or the reason why there is none."""
        shared = common_rows([pair.a, pair.b], pair.metric)
        if isinstance(shared, str):
            return {"reason": shared}
        found = difference(
            self._side(pair.a, pair.metric, shared),
            self._side(pair.b, pair.metric, shared),
            question(self.panel, pair.metric, _groups(pair.a, pair.metric, shared)),
        )
        return {"difference": found} if found else {"reason": "undefined on these rows"}

    def _rank(self, entry: Entry, best: Entry, *models: str) -> int:
        """Low ranks are what others are held against: trivial answers, base, the reference, the
        best."""
        if not entry.cell.method.needs_model:
            return -1
        if len(set(models)) > 1:
            return 0 if entry is best else 3
        if entry is self.panel.base(entry):
            return 0
        if entry.cell.method.name == self.panel.comparison.reference:
            return 1
        return 2 + self.panel.entries.index(entry)

    def _roles(self, a: Entry, b: Entry, best: Entry) -> Iterator[str]:
        if not b.cell.method.needs_model:
            yield "trivial"
        if b is self.panel.base(a):
            yield "base"
        if a.model == b.model and b.cell.method.name == self.panel.comparison.reference:
            yield "reference"
        if a.model != b.model and b.is_api:
            yield "API"
        if best in (a, b):
            yield "best" if b is best else "best is A"

    def _side(self, entry: Entry, metric: str, shared: Rows) -> Side:
        key = (id(entry), metric, shared)
        if key not in self._sides:
            self._sides[key] = side(entry, metric, shared)
        return self._sides[key]


def question(panel: Panel, metric: str, groups: Sequence[str | None]) -> Question:
    """How the suite wants a metric's differences read."""
    asked = panel.comparison
    return Question(
        margin=asked.delta(metric),
        scale=scale(metric),
        clusters=tuple(groups) if asked.cluster == "group" and any(groups) else None,
        higher_is_better=compare.sign(metric) > 0,
    )


# ---------------------------------------------------------------- the same rows


def common_rows(entries: Sequence[Entry], metric: str) -> Rows | str:
    """Keys of the rows that every seed of all entries answered, in order; or why there are none."""
    answers = [found for entry in entries for found in _answers(entry, metric)]
    if not all(_answers(entry, metric) for entry in entries):
        return "no counts for each row, so this metric can't be resampled"
    others = [set(found.keys) for found in answers[1:]]
    shared = tuple(key for key in answers[0].keys if all(key in keys for keys in others))
    return shared or "no test row was answered by both"


def side(entry: Entry, metric: str, shared: Rows) -> Side:
    """An entry's counts on these rows, one `Sums` for each seed."""
    runs = []
    for answers in _answers(entry, metric):
        place = {key: index for index, key in enumerate(answers.keys)}
        sums = answers.sums[metric]
        chosen = np.ascontiguousarray(sums.rows[[place[key] for key in shared]])
        runs.append(Sums(chosen, sums.finish, sums.signature))
    return Side(tuple(runs), seeded=entry.cell.method.trains)


def _answers(entry: Entry, metric: str) -> list[Answers]:
    found = [row.answers for row in entry.good if row.answers]
    return [answers for answers in found if metric in answers.sums]


def _groups(entry: Entry, metric: str, shared: Rows) -> list[str | None]:
    answers = _answers(entry, metric)[0]
    place = dict(zip(answers.keys, answers.groups, strict=True))
    return [place[key] for key in shared]


# ---------------------------------------------------------------- groups


def gains(panel: Panel, entry: Entry, metric: str) -> dict[str, Difference]:
    """An entry minus its base in each group; empty without a base, or for the base itself."""
    base = panel.base(entry)
    if base is None or base is entry or not entry.good:
        return {}
    shared = common_rows([entry, base], metric)
    if isinstance(shared, str):
        return {}
    groups = _groups(entry, metric, shared)
    asked = replace(question(panel, metric, ()), clusters=None, tested=False)
    found = {}
    for group in panel.groups:
        rows = tuple(key for key, name in zip(shared, groups, strict=True) if name == group)
        if rows:
            found[group] = difference(side(entry, metric, rows), side(base, metric, rows), asked)
    return {group: gain for group, gain in found.items() if gain}
