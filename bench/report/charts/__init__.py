"""The charts of a report, one file each, as SVG and PNG.

A chart is a function (panels of one dataset, looks) → Figure, or None where there is nothing to
draw.  A new chart is one file and one line in CHARTS.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.report.charts import (
    breakdown,
    cost_quality,
    fit,
    forest,
    groups,
    loss,
    memory,
    predicted,
    quality,
    serving,
    speed,
)
from bench.report.charts.style import Chart, Looks, ours, save
from bench.report.compare import Panel
from bench.report.parallel import mapped

Draw = Callable[[Sequence[Panel], Looks], Chart | None]
Task = tuple[str, str, list[Panel], str, Draw]

# file name: (what it shows, function)
CHARTS: dict[str, tuple[str, Draw]] = {
    "cost-quality": ("Cost against quality", cost_quality.draw),
    "quality": ("Quality", quality.draw),
    "forest": ("Paired differences", forest.draw),
    "groups": ("Gain over the untuned model, by group", groups.draw),
    "memory": ("Peak memory", memory.draw),
    "loss": ("Validation loss against time, tokens and cost", loss.draw),
    "speed": ("Training speed", speed.draw),
    "serving": ("Volume against monthly cost", serving.draw),
    "serving-quality": ("Cost of serving against quality", serving.draw_quality),
}
# The same, but one chart for all datasets: what is predicted hardly depends on them.
WHOLE: dict[str, tuple[str, Draw]] = {
    "fit": ("What fits where", fit.draw),
    "breakdown": ("Predicted memory by what it is for", breakdown.draw),
    "predicted": ("Predicted against measured", predicted.draw),
}


@dataclass(frozen=True)
class Drawn:
    """A chart that was written: `{stem}.svg` and `{stem}.png`."""

    kind: str
    dataset: str  # empty: all
    title: str
    stem: str
    tips: Mapping[str, str] = field(default_factory=dict)  # id in the SVG: what is said there

    @property
    def name(self) -> str:
        return f"{self.title}: {self.dataset}" if self.dataset else self.title


def draw_all(panels: Sequence[Panel], folder: Path) -> list[Drawn]:
    """Write every chart that has something to show; remove those of an earlier report."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in (*CHARTS, *WHOLE):
        for old in (*folder.glob(f"{kind}.*svg"), *folder.glob(f"{kind}.*png")):
            old.unlink()
    looks = Looks.of(panels)
    tasks = list(_tasks(panels))
    # Few and long pieces: worth processes where there are many entries, not for a small report.
    large = sum(len(panel.entries) for panel in panels) > 100
    done = mapped(
        lambda task: _one(task, looks, folder), tasks, least=2 if large else len(tasks) + 1
    )
    return [drawn for drawn in done if drawn]


def _one(task: Task, looks: Looks, folder: Path) -> Drawn | None:
    kind, dataset, panels, title, draw = task
    with ours(), warnings.catch_warnings():
        # A group's name in a script that the font lacks becomes boxes; the tables have it right.
        warnings.filterwarnings("ignore", message=r"(?s).*Glyph .* missing from font")
        chart = draw(panels, looks)
        if chart is None:
            return None
        stem = f"{kind}.{dataset}" if dataset else kind
        save(chart, folder, stem)
    return Drawn(kind, dataset, title, stem, chart.tips)


def _tasks(panels: Sequence[Panel]) -> Iterator[Task]:
    for kind, (title, draw) in CHARTS.items():
        for dataset, group in itertools.groupby(panels, key=lambda panel: panel.dataset):
            yield kind, dataset, list(group), title, draw
    for kind, (title, draw) in WHOLE.items():
        yield kind, "", list(panels), title, draw
