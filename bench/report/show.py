"""How numbers and foreign text are printed: units converted here, and nowhere else.

Unknown is printed as a dash, never as 0.  Text from logs and datasets (reasons, group names) may
hold anything: it must break neither a table nor an SVG.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

GIB = 2**30
NONE = "–"


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, no exponent: 0.00213, 0.412, 41.2, 5,230."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    decimals = max(0, digits - 1 - _exponent(size, digits))
    return f"{value:.{decimals}f}"


def _exponent(size: float, digits: int) -> int:
    """The power of ten of `size`, once it is rounded to `digits`: 0.9996 → 0."""
    return int(f"{size:.{digits - 1}e}".partition("e")[2])


def score(value: float | None) -> str:
    """A quality: three decimals on a scale to 1, one decimal on a scale to 100."""
    if value is None:
        return NONE
    return f"{value:.1f}" if abs(value) > 1.5 else f"{value:.3f}"


def between(
    low: float | None, high: float | None, show: Callable[[float | None], str] = number
) -> str:
    return "" if low is None or high is None else f"{show(low)} to {show(high)}"


def usd(value: float | None) -> str:
    return NONE if value is None else f"${number(value)}"


def gib(value: float | None) -> str:
    return NONE if value is None else number(value / GIB)


def share(value: float | None) -> str:
    """A share as per cent."""
    return NONE if value is None else f"{number(100 * value, 2 if value < 0.995 else 3)} %"


def count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def milliseconds(seconds: float | None) -> str:
    return NONE if seconds is None else number(1000 * seconds)


def tokens(value: float | None) -> str:
    """A volume as people say it: 4.2 million, 1.3 billion."""
    if value is None:
        return NONE
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{number(value / size)} {word}"
    return number(value)


def plain(text: str, limit: int | None = None) -> str:
    """One line without control characters, cut at `limit` characters."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)  # terminal colours
    visible = "".join(" " if unicodedata.category(c) in ("Cc", "Cs", "Co") else c for c in text)
    line = " ".join(visible.split())
    return line if limit is None or len(line) <= limit else line[: limit - 1].rstrip() + "…"


def markdown(text: str) -> str:
    """Foreign text as literal Markdown, safe inside a table cell."""
    line = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*|\[\]~$#])", r"\\\1", line)
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", line)


def source(text: str) -> str:
    """Where something was found, as Markdown: a link where it is an address."""
    line = plain(text)
    return f"<{line}>" if re.fullmatch(r"https?://[^\s<>|]+", line) else markdown(line)


def listed(names: list[str], last: str = "and") -> str:
    """a, b and c"""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def many(count: int, noun: str) -> str:
    """1 cell, 2 cells"""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def difference(value: float | None) -> str:
    """A signed difference of scores, as precise as a score: +0.034, −1.8, 0.000."""
    if value is None:
        return NONE
    text = score(abs(value))
    return text if not float(text) else ("+" if value > 0 else "−") + text


def p_value(value: float | None) -> str:
    """Three decimals; below that only that it is below."""
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def signed(value: float | None) -> str:
    """A difference: +0.12, −3.4, 0.00."""
    if value is None:
        return NONE
    text = f"{abs(value):.1f}" if abs(value) > 1.5 else f"{abs(value):.2f}"
    if not float(text):
        return text
    return ("+" if value > 0 else "−") + text
