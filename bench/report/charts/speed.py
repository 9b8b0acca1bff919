"""Training tokens/s of each model × method, with the interval of the median."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bench.report import show
from bench.report.charts import bars, style
from bench.report.compare import Entry, Panel

CAPTION = (
    "Measured: non-padding input tokens ÷ synchronised step seconds, all devices together; median "
    "over counted steps, mean over seeds. Error bars: 95 % interval of the median (the widest of "
    "any seed)."
)


def draw(panels: Sequence[Panel], looks: style.Looks) -> style.Chart | None:
    panels = [panel for panel in panels if bars.trained(panel)]
    if not any(entry.speed for panel in panels for entry in panel.entries):
        return None
    chosen = [bars.trained(panel) for panel in panels]
    marked = any(entry.unstable for entries in chosen for entry in entries if entry.speed)
    caption = CAPTION + bars.left_out(panels) + (" ~: unstable, see the table." if marked else "")
    fig, axes = bars.figure(chosen, looks, looks.title("Training speed", panels), caption)
    for ax, panel, entries in zip(axes, panels, chosen, strict=True):
        ax.set_title(panel.target)
        _panel(ax, entries, looks)
    return fig


def _panel(ax: Axes, entries: Sequence[Entry], looks: style.Looks) -> None:
    ys = bars.prepare(ax, entries, looks)
    speeds = [entry.speed for entry in entries]
    ends = [max(s.value or 0.0, s.high or 0.0) for s in speeds if s]
    ax.set_xlim(0, 1.22 * max(ends, default=0.0) or 1.0)
    for y, entry, speed in zip(ys, entries, speeds, strict=True):
        if speed is None or speed.value is None:
            bars.failed(ax, y, bars.story(entry) if entry.bad else "no step was counted")
            continue
        (bar,) = ax.barh(y, speed.value, height=0.62, color=looks.colour(entry), zorder=2)
        style.tip(ax, bar, f"{entry.label}: {show.number(speed.value)} tokens/s")
        end = speed.value
        if speed.low is not None and speed.high is not None:
            reach = [[max(0.0, end - speed.low)], [max(0.0, speed.high - end)]]
            ax.errorbar(end, y, xerr=reach, color=style.INK, elinewidth=1, capsize=2.5, zorder=3)
            end = max(end, speed.high)
        text = ("~" if entry.unstable else "") + show.number(speed.value)
        lost = f"  {entry.status}" if entry.bad else ""
        bars.value(ax, end, y, text + lost, style.FAILED if lost else style.INK)
    ax.set_xlabel("tokens/s")
    ax.xaxis.set_major_locator(MaxNLocator(6))
