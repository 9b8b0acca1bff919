"""The charts of a report, one file each, as SVG and PNG.

A chart is a function (panels of one dataset, looks) → Figure, or None where there is nothing to
draw.  A new chart is one file and one line in CHARTS.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from bench.report.charts import cost_quality, groups, loss, memory, quality, speed
from bench.report.charts.style import Looks, ours, save
from bench.report.compare import Panel

Draw = Callable[[Sequence[Panel], Looks], Figure | None]

# file name: (what it shows, function)
CHARTS: dict[str, tuple[str, Draw]] = {
    "cost-quality": ("Cost against quality", cost_quality.draw),
    "quality": ("Quality", quality.draw),
    "groups": ("Gain over the untuned model, by group", groups.draw),
    "memory": ("Peak memory", memory.draw),
    "loss": ("Loss against training seconds", loss.draw),
    "speed": ("Training speed", speed.draw),
}


@dataclass(frozen=True)
class Drawn:
    """A chart that was written."""

    kind: str
    dataset: str
    title: str
    stem: str  # file name without suffix


def draw_all(panels: Sequence[Panel], folder: Path) -> list[Drawn]:
    """Write every chart that has something to show; remove those of an earlier report."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in CHARTS:
        for old in (*folder.glob(f"{kind}.*.svg"), *folder.glob(f"{kind}.*.png")):
            old.unlink()
    looks = Looks.of(panels)
    drawn = []
    with ours(), warnings.catch_warnings():
        # A group's name in a script that the font lacks becomes boxes; the tables have it right.
        warnings.filterwarnings("ignore", message=r"(?s).*Glyph .* missing from font")
        for kind, (title, draw) in CHARTS.items():
            for dataset, group in itertools.groupby(panels, key=lambda panel: panel.dataset):
                figure = draw(list(group), looks)
                if figure is not None:
                    stem = f"{kind}.{dataset}"
                    save(figure, folder, stem)
                    drawn.append(Drawn(kind, dataset, title, stem))
    return drawn
