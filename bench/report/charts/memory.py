"""Peak memory of each model × method, against what the target has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from bench.report import show
from bench.report.charts import bars, style
from bench.report.compare import Entry, Panel
from bench.spec import Cell

FAR = 2.5  # a limit this many times the longest bar is named, not drawn: it would flatten the bars


def draw(panels: Sequence[Panel], looks: style.Looks) -> style.Chart | None:
    own = [tuple(e for e in panel.entries if not e.is_api) for panel in panels]
    panels = [replace(p, entries=held) for p, held in zip(panels, own, strict=True) if held]
    if not any(
        row.peak(phase) for p in panels for row in p.rows for phase in ("train", "generate")
    ):
        return None
    fig, axes = bars.figure(
        [bars.everything(panel) for panel in panels], looks, looks.title("Peak memory", panels),
        _caption(panels) + bars.left_out(panels),
    )  # fmt: skip
    for ax, panel in zip(axes, panels, strict=True):
        _panel(ax, panel, looks)
    fig.legend(handles=_key(panels), loc="outside right upper")
    return fig


def _caption(panels: Sequence[Panel]) -> str:
    devices = {panel.cell.target.device for panel in panels}
    parts = ["Measured; the highest of all stages and seeds."]
    if "cuda" in devices:
        parts.append("GPU: reserved by torch's allocator, worst rank.")
    if "cpu" in devices:
        parts.append(
            "CPU: host RSS above baseline (the process tree after imports, before the model)."
        )
    return " ".join(parts)


def _key(panels: Sequence[Panel]) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = [
        Patch(color=style.GREY, label="training"),
        Patch(color=style.light(style.GREY), label="generation"),
    ]
    if any(_drawn(panel) for panel in panels):
        handles.append(Line2D([], [], color=style.INK, linestyle="--", linewidth=1, label="limit"))
    if any(entry.bad for panel in panels for entry in panel.entries):
        handles.append(bars.failed_key())
    return handles


@dataclass(frozen=True)
class Limit:
    gib: float
    name: str


def limits(cell: Cell) -> list[Limit]:
    """What the deciding counter must stay under: device memory, or the host's RAM on a CPU."""
    target, found = cell.target, []
    if target.device == "cuda" and target.device_memory_gib:
        found.append(Limit(target.device_memory_gib, "device"))
    if target.device == "cpu" and target.host_ram_gib:
        found.append(Limit(target.host_ram_gib, "host RAM"))
    if target.device == "cpu" and cell.budget.host_memory_limit_gib:
        found.append(Limit(cell.budget.host_memory_limit_gib, "suite's limit"))
    return found


def peak_gib(entry: Entry, phase: str, good: bool = True) -> float | None:
    """The highest of the deciding counter over seeds."""
    device = entry.cell.target.device
    rows = entry.good if good else entry.bad
    peaks = [peak.counted(device) for row in rows if (peak := row.peak(phase))]
    highest = max((p for p in peaks if p is not None), default=None)
    return None if highest is None else highest / show.GIB


def _longest(panel: Panel) -> float:
    peaks = [
        peak_gib(entry, phase, good)
        for entry in panel.entries
        for phase in ("train", "generate")
        for good in (True, False)
    ]
    return max((p for p in peaks if p is not None), default=0.0)


def _drawn(panel: Panel) -> list[Limit]:
    """Limits near enough to the bars."""
    return [limit for limit in limits(panel.cell) if limit.gib <= FAR * _longest(panel)]


def _panel(ax: Axes, panel: Panel, looks: style.Looks) -> None:
    entries = bars.everything(panel)
    ys = bars.prepare(ax, entries, looks)
    drawn = _drawn(panel)
    ax.set_xlim(0, max([1.22 * _longest(panel), *(1.06 * limit.gib for limit in drawn)]) or 1.0)
    for y, entry in zip(ys, entries, strict=True):
        _entry(ax, y, entry, looks)
    for limit in drawn:
        ax.axvline(limit.gib, color=style.INK, linestyle="--", linewidth=1, zorder=1)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    counter = "GiB reserved per GPU" if panel.cell.target.device == "cuda" else "GiB host RSS"
    ax.set_xlabel(counter if "GPU" in counter else f"{counter} above baseline")
    named = [f"{limit.name} {limit.gib:g} GiB" for limit in limits(panel.cell)]
    beyond = " (beyond the axis)" if named and not drawn else ""
    ax.set_title(f"{panel.target}; limit: {', '.join(named)}{beyond}" if named else panel.target)


def _entry(ax: Axes, y: float, entry: Entry, looks: style.Looks) -> None:
    phases = [p for p in ("train", "generate") if peak_gib(entry, p) is not None]
    if not phases:
        known = [peak_gib(entry, phase, good=False) for phase in ("train", "generate")]
        text = bars.story(entry) if entry.bad else "no peak was recorded"
        bars.failed(ax, y, text, max((p for p in known if p is not None), default=None))
        return
    thick = 0.72 / len(phases)
    for index, phase in enumerate(phases):
        at = y - 0.36 + thick * (index + 0.5)
        peak = peak_gib(entry, phase) or 0.0
        colour = looks.colour(entry) if phase == "train" else style.light(looks.colour(entry))
        (bar,) = ax.barh(at, peak, height=thick * 0.9, color=colour, zorder=2)
        style.tip(ax, bar, f"{entry.label}, {phase}: {show.number(peak)} GiB")
        lost = f"  {entry.status}" if entry.bad and index == 0 else ""
        bars.value(ax, peak, at, show.number(peak) + lost, style.FAILED if lost else style.INK)
