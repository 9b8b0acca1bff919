"""Validation loss against training seconds, tokens and dollars, with the target as a line and a
mark where each run met it.  A score that is the target has panels of its own.

One line of panels per model and target: losses of different tokenizers don't compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bench.report import compare, show
from bench.report.charts import style
from bench.report.compare import Entry, Panel
from bench.report.rows import Row
from bench.score.convergence import LOSS

MOST = 6  # lines of panels: more can't be read

CAPTION = (
    "Measured. Evaluation, loading and saving are off the clock; dollars are those of the training "
    "steps. Thin: loss of each training step; with markers: validation; one line per seed. "
    "Star: the target is met, on the straight line between two evaluations."
)
AXES = {"s": "training seconds", "tokens": "training tokens", "usd": "USD of training steps"}

Point = tuple[float, float]


@dataclass(frozen=True)
class Facet:
    """One model on one target."""

    panel: Panel
    model: str
    entries: tuple[Entry, ...]
    measure: str = LOSS

    @property
    def drawn(self) -> bool:
        return any(_drawn(row, self.measure) for entry in self.entries for row in entry.rows)

    @property
    def goals(self) -> list[float]:
        found = (row.convergence for entry in self.entries for row in entry.rows)
        goals = {f.goal.value for f in found if f and f.goal.measure == self.measure}
        return sorted(value for value in goals if value is not None)


def draw(panels: Sequence[Panel], looks: style.Looks) -> style.Chart | None:
    every = [facet for facet in _facets(panels) if facet.drawn]
    if not every:
        return None
    facets = every[:MOST]
    more = f" Of {len(every)} models on targets the {MOST} with the best scores." * (
        len(every) > MOST
    )
    fig = style.figure(
        11.5, 2.7 * len(facets) + 1.2, looks.title("Convergence", panels), CAPTION + more
    )
    grid = fig.subplots(len(facets), len(AXES), squeeze=False)
    for line, facet in zip(grid, facets, strict=True):
        for index, (ax, kind) in enumerate(zip(line, AXES, strict=True)):
            _facet(ax, facet, looks, kind)
            if not index:
                ax.set_title(f"{style.short(facet.model, 34)} on {facet.panel.target}")
                unit = "nats per answer token"
                ax.set_ylabel(unit if facet.measure == LOSS else facet.measure)
    fig.legend(handles=_key([f.entries for f in facets], looks), loc="outside right upper")
    return fig


def _facets(panels: Sequence[Panel]) -> list[Facet]:
    """In the panels' order; where there are too many, those with the best scores first."""
    found = []
    for panel in panels:
        entries = [entry for entry in panel.entries if entry.cell.method.trains]
        for model in dict.fromkeys(entry.model for entry in entries):
            own = tuple(entry for entry in entries if entry.model == model)
            found.append(Facet(panel, model, own))
            goals = [r.convergence.goal for e in own for r in e.rows if r.convergence]
            scores = {goal.measure: None for goal in goals if not goal.falls}
            found += [Facet(panel, model, own, measure) for measure in scores]
    return found if len(found) <= MOST else sorted(found, key=_best)


def _best(facet: Facet) -> float:
    metric = facet.panel.metric
    scores = [quality.value for e in facet.entries if (quality := e.quality(metric))]
    return -max((compare.sign(metric) * s for s in scores if s is not None), default=-1e9)


def _drawn(row: Row, measure: str) -> bool:
    return bool(_validation(row, "s", measure) or _curve(row, "s", measure))


def _x(row: Row, seconds: float, tokens: float, kind: str) -> float:
    if kind == "tokens":
        return tokens
    if kind == "s":
        return seconds
    target = row.cell.target
    return seconds / 3600 * target.devices * target.nodes * target.price.usd_per_device_hour


def _validation(row: Row, kind: str, measure: str) -> list[Point]:
    points = row.training.points.get(measure, ()) if row.training else ()
    return [(_x(row, p.train_s, p.tokens, kind), p.value) for p in points if p.value is not None]


def _curve(row: Row, kind: str, measure: str) -> list[Point]:
    """The loss of every step; scores are only known where answers were asked for."""
    training = row.training
    if training is None or measure != LOSS:
        return []
    pairs = zip(training.curve, training.curve_tokens, strict=True)
    return [(_x(row, seconds, tokens, kind), loss) for (seconds, loss), tokens in pairs]


