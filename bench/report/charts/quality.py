"""Every metric of every entry, with its interval and its seeds; the untuned model is a line."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bench.report import show
from bench.report.charts import bars, style
from bench.report.compare import Entry, Panel

METRICS = 4  # panels in a row: more would be too narrow; the table has all

CAPTION = (
    "Measured. Error bars: 95 % interval over test rows, resampled (the widest of any seed); small "
    "dots: seeds."
)


def draw(panels: Sequence[Panel], looks: style.Looks) -> style.Chart | None:
    if not any(entry.quality(m) for p in panels for entry in p.entries for m in p.metrics):
        return None
    metrics = shown(panels)
    labels = [
        label for panel in panels for label in style.entry_labels(bars.everything(panel), looks)
    ]
    width = max(7.0, 0.075 * max(map(len, labels)) + 2.5 * len(metrics) + 0.5)
    height = sum(bars.height(bars.everything(panel)) for panel in panels) + 1.0
    left_out = len(_known(panels)) - len(metrics)
    more = f" {left_out} more in the table." if left_out else ""
    fig = style.figure(
        width, height, looks.title("Quality", panels), CAPTION + more + bars.left_out(panels)
    )
    bars.metric_grid(fig, panels, metrics, lambda ax, panel, m: _panel(ax, panel, m, looks))
    return fig


def _known(panels: Sequence[Panel]) -> list[str]:
    """Metrics that have a value in some panel; they are the same for all of a dataset's panels."""
    names = dict.fromkeys(metric for panel in panels for metric in panel.metrics)
    return [m for m in names if any(e.quality(m) for p in panels for e in p.entries)]


def shown(panels: Sequence[Panel]) -> list[str]:
    """The first metric of each answer field, then the others, as many as fit."""
    known = _known(panels)
    firsts = {metric.partition(".")[0]: metric for metric in reversed(known)}.values()
    ranked = [m for m in known if m in firsts] + [m for m in known if m not in firsts]
    return [m for m in known if m in ranked[:METRICS]]


def _panel(ax: Axes, panel: Panel, metric: str, looks: style.Looks) -> None:
    entries = bars.everything(panel)
    ys = bars.prepare(ax, entries, looks)
    ax.margins(x=0.12)
    for y, entry in zip(ys, entries, strict=True):
        _entry(ax, y, entry, metric, looks)
    _base_lines(ax, panel, metric, ys)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    for y, entry in zip(ys, entries, strict=True):
        if entry.quality(metric) is None:
            text = entry.status if not entry.good else "no value"
            bars.status(ax, y, style.short(text, 26))


def _entry(ax: Axes, y: float, entry: Entry, metric: str, looks: style.Looks) -> None:
    quality = entry.quality(metric)
    if quality is None or quality.value is None:
        return
    seeds = entry.seeds(metric)
    if len(seeds) > 1:
        ax.plot(
            [value for _, value in seeds], [y + 0.24] * len(seeds), linestyle="none", marker=".",
            markersize=4, color=looks.colour(entry), alpha=0.7, zorder=2,
        )  # fmt: skip
    reach = None
    if quality.low is not None and quality.high is not None:
        below, above = quality.value - quality.low, quality.high - quality.value
        reach = [[max(0.0, below)], [max(0.0, above)]]
    drawn = ax.errorbar(
        quality.value, y, xerr=reach, color=looks.colour(entry), marker=looks.marker(entry),
        markersize=6.5, markeredgecolor="white", markeredgewidth=0.6, elinewidth=1.2, capsize=2.5,
        zorder=3,
    )  # fmt: skip
    bounds = show.between(quality.low, quality.high, show.score)
    said = f"{show.score(quality.value)}" + (f" ({bounds})" if bounds else "")
    style.tip(ax, drawn.lines[0], f"{entry.label}: {metric} {said}")


def _base_lines(ax: Axes, panel: Panel, metric: str, ys: Sequence[float]) -> None:
    """A dotted line at the untuned model's value, along the entries of its model."""
    heights: dict[str, list[float]] = {}
    for y, entry in zip(ys, bars.everything(panel), strict=True):
        heights.setdefault(entry.model, []).append(y)
    for entry in panel.entries:
        quality = entry.quality(metric)
        if (
            entry.model in heights
            and entry is panel.base(entry)
            and quality
            and quality.value is not None
        ):
            along = heights[entry.model]
            ax.plot(
                [quality.value] * 2, [min(along) - 0.4, max(along) + 0.4], linestyle=":",
                linewidth=1, color=style.GREY, zorder=1,
            )  # fmt: skip
