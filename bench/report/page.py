"""Sections → index.html: one file, no network, readable without JavaScript.

Everything foreign passes jinja's autoescape.  Sentences are inline Markdown, rendered by
markdown-it with HTML switched off; charts are matplotlib's SVG (`bench/report/svg.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from bench.report import show, svg
from bench.report.blocks import Block, Bullets, Picture, Section, Table, Text
from bench.report.frames import Link, numeric

# Of Markdown only what our sentences use; no images, no HTML.  Links to scripts are refused.
_SENTENCE = MarkdownIt("zero", {"html": False}).enable(
    ["emphasis", "backticks", "link", "escape", "entity", "autolink"]
)


def render(suite: str, sections: Sequence[Section], charts: Path) -> str:
    """The page.  `charts`: the folder that holds the drawn SVG files."""
    page = _Page(charts)
    environment = Environment(
        loader=PackageLoader("bench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"sentence": sentence, "plain": _plain, "link": _link}
    environment.tests |= {"link": lambda value: isinstance(value, Link)}
    parts = [page.section(section) for section in sections]  # fills page.glyphs
    return environment.get_template("page.html").render(
        suite=show.plain(suite), sections=parts, glyphs=Markup("".join(page.glyphs.values()))
    )


def sentence(text: str) -> Markup:
    """Inline Markdown as HTML."""
    return Markup(_SENTENCE.renderInline(text))


def _plain(value: Any) -> str:
    return show.plain(str(value))


def _link(href: str) -> str:
    """A link as it is, if it leads to a file beside the page, a place on it, or the web."""
    return href if re.match(r"(\.\./|#|https?://|[\w.-]+$|charts/)", href) else "#"


@dataclass
class _Page:
    charts: Path
    glyphs: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def section(self, section: Section) -> dict[str, Any]:
        blocks = [self.block(block) for block in section.blocks]
        return {"id": section.id, "title": section.title, "blocks": blocks}

    def block(self, block: Block) -> dict[str, Any]:
        match block:
            case Text(text=text, kind=kind):
                # A place to link to, where the title is a word.
                place = text.lower() if kind == "head" else None
                return {"is": "text", "text": text, "kind": kind, "place": place}
            case Bullets(lines=lines, title=title):
                return {"is": "bullets", "lines": lines, "title": title}
            case Table(frame=frame, title=title, folded=folded):
                return {"is": "table", "title": title, "folded": folded} | _table(frame)
            case Picture(chart=chart):
                self.count += 1
                text = (self.charts / f"{chart.stem}.svg").read_text(encoding="utf-8")
                prefix = f"c{self.count}-"
                image = svg.inline(text, prefix, chart.name, chart.tips, self.glyphs)
                return {
                    "is": "chart",
                    "svg": Markup(image),
                    "name": chart.name,
                    "stem": chart.stem,
                }


def _table(frame: pd.DataFrame) -> dict[str, Any]:
    return {
        "columns": [
            {"name": _plain(name), "number": numeric(frame[name])} for name in frame.columns
        ],
        "rows": frame.to_numpy().tolist(),
    }
