"""Predicted memory at the peak, by what it is for, against what the device has."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from bench.report import show
from bench.report.charts import style
from bench.report.compare import Panel
from bench.report.fits import Fit, fits

MOST = 40  # bars in a panel: more can't be read; the table has all
FAR = 2.5  # capacities in a panel that are so much larger than its bars are named, not drawn

CAPTION = (
    "Predicted: what is alive on the fullest device at the peak of the training step. Dashed: what "
    "the device has. Diamond: the measured peak, where the cell ran."
)


def draw(panels: Sequence[Panel], looks: style.Looks) -> style.Chart | None:
    found = [fit for fit in fits(panels) if fit.plan and fit.plan.breakdown]
    if not found:
        return None
    targets = list(dict.fromkeys(fit.cell.cell.target.name for fit in found))
    groups = [[f for f in found if f.cell.cell.target.name == name][:MOST] for name in targets]
    parts = list(dict.fromkeys(part for fit in found for part in _parts(fit)))
    heights = [0.3 * len(group) + 0.9 for group in groups]
    labels = [_label(fit) for group in groups for fit in group]
    fig = style.figure(
        max(8.0, 0.075 * max(map(len, labels)) + 6.5), sum(heights) + 1.1,
        looks.whole_title("Predicted memory by what it is for"), CAPTION,
    )  # fmt: skip
    axes = fig.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, name, group in zip(axes, targets, groups, strict=True):
        _panel(ax, name, group, parts)
    handles: list[Patch | Line2D] = [
        Patch(color=_colour(index), label=part.replace("_", " "))
        for index, part in enumerate(parts)
    ]
    handles.append(Line2D([], [], color=style.INK, linestyle="--", linewidth=1, label="device has"))
    fig.legend(handles=handles, loc="outside right upper")
    return fig


def _parts(fit: Fit) -> dict[str, float]:
    """GiB; the largest first."""
    assert fit.plan is not None  # chosen by draw
    sizes = sorted(fit.plan.breakdown.items(), key=lambda part: -part[1])
    return {name: size / show.GIB for name, size in sizes if size > 0}


def _colour(index: int) -> str:
    return style.COLOURS[index % len(style.COLOURS)]


def _label(fit: Fit) -> str:
    return f"{style.short(fit.cell.cell.model.name, 28)} × {style.short(fit.entries[0].method, 18)}"


def _panel(ax: Axes, name: str, group: Sequence[Fit], parts: Sequence[str]) -> None:
    longest = 0.0
    for y, fit in enumerate(group):
        left = 0.0
        for index, part in enumerate(parts):
            size = _parts(fit).get(part, 0.0)
            if size:
                (bar,) = ax.barh(y, size, left=left, height=0.66, color=_colour(index), zorder=2)
                said = f"{_label(fit)}: {part.replace('_', ' ')} {show.number(size)} GiB"
                style.tip(ax, bar, said)
                left += size
        if (measured := fit.measured_bytes) is not None:
            ax.plot(measured / show.GIB, y, marker="D", color=style.INK, markersize=5, zorder=4)
        ax.annotate(
            show.number(left), (left, y), (5, 0), textcoords="offset points", va="center",
            fontsize=7.5, color=style.INK, zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},  # over the limit's line
        )  # fmt: skip
        longest = max(longest, left)
    have = group[0].capacity_bytes
    gib = have / show.GIB if have else None
    if gib and gib < FAR * longest:
        ax.axvline(gib, color=style.INK, linestyle="--", linewidth=1, zorder=3)
    ax.set_xlim(0, 1.1 * max(longest, gib if gib and gib < FAR * longest else 0.0))
    ax.set_ylim(len(group) - 0.4, -0.6)
    ax.set_yticks(range(len(group)), [_label(fit) for fit in group])
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    ax.xaxis.set_major_locator(MaxNLocator(7))
    ax.set_title(f"{name}: a device has {show.number(gib)} GiB" if gib else name)
    ax.set_xlabel("GiB on the fullest device")
