"""How every chart looks, and how it is written so that the same data gives the same bytes.

Marker = method.  Colour = model; with a single model, colour = method too, else all would be one
colour.  Colours are Okabe and Ito's (2008) without yellow, then some of Paul Tol's: people with
any common colour blindness tell them apart, and markers, order and labels repeat what they say.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench.report import show
from bench.report.compare import Entry, Panel
from bench.report.rows import method_order

COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#332288", "#882255", "#999933", "#44AA99", "#661100", "#4D4D4D",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))
INK = "#222222"
GREY = "#6b6b6b"
FAINT = "#d9d9d9"
FAILED = "#a4262c"
ON_COLOUR = "#1f1f1f"  # text on a pale field: stays dark where the page is
BASE = "#4D4D4D"

RC: dict[str, Any] = {
    "svg.hashsalt": "adaptbench",
    "svg.fonttype": "path",
    "text.parse_math": False,
    "text.color": INK,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ececec",
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "hatch.linewidth": 0.6,
    "figure.dpi": 100,
    "savefig.dpi": 144,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


@contextmanager
def ours() -> Iterator[None]:
    """Our settings on matplotlib's own defaults, whatever a user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        cast(Any, matplotlib.rcParams).update(RC)
        yield


@dataclass(frozen=True)
class Looks:
    """Colour and marker of every entry: the same in all charts of a report."""

    models: tuple[str, ...]
    methods: tuple[str, ...]

    @classmethod
    def of(cls, panels: Sequence[Panel]) -> Looks:
        entries = [entry for panel in panels for entry in panel.entries]
        models = {e.model: e.cell.model.params or math.inf for e in entries}
        methods = {e.cell.method.name: method_order(e.cell) for e in entries}
        return cls(
            tuple(sorted(models, key=lambda name: (models[name], name))),
            tuple(sorted(methods, key=lambda name: methods[name])),
        )

    def title(self, what: str, panels: Sequence[Panel]) -> str:
        """What is shown, on which data; with a single model also its name, found nowhere else."""
        model = f", {short(self.models[0], 34)}" if len(self.models) == 1 else ""
        return f"{what}: {short(panels[0].dataset, 34)}{model}"

    def whole_title(self, what: str) -> str:
        """The same for a chart of all datasets."""
        return f"{what}: {short(self.models[0], 34)}" if len(self.models) == 1 else what

    def marker(self, entry: Entry) -> str:
        return MARKERS[self.methods.index(entry.cell.method.name) % len(MARKERS)]

    def colour(self, entry: Entry) -> str:
        if len(self.models) > 1:
            return COLOURS[self.models.index(entry.model) % len(COLOURS)]
        return self.method_colour(entry.cell.method.name)

    def method_colour(self, method: str) -> str:
        """Grey for the first method (base, where there is one), then the palette."""
        index = self.methods.index(method)
        return BASE if index == 0 else COLOURS[(index - 1) % len(COLOURS)]

    def shade(self, entry: Entry) -> str:
        """For charts with one model a panel: its colour, darker or lighter by method."""
        if len(self.models) == 1:
            return self.colour(entry)
        index = self.methods.index(entry.cell.method.name)
        share = index / max(1, len(self.methods) - 1)  # 0 dark … 1 light
        if share < 0.5:
            return mixed(self.colour(entry), "#000000", 0.9 * (0.5 - share))
        return mixed(self.colour(entry), "#ffffff", 0.9 * (share - 0.5))

    def line(self, entry: Entry) -> Any:
        return LINES[self.methods.index(entry.cell.method.name) % len(LINES)]

    def legend(self, shown: Iterable[Entry] | None = None) -> list[Line2D | Patch]:
        """Models as colours (where there are several), methods as markers; of `shown` alone."""
        entries = None if shown is None else list(shown)
        several = len(self.models) > 1
        handles: list[Line2D | Patch] = []
        if several:
            for index, name in enumerate(self.models):
                if entries is None or any(entry.model == name for entry in entries):
                    colour = COLOURS[index % len(COLOURS)]
                    handles.append(Patch(color=colour, label=short(name, 28)))
        for index, name in enumerate(self.methods):
            if entries is not None and all(e.cell.method.name != name for e in entries):
                continue
            colour = GREY if several else self.method_colour(name)
            marker = MARKERS[index % len(MARKERS)]
            handles.append(dot(marker, colour, short(name, 28)))
        return handles


