"""What charts with one line per entry share: labels, spacing between models, failed entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from bench.report import compare, show
from bench.report.charts import style
from bench.report.compare import Entry, Panel

LINE_IN = 0.33  # height of an entry
GAP = 0.55  # between models, in entries

Chosen = Callable[[Panel], Sequence[Entry]]


MOST = 24  # lines in a panel: more can't be read; the tables have all


def everything(panel: Panel) -> Sequence[Entry]:
    return _best(panel, panel.entries)


def trained(panel: Panel) -> Sequence[Entry]:
    return _best(panel, [entry for entry in panel.entries if entry.cell.method.trains])


def _best(panel: Panel, entries: Sequence[Entry]) -> Sequence[Entry]:
    """The MOST best by the first metric, in the panel's order."""
    if len(entries) <= MOST:
        return entries
    ranked = [id(entry) for entry, _ in compare.ranked(panel, panel.metric)]
    place = {entry: rank for rank, entry in enumerate(ranked)}
    best = sorted(entries, key=lambda entry: place.get(id(entry), len(place)))[:MOST]
    kept = {id(entry) for entry in best}
    return [entry for entry in entries if id(entry) in kept]


def left_out(panels: Sequence[Panel]) -> str:
    """What a caption says where not every entry is drawn."""
    if all(len(panel.entries) <= MOST for panel in panels):
        return ""
    return f" Of each panel's entries the {MOST} with the best scores; the table has all."


def metric_grid(
    fig: style.Chart,
    panels: Sequence[Panel],
    metrics: Sequence[str],
    draw: Callable[[Axes, Panel, str], None],
) -> None:
    """One line of axes a panel, one column a metric; labels on the left alone."""
    heights = [height(everything(panel)) for panel in panels]
    axes = fig.subplots(len(panels), len(metrics), squeeze=False, height_ratios=heights)
    for line, panel in zip(axes, panels, strict=True):
        for index, (ax, metric) in enumerate(zip(line, metrics, strict=True)):
            draw(ax, panel, metric)
            if index:
                ax.set_yticklabels([])
            ax.set_title(f"{panel.target}\n{metric}" if not index else metric)


def positions(entries: Sequence[Entry]) -> list[float]:
    """Heights from the top down, with a gap where the model changes."""
    found: list[float] = []
    y = 0.0
    for index, entry in enumerate(entries):
        if index:
            y += 1 + (GAP if entry.model != entries[index - 1].model else 0)
        found.append(y)
    return found


def height(entries: Sequence[Entry]) -> float:
    """Inches that a panel needs."""
    return LINE_IN * ((positions(entries) or [0.0])[-1] + 1) + 0.9


def prepare(ax: Axes, entries: Sequence[Entry], looks: style.Looks) -> list[float]:
    """Set the labels of an axis with one line per entry; returns their heights."""
    ys = positions(entries)
    ax.set_ylim((ys[-1] if ys else 0) + 0.7, -0.7)
    ax.set_yticks(ys, style.entry_labels(entries, looks))
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    return ys


def figure(
    chosen: Sequence[Sequence[Entry]],
    looks: style.Looks,
    title: str,
    caption: str,
    columns: int = 2,
) -> tuple[style.Chart, list[Axes]]:
    """A figure with one panel for each list of entries, as high as the fullest one needs."""
    columns = min(columns, len(chosen))
    lines = -(-len(chosen) // columns)
    labels = [label for entries in chosen for label in style.entry_labels(entries, looks)]
    room = 0.07 * max(map(len, labels), default=0)
    width = max(7.0, (4.2 + room) * columns)
    fig = style.figure(width, max(map(height, chosen)) * lines + 0.9, title, caption)
    return fig, style.grid(fig, len(chosen), columns)


def value(ax: Axes, x: float, y: float, text: str, colour: str = style.INK) -> None:
    """A value right of a bar's end."""
    written = ax.annotate(
        text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=7.5, color=colour
    )
    written.set_in_layout(False)


def failed(ax: Axes, y: float, text: str, reach: float | None = None) -> None:
    """A hatched stub (or a bar up to the last thing recorded) that says what happened."""
    end = reach or 0.015 * ax.get_xlim()[1]
    ax.barh(
        y, end, height=0.62, facecolor="none", edgecolor=style.FAILED, hatch="/////",
        linewidth=0.8, zorder=2,
    )  # fmt: skip
    status(ax, y, style.short(text, 52), 0.03)


def status(ax: Axes, y: float, text: str, x: float = 0.02) -> None:
    """Words instead of a value, at a height, from a share of the axis on."""
    written = ax.text(
        x, y, text, transform=ax.get_yaxis_transform(), va="center", fontsize=7.5,
        color=style.FAILED, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2}, zorder=5,
    )  # fmt: skip
    written.set_in_layout(False)


def story(entry: Entry) -> str:
    """What happened to an entry that has nothing to show, and where."""
    if len({(row.outcome, row.why) for row in entry.bad}) > 1:
        return entry.status
    row = entry.bad[0]
    where = f" in {row.stage}" if row.stage and row.status not in ("skipped", "not run") else ""
    return show.plain(f"{entry.status}{where}: {row.why}")


def failed_key() -> Patch:
    return Patch(facecolor="none", edgecolor=style.FAILED, hatch="/////", label="did not work")
