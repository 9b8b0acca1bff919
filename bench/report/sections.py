"""The report's sections, in the order in which a person decides: the answer first, the proof last.

`bench/report/markdown.py` and `bench/report/page.py` write the same sections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from bench.report import (
    answer,
    apis,
    bounds,
    claims,
    convergence,
    datasets,
    details,
    differences,
    fits,
    micro_batches,
    ownership,
    show,
    speeds,
    tables,
)
from bench.report.advice import Advice
from bench.report.blocks import Block, Bullets, Picture, Section, Table, Text
from bench.report.charts import CHARTS, WHOLE, Drawn
from bench.report.compare import Panel
from bench.report.headline import outcomes, sentence
from bench.report.method import footer, protocol
from bench.report.rows import PLANNED, Row
from bench.report.texts import (
    BOUNDS,
    CLAIMS,
    DIFFERENCES,
    EFFICIENCY,
    FIRST_ONLY,
    FIT,
    GAINS,
    GROUPS,
    NO_EFFICIENCY,
    NO_MARGIN,
    NOISE,
    PEAKS,
    PREDICTED,
    QUALITY,
    RATES,
    SCORES,
    SERVING,
    SPEEDS,
    SUMMARY,
    TIMES,
    margin_text,
)
from bench.report.threats import threats
from bench.score.hygiene import Hygiene

LONG = 16  # lines from which a table is folded on the page
WARNED = 4  # threats that stand beside the answer


@dataclass(frozen=True)
class Report:
    """Everything that a report is written from."""

    suite: str
    panels: Sequence[Panel]
    charts: Sequence[Drawn] = ()
    advice: Sequence[Advice] = ()
    checked: Mapping[str, Hygiene] = field(default_factory=dict)
    claims: Sequence[claims.Finding] = ()
    row_scores: bool = False  # whether scores.csv was written

    @property
    def rows(self) -> list[Row]:
        """Each once: what an API answered stands in several panels."""
        found = {row.id: row for panel in self.panels for row in panel.rows}
        return list(found.values())

    @property
    def begun(self) -> list[Panel]:
        """Panels of which something was run, or tried."""
        return [p for p in self.panels if any(row.status != PLANNED for row in p.rows)]

    def pictures(self, *kinds: str) -> Iterator[Block]:
        """The charts of some kinds; where a kind has none, why."""
        for kind in kinds:
            found = [chart for chart in self.charts if chart.kind == kind]
            yield from (Picture(chart) for chart in found)
            if not found:
                title = (CHARTS | WHOLE)[kind][0]
                yield Text(f"*No chart “{title}”: no cell has the numbers for it.*", "note")

    def each(self, make: Callable[[Panel], pd.DataFrame], title: str = "") -> Iterator[Block]:
        """A table for each panel; folded where there are several, or many lines."""
        for panel in self.begun:
            made = make(panel)
            if len(made):
                yield self.table(made, title, panel)

    def table(self, made: pd.DataFrame, title: str = "", panel: Panel | None = None) -> Table:
        several = len(self.panels) > 1
        if panel is not None and several:
            title = f"{title + ': ' if title else ''}{panel.dataset} on {panel.target}"
        return Table(made, title, folded=len(made) > LONG or (several and panel is not None))


def sections(report: Report) -> list[Section]:
    """All of them; one without anything to show says so in a line."""
    made = [
        Section("answer", "The answer", list(_answer(report))),
        Section("cost", "Cost against quality", list(_cost(report))),
        Section("fit", "What fits where", list(_fit(report))),
        Section("memory", "Where the memory goes", list(_memory(report))),
        Section("convergence", "Convergence", list(_convergence(report))),
        Section("speed", "Speed and time", list(_speed(report))),
        Section("quality", "Quality", list(_quality(report))),
        Section("predicted", "Predicted against measured", list(_predicted(report))),
        Section("failures", "What did not work, and why", list(_failures(report))),
        Section("claims", "Published claims against what was found", list(_claims(report))),
        Section("method", "Method, and what speaks against it", list(_method(report))),
    ]
    return [section for section in made if section.blocks]


# ---------------------------------------------------------------- 1 to 3: the decision


def _answer(report: Report) -> Iterator[Block]:
    for advice in report.advice:
        first, *more = answer.sentences(advice)
        yield Text(first, "lead")
        yield from (Text(sentence) for sentence in more)
        yield from (Text(sentence) for sentence in ownership.sentences(advice))
        yield from (Text(sentence) for sentence in bounds.sentences(advice))
        yield from _options(advice)
        if found := answer.changes(advice):
            yield Bullets(found, "What would change this answer")
    warned = threats(report.panels)
    if any(advice.measured for advice in report.advice) and warned:
        yield Bullets(
            [*warned[:WARNED], "All of them: [Method, and what speaks against it](#method)."],
            "Before you rely on it",
        )
    yield Text(outcomes(report.rows))


def _options(advice: Advice) -> Iterator[Block]:
    made = answer.table(advice)
    if not advice.measured:
        yield Table(answer.grid(advice), f"Training on {advice.dataset}, predicted")
        yield Table(made, f"Every option on {advice.dataset}, cheapest first", folded=True)
        return
    yield Table(made.head(answer.SHOWN), f"Options on {advice.dataset}, ranked")
    rest = made.iloc[answer.SHOWN :]
    if len(rest):
        yield Table(rest, f"{len(rest)} more options on {advice.dataset}", folded=True)


def _cost(report: Report) -> Iterator[Block]:
    yield from report.pictures("cost-quality")
    if report.begun:
        yield Bullets([sentence(panel) for panel in report.begun])
        yield from report.each(tables.entries)
        yield Text(SUMMARY, "note")
    if any(entry.unstable for panel in report.panels for entry in panel.entries):
        yield Text("~: unstable, see [Method](#method).", "note")
    asked = apis.table(report.rows)
    if len(asked):
        yield Table(asked, "Asked of an API", folded=len(asked) > LONG)
    yield from _serving(report)


def _serving(report: Report) -> Iterator[Block]:
    served, least = any(row.served for row in report.rows), bounds.table(report.panels)
    if not served and not len(least):
        yield Text("*Serving was not measured: no cell has a serve phase.*", "note")
        return
    yield Text("Serving", "head")
    if served:
        yield from _served(report)
    if len(least):
        yield Table(least, "What was not served costs at least", folded=len(least) > LONG)
        yield Text(BOUNDS, "note")


def _served(report: Report) -> Iterator[Block]:
    yield from report.pictures("serving", "serving-quality")
    asked = {advice.dataset: advice.constraints for advice in report.advice}
    for panel in report.begun:
        made = ownership.costs(panel, asked.get(panel.dataset, panel.cell.constraints))
        if len(made):
            yield report.table(made, "Cost of ownership", panel)
    yield from report.each(ownership.table, "Every measurement of a server")
    if failed := ownership.failures(report.rows):
        yield Bullets(failed, "Not served as asked")
    yield Text(SERVING, "note")


def _fit(report: Report) -> Iterator[Block]:
    yield from report.pictures("fit")
    made = fits.table(report.panels)
    if len(made):
        yield Table(made, "Each model × method × target", folded=len(made) > 4 * LONG)
        yield Text(FIT, "note")


# ---------------------------------------------------------------- 4 to 8: the evidence


def _memory(report: Report) -> Iterator[Block]:
    made = fits.breakdown(report.panels)
    if len(made):
        yield from report.pictures("breakdown")
        yield Table(made, "Predicted, at the peak of a step", folded=True)
        phases = fits.phases(report.panels)
        if len(phases):
            yield Table(phases, "Predicted peak of each phase", folded=True)
    else:
        yield Text("*No plan says what memory is for: `bench plan` does, for GPUs.*", "note")
    yield from report.pictures("memory")
    made = list(report.each(tables.memory, "Measured peaks"))
    if made:
        yield from made
        yield Text(PEAKS, "note")


def _convergence(report: Report) -> Iterator[Block]:
    yield from report.pictures("loss")
    yield from report.each(convergence.table, "Time to target")
    yield from (Text(note, "note") for note in convergence.notes(report.panels))
    for panel in report.begun:
        made = convergence.runs(panel)
        if len(made):
            title = report.table(made, "Time to target, each run", panel).title
            yield Table(made, title, folded=True)


def _speed(report: Report) -> Iterator[Block]:
    yield from report.pictures("speed")
    made = list(report.each(tables.time, "Where time and money went"))
    if made:
        yield from made
        yield Text(TIMES, "note")
    made = list(report.each(speeds.table, "Speed against the reference"))
    if made:
        yield from made
        yield Text(SPEEDS, "note")
    made = list(report.each(micro_batches.table, "Own best micro-batch against the same"))
    if made:
        yield from made
        yield Text(micro_batches.NOTE, "note")
    made = list(report.each(speeds.efficiency, "Use of the GPUs, and energy"))
    yield from made
    yield Text(EFFICIENCY if made else NO_EFFICIENCY, "note")


def _quality(report: Report) -> Iterator[Block]:
    yield from report.pictures("quality")
    yield from report.each(tables.quality, "Every metric")
    for panel in report.begun:
        for make, title in ((details.classes, "Each label"), (details.types, "Each entity type")):
            made = report.table(make(panel), title, panel)
            if len(made.frame):
                yield Table(made.frame, made.title, folded=True)
    if report.begun:
        yield Text(QUALITY, "note")
    yield from report.each(details.rates, "Answers that could not count")
    yield Text(RATES, "note")
    yield from _differences(report)
    yield from _groups(report)


def _differences(report: Report) -> Iterator[Block]:
    """Paired tests; nothing where none was made."""
    tested = [panel for panel in report.panels if panel.pairs]
    if not tested:
        return
    yield Text("Differences", "head")
    yield from report.pictures("forest")
    margins = {panel.comparison.delta(panel.metric) for panel in tested}
    known = sorted(margin for margin in margins if margin is not None)
    yield Text(DIFFERENCES + (margin_text(known) if known else NO_MARGIN), "note")
    if any({pair.metric for pair in p.pairs} < set(p.metrics) for p in tested):
        yield Text(FIRST_ONLY, "note")
    for panel in tested:
        for metric in panel.first_metrics:
            made = differences.table(panel, metric)
            if len(made):
                yield report.table(made, metric, panel)
    noise = [(panel, differences.noise(panel)) for panel in tested]
    if any(len(made) for _, made in noise):
        yield Text(NOISE, "note")
        yield from (report.table(made, "Noise", panel) for panel, made in noise if len(made))


def _groups(report: Report) -> Iterator[Block]:
    grouped = [panel for panel in report.panels if panel.groups]
    if not grouped:
        return
    yield Text("Groups", "head")
    yield from report.pictures("groups")
    yield Text(GROUPS + GAINS, "note")
    for panel in grouped:
        for metric in panel.metrics:
            firsts = panel.first_metrics
            made = report.table(details.groups(panel, metric), metric, panel)
            yield Table(made.frame, made.title, folded=made.folded or metric not in firsts)
            gains = differences.gains(panel, metric) if metric in firsts else None
            if gains is not None and len(gains):
                yield report.table(gains, f"{metric}, gain over the untuned model", panel)


def _predicted(report: Report) -> Iterator[Block]:
    made = fits.errors(report.panels)
    if not len(made):
        yield Text("*No cell has both a plan and a result.*", "note")
        return
    yield from report.pictures("predicted")
    yield Table(made, "Each entry", folded=len(made) > LONG)
    yield Text(PREDICTED, "note")


# ---------------------------------------------------------------- 9 to 11: the proof


def _failures(report: Report) -> Iterator[Block]:
    planned = sum(row.status == PLANNED for row in report.rows)
    if planned:
        yield Text(f"{show.many(planned, 'cell')} planned and not run: no failure.")
    made = tables.failures(report.rows)
    if len(made):
        yield Table(made, "Cells that enter no comparison", folded=len(made) > 2 * LONG)
    elif planned < len(report.rows):
        yield Text("Every cell worked.")


def _claims(report: Report) -> Iterator[Block]:
    if report.claims:
        yield Text(claims.summary(report.claims))
        tested = any(finding.figures for finding in report.claims)
        yield Table(claims.table(report.claims), "Claim by claim", folded=not tested)
        yield Text(CLAIMS, "note")


def _method(report: Report) -> Iterator[Block]:
    checked = datasets.warnings(report.panels, report.checked)
    yield Bullets([*checked, *threats(report.panels)], "Threats to validity")
    yield Bullets(protocol(report.panels), "How it was measured")
    if report.checked:
        yield Table(datasets.table(report.checked), "Data")
    weights = tables.weights(report.rows)
    if len(weights):
        title = "What ran, counted on the model itself"
        yield Table(weights, title, folded=len(weights) > LONG)
    yield Bullets(footer(report.rows), "Prices, machines, versions")
    yield Text(
        "Everything above can be recomputed from these files; [summary.csv](summary.csv) has one "
        "row a cell, " + SCORES[report.row_scores]
    )
    yield Table(tables.sources(report.rows), "Where the numbers come from", folded=True)