def mixed(colour: str, other: str, share: float) -> str:
    """`share` of another colour mixed in."""
    red, green, blue = (
        (1 - share) * a + share * b for a, b in zip(to_rgb(colour), to_rgb(other), strict=True)
    )
    return str(to_hex((red, green, blue)))


def light(colour: str) -> str:
    return mixed(colour, "#ffffff", 0.58)


def dot(marker: str, colour: str, label: str, **more: Any) -> Line2D:
    return Line2D([], [], linestyle="none", marker=marker, color=colour, label=label, **more)


def short(text: str, limit: int) -> str:
    """Foreign text for a chart: one line, its middle cut out where it is too long."""
    line = show.plain(text)
    if len(line) <= limit:
        return line
    tail = (limit - 1) // 3
    return f"{line[: limit - 1 - tail]}…{line[-tail:]}"


def entry_labels(entries: Sequence[Entry], looks: Looks) -> list[str]:
    """Labels for an axis: the method alone where there is one model."""
    if len(looks.models) == 1:
        return [short(entry.method, 30) for entry in entries]
    return [f"{short(entry.model, 26)} × {short(entry.method, 22)}" for entry in entries]


# ---------------------------------------------------------------- figures


class Chart(Figure):
    """A figure that remembers what each marked artist says when it is pointed at."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.tips: dict[str, str] = {}

    def tip(self, artist: Artist, text: str) -> None:
        """Mark an artist: its group in the SVG gets an id, `tips` the text for it."""
        name = f"tip{len(self.tips) + 1}"
        artist.set_gid(name)
        self.tips[name] = show.plain(text)


def tip(ax: Axes, artist: Artist, text: str) -> None:
    chart = ax.figure
    assert isinstance(chart, Chart)  # every chart is made by `figure`
    chart.tip(artist, text)


def figure(width: float, height: float, title: str, caption: str) -> Chart:
    """An empty figure with its title above and its caption below, both on the left."""
    made = Chart(figsize=(width, height), layout="constrained")
    made.get_layout_engine().set(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.04)  # type: ignore
    made.suptitle(title, x=0.012, ha="left", fontsize=12, fontweight="bold", color=INK)
    wrapped = "\n".join(
        line for part in caption.split("\n") for line in textwrap.wrap(part, int(width * 15))
    )
    made.supxlabel(wrapped, x=0.012, ha="left", fontsize=8, color=GREY)
    return made


def grid(fig: Figure, count: int, columns: int, **shared: Any) -> list[Axes]:
    """`count` axes, row by row."""
    columns = min(columns, count)
    lines = -(-count // columns)
    axes = fig.subplots(lines, columns, squeeze=False, **shared).flatten()
    for empty in axes[count:]:
        empty.set_visible(False)
    return list(axes[:count])


def note(ax: Axes, text: str) -> None:
    """Say in an empty panel why it is empty."""
    ax.text(
        0.5, 0.5, textwrap.fill(text, 44), transform=ax.transAxes, ha="center", va="center",
        fontsize=8.5, color=FAILED,
    )  # fmt: skip
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(False)


def save(fig: Figure, folder: Path, name: str) -> list[Path]:
    """Write SVG and PNG without date, version or any other thing that changes by itself."""
    FigureCanvasAgg(fig)
    fig.draw_without_rendering()  # lays out; once is enough for both files
    fig.set_layout_engine("none")
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    none = {"Date": None, "Creator": None, "Format": None, "Type": None}
    fig.savefig(paths[0], metadata=none)
    fig.savefig(paths[1], metadata={"Software": None})
    return paths
