"""Validation loss against training seconds, tokens and dollars, with the target as a line.

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

MOST = 6  # lines of panels: more can't be read

CAPTION = (
    "Measured. Evaluation, loading and saving are off the clock; dollars are those of the training "
    "steps. Thin: loss of each training step; with markers: validation loss; one line per seed."
)
AXES = {"s": "training seconds", "tokens": "training tokens", "usd": "USD of training steps"}

Point = tuple[float, float]


@dataclass(frozen=True)
class Facet:
    """One model on one target."""

    panel: Panel
    model: str
    entries: tuple[Entry, ...]

    @property
    def drawn(self) -> bool:
        return any(_drawn(row) for entry in self.entries for row in entry.rows)


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
            _facet(ax, facet.entries, looks, kind)
            if not index:
                ax.set_title(f"{style.short(facet.model, 34)} on {facet.panel.target}")
                ax.set_ylabel("nats per answer token")
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
    return found if len(found) <= MOST else sorted(found, key=_best)


def _best(facet: Facet) -> float:
    metric = facet.panel.metric
    scores = [quality.value for e in facet.entries if (quality := e.quality(metric))]
    return -max((compare.sign(metric) * s for s in scores if s is not None), default=-1e9)


def _drawn(row: Row) -> bool:
    return row.training is not None and bool(row.training.curve or row.training.validation)


def _x(row: Row, seconds: float, tokens: float, kind: str) -> float:
    if kind == "tokens":
        return tokens
    if kind == "s":
        return seconds
    target = row.cell.target
    return seconds / 3600 * target.devices * target.nodes * target.price.usd_per_device_hour


def _validation(row: Row, kind: str) -> list[Point]:
    training = row.training
    assert training is not None  # chosen by _drawn
    pairs = zip(training.validation, training.validation_tokens, strict=True)
    return [(_x(row, seconds, tokens, kind), loss) for (seconds, loss), tokens in pairs]


def _curve(row: Row, kind: str) -> list[Point]:
    training = row.training
    assert training is not None  # chosen by _drawn
    pairs = zip(training.curve, training.curve_tokens, strict=True)
    return [(_x(row, seconds, tokens, kind), loss) for (seconds, loss), tokens in pairs]


def _facet(ax: Axes, entries: Sequence[Entry], looks: style.Looks, kind: str) -> None:
    for entry in entries:
        for row in entry.rows:
            if row.training is not None:
                _row(ax, entry, row, looks, kind)
    _ends(ax, entries, kind)
    targets = {row.convergence.target_loss for e in entries for row in e.rows if row.convergence}
    for loss in sorted(t for t in targets if t is not None):
        ax.axhline(loss, color=style.INK, linestyle="--", linewidth=0.9, zorder=1)
        ax.annotate(
            f"target {loss:.3g}", (0, loss), (4, 2), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="left", va="bottom", fontsize=7.5, color=style.INK,
        )  # fmt: skip
    ax.set_xlabel(AXES[kind])
    ax.set_xlim(left=-0.02 * ax.get_xlim()[1])
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.6g}"))


def _row(ax: Axes, entry: Entry, row: Row, looks: style.Looks, kind: str) -> None:
    colour = looks.shade(entry)
    if curve := _curve(row, kind):
        ax.plot(*zip(*curve, strict=True), color=colour, linewidth=0.7, alpha=0.4)
    if points := _validation(row, kind):
        (line,) = ax.plot(
            *zip(*points, strict=True), color=colour, linewidth=1.5, linestyle=looks.line(entry),
            marker=looks.marker(entry), markersize=4.5, markeredgecolor="white",
            markeredgewidth=0.5, zorder=3,
        )  # fmt: skip
        losses = f"{show.number(points[0][1])} → {show.number(points[-1][1])}"
        style.tip(ax, line, f"{entry.label}, seed {row.cell.seed}: validation loss {losses}")


def _ends(ax: Axes, entries: Sequence[Entry], kind: str) -> None:
    """A cross where a run that doesn't count ended, and what became of it."""
    found: dict[Point, list[str]] = {}
    for entry in entries:
        for row in entry.bad:
            if _drawn(row):
                points = (*_validation(row, kind)[-1:], *_curve(row, kind)[-1:])
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
