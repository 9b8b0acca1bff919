"""Cost against quality, with the Pareto step: above and left of it, nothing was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from bench.report import compare, show
from bench.report.charts import style
from bench.report.charts.labels import Named, place
from bench.report.compare import Entry, Panel
from bench.report.measures import Estimate

NAMED = 10  # with more points in a panel, only those on the Pareto step are named


def draw(panels: Sequence[Panel], looks: style.Looks) -> style.Chart | None:
    facets = [facet for facet in _facets(panels) if _points(facet.panel)]
    if not facets:
        return None
    columns = min(2, len(facets))
    lines = -(-len(facets) // columns)
    fig = style.figure(
        4.6 * columns + 1.9, 3.6 * lines + 1.1, looks.title("Cost against quality", panels),
        _caption(panels),
    )  # fmt: skip
    axes = style.grid(fig, len(facets), columns)
    for ax, facet in zip(axes, facets, strict=True):
        ax.set_title(facet.title)
        _panel(ax, facet.panel, looks)
    step = Line2D([], [], color=style.GREY, linewidth=1.2, label="Pareto step")
    fig.legend(handles=[*looks.legend(), step], loc="outside right upper")
    fig.draw_without_rendering()  # lays out: from here on positions are known
    for ax, facet in zip(axes, facets, strict=True):
        place(ax, _names(facet.panel, looks), _step(ax, facet.panel))
    return fig


@dataclass(frozen=True)
class Facet:
    """The models of one size on one target, and all APIs: what is really chosen between."""

    title: str
    panel: Panel


SIZES = ((1e9, "below 1B"), (1e10, "1B to 10B"), (1e11, "10B to 100B"), (float("inf"), "over 100B"))


def _facets(panels: Sequence[Panel]) -> list[Facet]:
    found = []
    for panel in panels:
        sizes: dict[str, list[Entry]] = {}
        guests = tuple(entry for entry in panel.entries if entry.is_api)
        for entry in panel.entries:
            if params := entry.cell.model.params:
                size = next(name for most, name in SIZES if params < most)
                sizes.setdefault(size, []).append(entry)
        for size, entries in sizes.items() or [("", [])]:
            title = panel.target if len(sizes) < 2 else f"{panel.target}, models {size}"
            found.append(Facet(title, replace(panel, entries=(*entries, *guests))))
    return found


def _caption(panels: Sequence[Panel]) -> str:
    lines = [
        "Measured. Error bars: 95 % interval over test rows (the widest of any seed). "
        "Pareto step: nothing measured is both better and cheaper."
    ]
    if any(entry.is_api for panel in panels for entry in panel.entries):
        lines.append("Behind an API: the tokens of the test's answers; nothing is trained.")
    lost = [
        f"{style.short(entry.model, 26)} × {entry.method} on {panel.target} ({entry.status})"
        for panel in panels
        for entry in panel.entries
        if not entry.good
    ]
    if lost:
        more = f" and {len(lost) - 6} more" if len(lost) > 6 else ""
        lines.append(f"Without a point: {', '.join(lost[:6])}{more}.")
    return "\n".join(lines)


def _points(panel: Panel) -> list[tuple[Entry, float, Estimate]]:
    found = []
    for entry, quality in compare.ranked(panel, panel.metric):
        effort = panel.effort(entry)
        if effort and effort.value is not None:
            found.append((entry, effort.value, quality))
    return found


def _panel(ax: Axes, panel: Panel, looks: style.Looks) -> None:
    points = _points(panel)
    paler = 0.0 if len(points) <= NAMED else 0.55
    for entry, x, quality in points:
        colour = looks.colour(entry)
        drawn = ax.errorbar(
            x, quality.value or 0.0, yerr=_reach(quality), color=colour,
            ecolor=style.mixed(colour, "#ffffff", paler), marker=looks.marker(entry), markersize=7,
            markeredgecolor="white", markeredgewidth=0.7, elinewidth=1.1, capsize=2.5,
            linestyle="none", zorder=3,
        )  # fmt: skip
        style.tip(ax, drawn.lines[0], _said(panel, entry, x, quality))
    _scale(ax, [x for _, x, _ in points])
    if step := _step(ax, panel):
        ax.plot(*zip(*step, strict=True), color=style.GREY, linewidth=1.2, zorder=1)
    unit = "all phases of a run, USD" if panel.priced else "all phases of a run, device-hours"
    ax.set_xlabel(f"Cost ({unit})")
    ax.set_ylabel(panel.metric)


def _said(panel: Panel, entry: Entry, x: float, quality: Estimate) -> str:
    bounds = show.between(quality.low, quality.high, show.score)
    score = show.score(quality.value) + (f" ({bounds})" if bounds else "")
    effort = show.usd(x) if panel.priced else f"{show.number(x)} device-hours"
    return f"{entry.label}: {panel.metric} {score} for {effort}"


def _reach(quality: Estimate) -> list[list[float]] | None:
    if quality.value is None or quality.low is None or quality.high is None:
        return None
    return [[max(0.0, quality.value - quality.low)], [max(0.0, quality.high - quality.value)]]


def _scale(ax: Axes, costs: list[float]) -> None:
    """Logarithmic where costs spread over more than a factor of eight; room at both ends."""
    low, high = min(costs), max(costs)
    if low > 0 and high / low > 8:
        ax.set_xscale("log")
        ax.set_xlim(low / 1.8, high * 1.8)
        many = high / low > 300
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if many else (1.0, 2.0, 5.0)))
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        room = (high - low) * 0.3 or high * 0.3 or 1.0
        ax.set_xlim(max(0.0, low - room), high + room)
        ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.6g}"))
    ax.margins(y=0.14)


def _step(ax: Axes, panel: Panel) -> list[tuple[float, float]]:
    """From each member to the right until below the next one, then up to it; on to the edge."""
    members = {id(entry) for entry in compare.pareto(panel)}
    front = sorted((x, q.value or 0.0) for e, x, q in _points(panel) if id(e) in members)
    path: list[tuple[float, float]] = []
    for x, y in front:
        path += [(x, path[-1][1]), (x, y)] if path else [(x, y)]
    return [*path, (ax.get_xlim()[1], path[-1][1])] if path else []


def _names(panel: Panel, looks: style.Looks) -> list[Named]:
    points = _points(panel)
    front = {id(entry) for entry in compare.pareto(panel)}
    several = len(looks.models) > 1
    found = []
    for entry, x, quality in points:
        name = f"{style.short(entry.model, 20)} × {entry.method}" if several else entry.method
        text = style.short(name, 30) if len(points) <= NAMED or id(entry) in front else ""
        bounds = (quality.low, quality.high) if len(points) <= NAMED else (None, None)
        found.append(Named(x, quality.value or 0.0, text, *bounds))
    return found
