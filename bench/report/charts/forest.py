"""Paired differences with their intervals: what crosses zero is open, what stays in δ is alike."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from bench.report import differences, show
from bench.report.charts import style
from bench.report.compare import Pair, Panel
from bench.score.verdicts import Verdict

MOST = 24  # lines in a panel: more can't be read; differences.csv has all
COLOURS = {
    "better": "#0072B2",
    "worse": "#D55E00",
    "equivalent": "#009E73",
    "not resolved": style.GREY,
}
MARKERS = {"better": ">", "worse": "<", "equivalent": "D", "not resolved": "o"}

CAPTION = (
    "Measured: A minus B on the same test rows, with its 95 % interval (rows resampled; seeds too "
    "where both sides have several). Colour and marker: the verdict on A after Holm's correction; "
    "an interval alone isn't corrected. Band: ±δ, the suite's margin."
)


def draw(panels: Sequence[Panel], looks: style.Looks) -> style.Chart | None:
    chosen = [(panel, _pairs(panel)) for panel in panels]
    chosen = [(panel, found) for panel, found in chosen if found]
    if not chosen:
        return None
    heights = [0.33 * len(found) + 0.9 for _, found in chosen]
    labels = [_label(pair, looks) for _, found in chosen for pair in found]
    fig = style.figure(
        max(7.0, 0.075 * max(map(len, labels)) + 5.0), sum(heights) + 1.1,
        looks.title("Differences", panels), CAPTION,
    )  # fmt: skip
    axes = fig.subplots(len(chosen), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (panel, found) in zip(axes, chosen, strict=True):
        _panel(ax, panel, found, looks)
    return fig


def _pairs(panel: Panel) -> list[Pair]:
    return [p for p in differences.shown(panel, panel.metric) if p.difference][:MOST]


def _label(pair: Pair, looks: style.Looks) -> str:
    a, b = style.entry_labels([pair.a, pair.b], looks)
    return f"{a} − {b}"


def _panel(ax: Axes, panel: Panel, found: Sequence[Pair], looks: style.Looks) -> None:
    margin = panel.comparison.delta(panel.metric)
    if margin is not None:
        ax.axvspan(-margin, margin, color="#e8f2ee", zorder=0)
    ax.axvline(0, color=style.INK, linewidth=0.8, zorder=1)
    for y, pair in enumerate(found):
        _line(ax, y, pair)
    ax.set_yticks(range(len(found)), [_label(pair, looks) for pair in found])
    ax.set_ylim(len(found) - 0.3, -0.7)
    _verdicts(ax, found)
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    ax.margins(x=0.12)
    ax.xaxis.set_major_locator(MaxNLocator(7))
    ax.set_title(f"{panel.target}\n{panel.metric}, A − B")


def _line(ax: Axes, y: float, pair: Pair) -> None:
    value, verdict = pair.difference, pair.verdict
    assert value is not None and verdict is not None  # chosen by _pairs
    colour = COLOURS[verdict.outcome]
    reach = None
    if value.low is not None and value.high is not None:
        reach = [[max(0.0, value.value - value.low)], [max(0.0, value.high - value.value)]]
    drawn = ax.errorbar(
        value.value, y, xerr=reach, color=colour, marker=MARKERS[verdict.outcome], markersize=6.5,
        markeredgecolor="white", markeredgewidth=0.6, elinewidth=1.3, capsize=2.5, zorder=3,
    )  # fmt: skip
    bounds = show.between(value.low, value.high, show.difference)
    said = f"{show.difference(value.value)} ({bounds}), p {show.p_value(verdict.p)}"
    style.tip(ax, drawn.lines[0], f"{pair.a.label} − {pair.b.label}: {said}: {verdict.words}")


def _verdicts(ax: Axes, found: Sequence[Pair]) -> None:
    """In words on the right: labels of an axis, so that the layout makes room for them."""
    right = ax.twinx()
    verdicts = [pair.verdict for pair in found if pair.verdict]
    words = [f"{_short(v)}\np {show.p_value(v.p)}" for v in verdicts]
    right.set_yticks(range(len(words)), words, fontsize=7.5)
    right.set_ylim(len(found) - 0.3, -0.7)
    right.tick_params(axis="y", length=0)
    right.grid(False)
    for label, verdict in zip(right.get_yticklabels(), verdicts, strict=True):
        label.set_color(COLOURS[verdict.outcome])


def _short(verdict: Verdict) -> str:
    if verdict.outcome == "equivalent":
        return f"within ±{verdict.difference.margin:g}"
    return verdict.outcome