def _facet(ax: Axes, facet: Facet, looks: style.Looks, kind: str) -> None:
    for entry in facet.entries:
        for row in entry.rows:
            _row(ax, entry, row, looks, (kind, facet.measure))
    _ends(ax, facet, kind)
    for value in facet.goals:
        ax.axhline(value, color=style.INK, linestyle="--", linewidth=0.9, zorder=1)
        ax.annotate(
            f"target {value:.3g}", (0, value), (4, 2), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="left", va="bottom", fontsize=7.5, color=style.INK,
        )  # fmt: skip
    ax.set_xlabel(AXES[kind])
    ax.set_xlim(left=-0.02 * ax.get_xlim()[1])
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.6g}"))


def _row(ax: Axes, entry: Entry, row: Row, looks: style.Looks, axes: tuple[str, str]) -> None:
    colour, (kind, measure) = looks.shade(entry), axes
    if curve := _curve(row, kind, measure):
        ax.plot(*zip(*curve, strict=True), color=colour, linewidth=0.7, alpha=0.4)
    if points := _validation(row, kind, measure):
        (line,) = ax.plot(
            *zip(*points, strict=True), color=colour, linewidth=1.5, linestyle=looks.line(entry),
            marker=looks.marker(entry), markersize=4.5, markeredgecolor="white",
            markeredgewidth=0.5, zorder=3,
        )  # fmt: skip
        change = f"{show.number(points[0][1])} → {show.number(points[-1][1])}"
        style.tip(ax, line, f"{entry.label}, seed {row.cell.seed}: {measure} {change}")
    _met(ax, entry, row, colour, axes)


def _met(ax: Axes, entry: Entry, row: Row, colour: str, axes: tuple[str, str]) -> None:
    """A star where the run met its target."""
    found, (kind, measure) = row.convergence, axes
    at = found.interpolated if found and found.goal.measure == measure else None
    if at is None or at.value is None:
        return
    (mark,) = ax.plot(
        _x(row, at.train_s, at.tokens, kind), at.value, marker="*", markersize=10,
        markerfacecolor="none", markeredgecolor=colour, markeredgewidth=1.4, zorder=5,
    )  # fmt: skip
    style.tip(
        ax, mark, f"{entry.label}, seed {row.cell.seed}: target met after "
        f"{show.number(at.train_s)} s, {show.number(at.tokens)} tokens",
    )  # fmt: skip


def _ends(ax: Axes, facet: Facet, kind: str) -> None:
    """A cross where a run that doesn't count ended, and what became of it."""
    found: dict[Point, list[str]] = {}
    for entry in facet.entries:
        for row in entry.bad:
            if _drawn(row, facet.measure):
                points = (
                    *_validation(row, kind, facet.measure)[-1:],
                    *_curve(row, kind, facet.measure)[-1:],
                )
                found.setdefault(max(points), []).append(f"{entry.method}: {row.outcome}")
    end = ax.get_xlim()[1]
    for (x, y), outcomes in sorted(found.items()):
        ax.plot(x, y, marker="x", color=style.FAILED, markersize=7, markeredgewidth=1.8, zorder=4)
        left = x > 0.5 * end
        written = ax.annotate(
            "\n".join(dict.fromkeys(outcomes)), (x, y), (-5 if left else 5, 6),
            textcoords="offset points", ha="right" if left else "left", va="bottom", fontsize=7.5,
            color=style.FAILED,
        )  # fmt: skip
        written.set_in_layout(False)


def _key(facets: Sequence[Sequence[Entry]], looks: style.Looks) -> list[Line2D]:
    """Methods as they look; in shades of grey where each model has its own colour."""
    found: dict[str, Entry] = {}
    for entries in facets:
        for entry in entries:
            found.setdefault(entry.cell.method.name, entry)
    names = [name for name in looks.methods if name in found]
    several = len(looks.models) > 1
    return [
        Line2D(
            [], [], color=style.GREY if several else looks.colour(found[name]),
            linestyle=looks.line(found[name]), marker=looks.marker(found[name]), markersize=4.5,
            label=style.short(name, 28),
        )
        for name in names
    ]  # fmt: skip
