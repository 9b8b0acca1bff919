"""Predicted against measured: on the diagonal the plan was right."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from bench.report import show
from bench.report.charts import style
from bench.report.compare import Entry, Panel
from bench.report.fits import Fit
from bench.report.plans import Planned

CAPTION = "Both axes logarithmic. On the line the prediction was exact; the band is ±10 %."

Point = tuple[Entry, float, float]  # entry, predicted, measured


def draw(panels: Sequence[Panel], looks: style.Looks) -> style.Chart | None:
    measures = {name: _points(panels, name) for name in ("memory", "speed", "cost")}
    known = {name: points for name, points in measures.items() if points}
    if not known:
        return None
    fig = style.figure(
        3.6 * len(known) + 2.0, 4.4, looks.whole_title("Predicted against measured"), CAPTION
    )
    axes = style.grid(fig, len(known), len(known))
    for ax, (name, points) in zip(axes, known.items(), strict=True):
        _panel(ax, name, points, looks)
    fig.legend(handles=looks.legend(), loc="outside right upper")
    return fig


UNITS = {"memory": "GiB reserved", "speed": "tokens/s", "cost": "USD a run"}


def _points(panels: Sequence[Panel], name: str) -> list[Point]:
    found = []
    for panel in panels:
        for entry in panel.entries:
            plan = next((row.plan for row in entry.good if row.plan), None)
            if plan is None:
                continue
            predicted, measured = _values(entry, plan, name)
            if predicted and measured:
                found.append((entry, predicted, measured))
    return found


def _values(entry: Entry, plan: Planned, name: str) -> tuple[float | None, float | None]:
    if name == "memory":
        measured = Fit((entry,)).measured_bytes
        reserved = plan.reserved_bytes
        return reserved and reserved / show.GIB, measured and measured / show.GIB
    if name == "speed":
        return plan.tokens_per_s, entry.speed.value if entry.speed else None
    return plan.usd, entry.cost.value if entry.cost else None


def _panel(ax: Axes, name: str, points: Sequence[Point], looks: style.Looks) -> None:
    values = [value for _, *both in points for value in both]
    low, high = min(values) / 1.4, max(values) * 1.4
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.fill_between([low, high], [low / 1.1, high / 1.1], [low * 1.1, high * 1.1], color="#e8f2ee")
    ax.plot([low, high], [low, high], color=style.GREY, linewidth=1)
    for entry, predicted, measured in points:
        (dot,) = ax.plot(
            measured, predicted, marker=looks.marker(entry), color=looks.colour(entry),
            markersize=7, markeredgecolor="white", markeredgewidth=0.7, linestyle="none",
        )  # fmt: skip
        off = show.share(abs(predicted / measured - 1))
        said = f"predicted {show.number(predicted)}, measured {show.number(measured)}, off by {off}"
        style.tip(ax, dot, f"{entry.label}: {said}")
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.6g}"))
    ax.set_xlabel(f"measured, {UNITS[name]}")
    ax.set_ylabel("predicted")
    ax.set_title(name.capitalize())
