"""Names beside points, none on top of another: a name that finds no room is left to the legend."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from bench.report.charts.style import INK

# (x, y) in points from the point, alignment: right, left, above, below, then the corners.
PLACES = (
    (8, 0, "left", "center"),
    (-8, 0, "right", "center"),
    (0, 8, "center", "bottom"),
    (0, -8, "center", "top"),
    (7, 7, "left", "bottom"),
    (7, -7, "left", "top"),
    (-7, 7, "right", "bottom"),
    (-7, -7, "right", "top"),
    (5, 18, "left", "bottom"),
    (5, -18, "left", "top"),
    (-5, 18, "right", "bottom"),
    (-5, -18, "right", "top"),
)


@dataclass(frozen=True)
class Named:
    x: float
    y: float
    text: str
    low: float | None = None  # of its error bar
    high: float | None = None


Path = Sequence[tuple[float, float]]


def place(ax: Axes, points: Sequence[Named], line: Path = ()) -> None:
    """Write each point's name where it touches no point, bar, line or other name, else nowhere.

    A point with an empty text is only in the way; `line` is a path of level and upright pieces.
    The figure must be laid out: positions are in pixels.
    """
    taken = [_box_of(ax, point) for point in points]
    taken += [_piece(ax, a, b) for a, b in itertools.pairwise(line)]
    inside = ax.get_window_extent()
    for point in filter(lambda point: point.text, points):
        for place in PLACES:
            text = _write(ax, point, place)
            box = text.get_window_extent()
            free = not any(box.overlaps(other) for other in taken)
            if free and _within(box, inside):
                taken.append(box)
                break
            text.remove()


def _box_of(ax: Axes, point: Named) -> Bbox:
    """A marker and its error bar, in pixels."""
    x, y = ax.transData.transform((point.x, point.y))
    low = ax.transData.transform((point.x, point.y if point.low is None else point.low))[1]
    high = ax.transData.transform((point.x, point.y if point.high is None else point.high))[1]
    return Bbox.from_extents(x - 5, min(low, y - 5), x + 5, max(high, y + 5))


def _piece(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> Bbox:
    (x0, y0), (x1, y1) = ax.transData.transform([start, end])
    return Bbox.from_extents(min(x0, x1) - 1, min(y0, y1) - 1, max(x0, x1) + 1, max(y0, y1) + 1)


def _write(ax: Axes, point: Named, place: tuple[int, int, str, str]) -> Annotation:
    x, y, across, up = place
    text = ax.annotate(
        point.text, (point.x, point.y), (x, y), textcoords="offset points", ha=across, va=up,
        fontsize=7.5, color=INK,
    )  # fmt: skip
    text.set_in_layout(False)
    return text


def _within(box: Bbox, outer: Bbox) -> bool:
    return bool(
        outer.x0 <= box.x0 and box.x1 <= outer.x1 and outer.y0 <= box.y0 and box.y1 <= outer.y1
    )
