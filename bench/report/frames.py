"""What every table is made of: plain text and links.  Escaping happens here, once, when a table is
written as Markdown; the page's template escapes for HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.report import show


@dataclass(frozen=True)
class Link:
    """Text that leads to a file (relative to the report's folder) or to a place on the page."""

    text: str
    href: str

    def __str__(self) -> str:
        return self.text


def frame(lines: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Columns in the order they first appear; a dash where a line lacks one."""
    return pd.DataFrame(list(lines), dtype=object).fillna(show.NONE)


def csv(table: pd.DataFrame) -> str:
    return str(table.to_csv(index=False, lineterminator="\n"))


def markdown(table: pd.DataFrame) -> str:
    """A frame of text as a Markdown table: names to the left, numbers to the right."""
    sides = ["right" if numeric(table[column]) else "left" for column in table.columns]
    escaped = table.map(_cell)
    escaped.columns = pd.Index([show.markdown(str(name)) for name in table.columns])
    return str(escaped.to_markdown(index=False, disable_numparse=True, colalign=sides))


def _cell(value: Any) -> str:
    text = show.markdown(str(value))
    # Links into the page have nowhere to lead in the Markdown file.
    if isinstance(value, Link) and not value.href.startswith("#"):
        return f"[{text}]({value.href})"
    return text


_NUMBER = re.compile(r"(< )?[~+−$]*\d[\d.,]*( %| to [\d.,]+| \([+−]?[\d.]+\))?")


def numeric(values: Iterable[Any]) -> bool:
    """Whether a column holds numbers as we print them, and at least one."""
    known = [text for text in map(str, values) if text not in ("", show.NONE)]
    return bool(known) and all(_NUMBER.fullmatch(text) for text in known)


def six_digits(value: Any) -> Any:
    """For programs: enough to recompute with, and the same on every machine."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
