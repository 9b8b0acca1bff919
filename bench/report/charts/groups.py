"""Gain over the untuned model in each group: who profits, who loses.

A table of colours: it stays readable with many groups and many entries, where bars would not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm

from bench.report import compare
from bench.report.charts import bars, style
from bench.report.charts.quality import shown
from bench.report.compare import Panel
from bench.report.show import signed

METRICS = 3  # the first metric of so many answer fields


def draw(panels: Sequence[Panel], looks: style.Looks) -> style.Chart | None:
    panels = [
        panel
        for panel in panels
        if panel.groups and any(_gains(panel, m) for m in _metrics([panel]))
    ]
    if not panels:
        return None
    metrics = _metrics(panels)
    groups = max(len(panel.groups) for panel in panels)
    labels = [label for p in panels for label in style.entry_labels(bars.trained(p), looks)]
    width = 0.075 * max(map(len, labels)) + len(metrics) * max(2.2, 0.62 * groups) + 1.2
    height = sum(bars.height(bars.trained(panel)) + 0.4 for panel in panels) + 0.9
    fig = style.figure(
        max(7.0, width), height, looks.title("Gain over the untuned model, by group", panels),
        "Measured: the entry's score minus base's on the same test rows; mean over seeds. Orange: "
        "better, purple: worse. Below each group its test rows.",
    )  # fmt: skip
    bars.metric_grid(fig, panels, metrics, lambda ax, panel, m: _panel(ax, panel, m, looks))
    return fig


def _metrics(panels: Sequence[Panel]) -> list[str]:
    known = [m for m in shown(panels) if any(_gains(panel, m) for panel in panels)]
    firsts = {metric.partition(".")[0]: metric for metric in reversed(known)}.values()
    return [metric for metric in known if metric in firsts][:METRICS]


def _gains(panel: Panel, metric: str) -> dict[tuple[int, int], float]:
    """(entry, group) → gain, where both the entry and its base have a value."""
    found = {}
    for i, entry in enumerate(bars.trained(panel)):
        for j, group in enumerate(panel.groups):
            gain = compare.group_gain(panel, entry, group, metric)
            if gain is not None:
                found[i, j] = gain
    return found


def _panel(ax: Axes, panel: Panel, metric: str, looks: style.Looks) -> None:
    entries, gains = bars.trained(panel), _gains(panel, metric)
    values = np.full((len(entries), len(panel.groups)), np.nan)
    for place, gain in gains.items():
        values[place] = gain
    reach = max((abs(gain) for gain in gains.values()), default=1.0) or 1.0
    better = "PuOr_r" if compare.sign(metric) > 0 else "PuOr"
    norm = TwoSlopeNorm(0, -1.8 * reach, 1.8 * reach)  # pale enough for dark numbers
    ax.pcolormesh(values, cmap=better, norm=norm, edgecolors="white", linewidth=1.5)
    for (i, j), gain in gains.items():
        ax.text(
            j + 0.5, i + 0.5, signed(gain), ha="center", va="center", fontsize=8,
            color=style.ON_COLOUR,
        )  # fmt: skip
    for i, entry in enumerate(entries):
        if not any(place[0] == i for place in gains):
            text = entry.status if not entry.good else "no base to compare with"
            ax.text(
                0.1, i + 0.5, style.short(text, 30), va="center", fontsize=7.5, color=style.FAILED
            )
    _axes(ax, panel, looks)


def _axes(ax: Axes, panel: Panel, looks: style.Looks) -> None:
    entries = bars.trained(panel)
    rows = [compare.group_rows(panel, group) for group in panel.groups]
    names = [
        style.short(group, 16) + (f"\n{n} rows" if n is not None else "")
        for group, n in zip(panel.groups, rows, strict=True)
    ]
    crowded = len(names) > 4 or max(map(len, names)) > 18
    ax.set_xticks(
        np.arange(len(names)) + 0.5, names, fontsize=7.5, rotation=40 if crowded else 0,
        ha="right" if crowded else "center", rotation_mode="anchor" if crowded else None,
    )  # fmt: skip
    ax.set_yticks(np.arange(len(entries)) + 0.5, style.entry_labels(entries, looks))
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.grid(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
