"""A chart's SVG → one that stands inside the page: own ids, own colours, words to point at.

matplotlib writes each file as if it were alone.  Inside one page its ids would collide, its white
background would glare at night, and its outlines of letters would be repeated in every chart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

# What changes with the page's colours; everything else keeps the colour that it was drawn in.
COLOURS = {
    "#ffffff": "--paper",
    "#222222": "--ink",
    "#6b6b6b": "--grey",
    "#ececec": "--line",
    "#d9d9d9": "--line",
    "#e8f2ee": "--band",
    "#4d4d4d": "--c-base",
    "#0072b2": "--c1",
    "#d55e00": "--c2",
    "#009e73": "--c3",
    "#332288": "--c4",
    "#882255": "--c5",
    "#661100": "--c6",
    "#a4262c": "--failed",
}

_GLYPH = re.compile(r'<path id="(DejaVu[\w-]+)"[^>]*/>')
_PROLOGUE = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
# A tenth of a point is finer than any screen; but scales (of letters) must stay as they are.
_NUMBER = re.compile(r"scale\([^)]*\)|-?\d+\.\d{2,}")
# Groups that nothing refers to; without their ids a chart is a quarter smaller.
_UNUSED = re.compile(
    r' id="(?:figure|axes|patch|text|line2d|legend|matplotlib\.axis|[xy]tick|LineCollection'
    r'|PathCollection|FillBetweenPolyCollection|QuadMesh|Quadmesh)_\d+"'
)


def inline(
    svg: str, prefix: str, title: str, tips: Mapping[str, str], glyphs: dict[str, str]
) -> str:
    """The `<svg>` element alone.  Outlines of letters go to `glyphs`, which all charts share."""
    text = _UNUSED.sub("", _PROLOGUE.sub("", svg).strip())
    text = text.replace("DejaVuSans-Bold-", "DejaVuB").replace("DejaVuSans-", "DejaVuS")
    text = _shared(text.replace("xlink:href", "href"), glyphs)
    text = _own_ids(text, prefix)
    text = _NUMBER.sub(_rounded, text)
    for colour, name in COLOURS.items():
        text = re.sub(rf"(fill|stroke): {colour}", rf"\1: var({name})", text, flags=re.I)
    text = re.sub(r"\s*\n\s*", "\n", text)
    text = re.sub(r"\n(?=[LQCMz] ?)", "", text)  # within outlines
    text = re.sub(r"<svg ([^>]*)>", lambda m: _head(m[1], prefix, title), text, count=1)
    for name, words in tips.items():
        group = f'<g id="{prefix}{name}">'
        titled = f'<g id="{prefix}{name}" class="tip" tabindex="-1"><title>{escape(words)}</title>'
        text = text.replace(group, titled, 1)
    return text


def _rounded(match: re.Match[str]) -> str:
    found = match[0]
    return found if found.startswith("scale") else f"{float(found):.1f}".removesuffix(".0")


def _head(attributes: str, prefix: str, title: str) -> str:
    """Scales with the page; is read out as one picture with a name."""
    box = re.search(r'viewBox="([^"]*)"', attributes)
    view = box[1] if box else "0 0 100 100"
    width = view.split()[2]
    name = f"{prefix}title"
    return (
        f'<svg viewBox="{view}" style="max-width:{float(width) * 1.34:.0f}px" '
        f'role="img" aria-labelledby="{name}">'
        f'<title id="{name}">{escape(title)}</title>'
    )


def _shared(text: str, glyphs: dict[str, str]) -> str:
    def keep(match: re.Match[str]) -> str:
        glyphs.setdefault(match[1], match[0])
        return ""

    return _GLYPH.sub(keep, text)


def _own_ids(text: str, prefix: str) -> str:
    """Letters keep their names; every other id gets the chart's prefix."""
    text = re.sub(r'\bid="(?!DejaVu)([^"]+)"', rf'id="{prefix}\1"', text)
    text = re.sub(r'href="#(?!DejaVu)([^"]+)"', rf'href="#{prefix}\1"', text)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}\1)", text)
