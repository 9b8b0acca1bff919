"""Loss against training seconds: training thin, validation with markers, the target as a line.

One panel per model and target: losses of different tokenizers don't compare.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bench.report.charts import bars, style
from bench.report.compare import Entry, Panel
from bench.report.rows import Row

CAPTION = (
    "Measured. Evaluation, loading and saving are off the clock. Thin: loss of each training step; "
    "with markers: validation loss; one line per seed."
)


def draw(panels: Sequence[Panel], looks: style.Looks) -> Figure | None:
    facets = [
        (panel, model, [e for e in bars.trained(panel) if e.model == model])
        for panel in panels
        for model in dict.fromkeys(entry.model for entry in bars.trained(panel))
    ]
    facets = [facet for facet in facets if any(_drawn(row) for e in facet[2] for row in e.rows)]
    if not facets:
        return None
    columns = min(3 if len(facets) > 2 else 2, len(facets))
    lines = -(-len(facets) // columns)
    fig = style.figure(
        max(7.0, 4.0 * columns + 1.5), 3.0 * lines + 1.2, looks.title("Loss against time", panels),
        CAPTION,
    )  # fmt: skip
    for ax, (panel, model, entries) in zip(
        style.grid(fig, len(facets), columns), facets, strict=True
    ):
        ax.set_title(f"{style.short(model, 34)}\n{panel.target}")
        _facet(ax, entries, looks)
    fig.legend(handles=_key([f[2] for f in facets], looks), loc="outside right upper")
    return fig


def _drawn(row: Row) -> bool:
    return row.training is not None and bool(row.training.curve or row.training.validation)


def _facet(ax: Axes, entries: Sequence[Entry], looks: style.Looks) -> None:
    for entry in entries:
        for row in entry.rows:
            if row.training is not None:
                _row(ax, entry, row, looks)
    _ends(ax, entries)
    targets = {row.convergence.target_loss for e in entries for row in e.rows if row.convergence}
    for loss in sorted(t for t in targets if t is not None):
        ax.axhline(loss, color=style.INK, linestyle="--", linewidth=0.9, zorder=1)
        ax.annotate(
            f"target {loss:.3g}", (0, loss), (4, 2), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="left", va="bottom", fontsize=7.5, color=style.INK,
        )  # fmt: skip
    ax.set_xlabel("training seconds")
    ax.set_ylabel("nats per answer token")
    ax.set_xlim(left=-0.02 * ax.get_xlim()[1])
    ax.xaxis.set_major_locator(MaxNLocator(5))


def _row(ax: Axes, entry: Entry, row: Row, looks: style.Looks) -> None:
    assert row.training is not None
    colour = looks.shade(entry)
    if row.training.curve:
        ax.plot(*zip(*row.training.curve, strict=True), color=colour, linewidth=0.7, alpha=0.4)
    points = row.training.validation
    if points:
        ax.plot(
            *zip(*points, strict=True), color=colour, linewidth=1.5, linestyle=looks.line(entry),
            marker=looks.marker(entry), markersize=4.5, markeredgecolor="white",
            markeredgewidth=0.5, zorder=3,
        )  # fmt: skip


def _ends(ax: Axes, entries: Sequence[Entry]) -> None:
    """A cross where a run that doesn't count ended, and what became of it."""
    found: dict[tuple[float, float], list[str]] = {}
    for entry in entries:
        for row in entry.bad:
            if row.training is not None and _drawn(row):
                points = (*row.training.validation[-1:], *row.training.curve[-1:])
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
