"""What a report is made of, before it is a page or a Markdown file.

Sentences are inline Markdown with foreign text escaped by `show.markdown`; tables hold plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from bench.report.charts import Drawn


@dataclass(frozen=True)
class Text:
    text: str
    kind: str = ""  # lead: the first thing to read; note: how to read what follows; head: a title


@dataclass(frozen=True)
class Bullets:
    lines: Sequence[str]
    title: str = ""


@dataclass(frozen=True)
class Table:
    """A table.  `folded`: the page shows its title alone until it is opened."""

    frame: pd.DataFrame
    title: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Picture:
    chart: Drawn
    title: str = ""


Block = Text | Bullets | Table | Picture


@dataclass(frozen=True)
class Section:
    """One heading and what stands under it.  `id` is where links lead."""

    id: str
    title: str
    blocks: Sequence[Block] = field(default_factory=list)
