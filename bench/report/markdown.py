"""Sections → report.md."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.report import frames, show
from bench.report.blocks import Block, Bullets, Picture, Section, Table, Text


def report(suite: str, sections: Sequence[Section]) -> str:
    """The whole file."""
    parts = [f"# {show.markdown(suite)}: which method to take, and why"]
    parts.append("The same as a page, to sort and filter: [index.html](index.html).")
    for section in sections:
        parts.append(f"## {section.title}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block) -> str:
    match block:
        case Text(text=text, kind="head"):
            return f"### {text}"
        case Text(text=text):
            return _plain(text)
        case Bullets(lines=lines, title=title):
            head = f"**{title}**\n\n" if title else ""
            return head + "\n".join(f"- {_plain(line)}" for line in lines)
        case Table(frame=frame, title=title):
            head = f"**{show.markdown(title)}**\n\n" if title else ""
            return head + frames.markdown(frame)
        case Picture(chart=chart):
            return (
                f"![{show.markdown(chart.name)}](charts/{chart.stem}.png)\n\n"
                f"[as SVG](charts/{chart.stem}.svg)"
            )


def _plain(text: str) -> str:
    """Without links to places of the page, which this file lacks."""
    return re.sub(r"\[([^\]]+)\]\(#[\w-]+\)", r"\1", text)
