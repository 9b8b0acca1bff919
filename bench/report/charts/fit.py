"""Does it fit?  Model × method against target: how full the fullest device gets, what breaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from bench.report import show
from bench.report.charts import style
from bench.report.compare import Panel
from bench.report.fits import Answer, Fit, fits

MOST = 60  # lines: more can't be read; the table has all
# Blue and orange are told apart with any colour blindness, the hatch without colour.
FIELDS: dict[Answer, str] = {
    "fits": "#bcd9ee",
    "narrow": "#fbe3a8",
    "does not fit": "#f3b79a",
    "unknown": "#e4e4e4",
}
HATCHES: dict[Answer, str] = {"narrow": "..", "does not fit": "////"}

CAPTION = (
    "GiB of the fullest device. p: predicted (reserved by torch and the CUDA context); m: measured "
    "(reserved; on a CPU the process above its baseline). In brackets: share of what the device "
    "has. narrow: within the prediction's error of the limit."
)

Key = tuple[str, str]


def draw(panels: Sequence[Panel], looks: style.Looks) -> style.Chart | None:
    found = [fit for fit in fits(panels) if fit.predicted_bytes or fit.measured_bytes]
    if not found:
        return None
    lines, targets = _lines(found)
    names = [f"{style.short(model, 28)} × {style.short(method, 18)}" for model, method in lines]
    width = 0.075 * max(map(len, names)) + 1.75 * len(targets) + 1.4
    left_out = len({_key(fit) for fit in found}) - len(lines)
    more = f" {left_out} more in the table." if left_out else ""
    fig = style.figure(
        max(7.0, width), 0.42 * len(lines) + 1.9, looks.whole_title("What fits where"),
        CAPTION + more,
    )  # fmt: skip
    ax = fig.subplots()
    for fit in found:
        if _key(fit) in lines:
            _field(ax, fit, targets.index(fit.cell.cell.target.name), lines.index(_key(fit)))
    _axes(ax, names, targets, {fit.cell.cell.target.name: fit for fit in found})
    fig.legend(
        handles=[
            Patch(facecolor=FIELDS[a], hatch=HATCHES.get(a), edgecolor=style.GREY, label=a)
            for a in FIELDS
            if any(fit.answer == a for fit in found)
        ],
        loc="outside right upper",
    )
    return fig


def _key(fit: Fit) -> Key:
    return fit.cell.cell.model.name, fit.entries[0].method


def _lines(found: Sequence[Fit]) -> tuple[list[Key], list[str]]:
    lines = list(dict.fromkeys(_key(fit) for fit in found))[:MOST]
    return lines, list(dict.fromkeys(fit.cell.cell.target.name for fit in found))


def _field(ax: Axes, fit: Fit, x: int, y: int) -> None:
    box = Rectangle(
        (x, y), 1, 1, facecolor=FIELDS[fit.answer], hatch=HATCHES.get(fit.answer),
        edgecolor="#8a8a8a", linewidth=0.6,
    )  # fmt: skip
    ax.add_patch(box)
    ax.text(
        x + 0.5, y + 0.5, "\n".join(_told(fit)), ha="center", va="center", fontsize=7.5,
        color=style.ON_COLOUR,
        bbox={"facecolor": FIELDS[fit.answer], "edgecolor": "none", "pad": 0.8},
    )  # fmt: skip
    model, method = _key(fit)
    said = f"{model} × {method} on {fit.cell.cell.target.name}: {fit.answer}; {fit.breaks}"
    style.tip(ax, box, said.rstrip("; "))


def _told(fit: Fit) -> list[str]:
    have = fit.capacity_bytes
    found = []
    for mark, size in (("p", fit.predicted_bytes), ("m", fit.measured_bytes)):
        if size is not None:
            share = f" ({show.share(size / have)})" if have else ""
            found.append(f"{mark} {show.gib(size)}{share}")
    if fit.answer == "does not fit" and fit.breaks:  # it need not be the GPU while it trains
        first = fit.breaks.split(";")[0].replace("too little", "short")
        found.append(style.short(first, 32))
    return found


def _axes(ax: Axes, names: Sequence[str], targets: Sequence[str], any_: Mapping[str, Fit]) -> None:
    ax.set_xlim(0, len(targets))
    ax.set_ylim(len(names), 0)
    heads = []
    for name in targets:
        spec = any_[name].cell.cell.target
        have = any_[name].capacity_bytes
        devices = f"{spec.devices * spec.nodes} × " if spec.device == "cuda" else ""
        heads.append(f"{style.short(name, 22)}\n{devices}{show.gib(have)} GiB")
    ax.set_xticks([x + 0.5 for x in range(len(targets))], heads)
    ax.set_yticks([y + 0.5 for y in range(len(names))], names)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)
