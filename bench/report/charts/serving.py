"""A month's tokens against a month's bill, and the cost of serving against quality."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from bench.report import ownership, show
from bench.report.charts import style
from bench.report.compare import Panel
from bench.report.options import Option
from bench.report.serving import Point

Served = list[tuple[Option, Point]]
DECADES = (3.0, 1.0)  # of tokens, left and right of what one machine answers
SHOWN = 6  # lines of a panel: the cheapest


def draw(panels: Sequence[Panel], looks: style.Looks) -> style.Chart | None:
    """Bills of whole machines, with the band of their price, and of the API."""
    served = [(panel, found) for panel in panels if (found := _served(panel))]
    if not served:
        return None
    columns = min(2, len(served))
    lines = -(-len(served) // columns)
    fig = style.figure(
        4.8 * columns + 1.9, 3.7 * lines + 1.2, looks.title("Volume against monthly cost", panels),
        _caption(served[0][1]),
    )  # fmt: skip
    axes = style.grid(fig, len(served), columns)
    for ax, (panel, found) in zip(axes, served, strict=True):
        ax.set_title(panel.target)
        _bills(ax, found, looks)
    api = Line2D([], [], color=style.INK, linewidth=1.4, linestyle=(0, (5, 2)), label="API")
    even = style.dot("x", style.INK, "break-even")
    more = [api, even] if any(point.asked.api for _, f in served for _, point in f) else []
    shown = [option.entry for _, found in served for option, *_ in found]
    fig.legend(handles=[*looks.legend(shown), *more], loc="outside right upper")
    return fig


def _served(panel: Panel) -> Served:
    found = ownership.options(panel, panel.cell.constraints)
    found.sort(key=lambda one: one[1].offer.per_million.usd)
    return found[:SHOWN]


def _caption(found: Served) -> str:
    point = found[0][1]
    api = point.asked.api
    told = (
        f"Measured throughput at {show.share(point.offer.utilization)} utilisation; whole machines "
        "that run all month, and storage where it is priced. Bands: lowest to highest price of the "
        "machine."
    )
    if api is None:
        return told
    return (
        f"{told} API: {api.provider}, {show.usd(api.usd_per_million_input)} in and "
        f"{show.usd(api.usd_per_million_output)} out per million tokens ({api.date}), the same "
        "mix of both."
    )


def _bills(ax: Axes, found: Served, looks: style.Looks) -> None:
    capacity = max(point.offer.capacity for _, point in found)
    exponent = np.log10(capacity)
    volumes = np.logspace(exponent - DECADES[0], exponent + DECADES[1], 400)
    for option, point in found:
        bills = [point.offer.monthly(float(volume)) for volume in volumes]
        colour = looks.colour(option.entry)
        ax.fill_between(
            volumes, [b.low_usd for b in bills], [b.high_usd for b in bills], color=colour,
            alpha=0.13, linewidth=0,
        )  # fmt: skip
        (line,) = ax.plot(
            volumes, [b.usd for b in bills], color=colour, linewidth=1.6,
            linestyle=looks.line(option.entry),
        )  # fmt: skip
        style.tip(ax, line, f"{option.entry.label}: {_said(point)}")
    for price in dict.fromkeys(p.api_per_million for _, p in found if p.api_per_million):
        ax.plot(
            volumes, volumes * price / 1e6, color=style.INK, linewidth=1.1, linestyle=(0, (5, 2))
        )
    for _, point in found:
        even = point.break_even(point.offer.usd_per_hour.usd)
        if even:
            bill = point.offer.monthly(even).usd
            ax.plot(even, bill, marker="x", color=style.INK, markersize=7, zorder=4)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("Tokens a month")
    ax.set_ylabel("USD a month")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _short(x)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.6g}"))


def _short(value: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {letter}"
    return f"{value:g}"


def _said(point: Point) -> str:
    usd = point.offer.per_million.usd
    return f"{point.variant.name}, {point.load.concurrency} at once, {show.usd(usd)} per M tokens"


def draw_quality(panels: Sequence[Panel], looks: style.Looks) -> style.Chart | None:
    """Dollars per million tokens against the dataset's first metric."""
    served = [(p, f) for p in panels if (f := ownership.scored(p, p.cell.constraints))]
    if not served:
        return None
    columns = min(2, len(served))
    lines = -(-len(served) // columns)
    fig = style.figure(
        4.6 * columns + 1.9, 3.6 * lines + 1.1, looks.title("Cost of serving and quality", panels),
        "Measured. Across: the machine's price, lowest to highest. Upright: 95 % interval over "
        "test rows. Each at the concurrency with the highest throughput.",
    )  # fmt: skip
    axes = style.grid(fig, len(served), columns)
    for ax, (panel, found) in zip(axes, served, strict=True):
        ax.set_title(panel.target)
        _points(ax, panel, found, looks)
    api = Line2D([], [], color=style.INK, linewidth=1.1, linestyle=(0, (5, 2)), label="API's price")
    more = [api] if any(point.asked.api for _, f in served for _, point, _ in f) else []
    shown = [option.entry for _, found in served for option, *_ in found]
    fig.legend(handles=[*looks.legend(shown), *more], loc="outside right upper")
    return fig


def _points(
    ax: Axes, panel: Panel, found: list[tuple[Option, Point, float]], looks: style.Looks
) -> None:
    for option, point, value in found:
        usd, score = point.offer.per_million, option.score
        low = value if score is None or score.low is None else score.low
        high = value if score is None or score.high is None else score.high
        drawn = ax.errorbar(
            usd.usd, value, xerr=[[usd.usd - usd.low_usd], [usd.high_usd - usd.usd]],
            yerr=[[max(0.0, value - low)], [max(0.0, high - value)]],
            color=looks.colour(option.entry), marker=looks.marker(option.entry), markersize=7,
            markeredgecolor="white", elinewidth=1.0, capsize=2.5, linestyle="none", zorder=3,
        )  # fmt: skip
        said = f"{option.entry.label}: {panel.metric} {show.score(value)}, {_said(point)}"
        style.tip(ax, drawn.lines[0], said)
    for price in dict.fromkeys(p.api_per_million for _, p, _ in found if p.api_per_million):
        ax.axvline(price, color=style.INK, linewidth=1.1, linestyle=(0, (5, 2)))
    ax.set_xscale("log")
    ax.set_xlabel("USD per million tokens served")
    ax.set_ylabel(panel.metric)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.6g}"))
    ax.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: ""))
    ax.margins(x=0.15, y=0.14)
