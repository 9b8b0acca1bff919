"""Entities: (type, value) pairs from what a model wrote, and back.

One rule, in this order: JSON (objects, lists, several of them), else `type=value` pairs, else
`type: value` pairs and rows of a two-column table.

    python -m pytest tests/score/test_answers.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.score.json_text import json_values
from bench.score.plain import normalise, strip_thinking

Pair = tuple[str, str]

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PAIR = re.compile(
    rf"({_QUOTED}|[^\s=:;,{{}}\[\]\"][^=:;,\n{{}}\[\]\"]{{0,59}}?)[ \t]*=[ \t]*"
    rf"({_QUOTED}|[^;\n]*?)(?=\s*(?:;|\n|$|,\s*[\w .-]+=)|\s+[\w.-]+=)"
)
_PARTS = re.compile(r"[;\n]|,(?=\s*\**\w[\w ./-]{0,40}\**:\s)")
_COLON_PAIR = re.compile(
    r"^\s*(?:(?:[-*+•]|\d+[.)])\s+)?\**(\w[\w ./-]{0,40}?)\**\s*:\**\s*(\S.*?)\s*$"
)
_TABLE_ROW = re.compile(r"^\s*\|\s*([^|\n]+?)\s*\|\s*([^|\n]+?)\s*\|\s*$")
_BULLET = re.compile(r"^(?:[-*+•]|\d+[.)])\s+")
_BARE_TYPE = re.compile(r"[^\W\d_][\w./-]*(?: [\w./-]+)*")
NOTHING = frozenset({"", "none", "null", "n/a", "-"})
# Keys that models give an entity's type and value, the surest first, and what may stand beside
_TYPES = ("type", "entity_type", "label", "category", "kind", "key", "entity", "name")
_VALUES = ("value", "text", "word", "mention", "span", "entity", "name")
_BESIDE = frozenset({"start", "end", "offset", "position", "score", "confidence"})


def parse_entities(text: str) -> list[Pair]:
    """(type, value) pairs of `order=4821; product=router`, of JSON, or of `none`.

    Values are returned as written and compared by `normalise`.  An empty value or `none` is no
    entity; a value with a separator in it stands in double quotes, with JSON escapes.
    """
    answer = strip_thinking(text)[0]
    if found := [pair for value in json_values(answer) for pair in entity_pairs(value)]:
        return found
    pairs = [(match[1], match[2]) for match in _PAIR.finditer(answer)] or list(_loose(answer))
    return [
        (_unquoted(_BULLET.sub("", kind).strip("*`")), _unquoted(value))
        for kind, value in pairs
        if value.startswith('"') or normalise(value) not in NOTHING
    ]


def _loose(answer: str) -> Iterator[Pair]:
    """`type: value` and `| type | value |`, without a table's head and rule."""
    for line in answer.split("\n"):
        if row := _TABLE_ROW.match(line):
            kind, value = row[1], row[2]
            head = normalise(kind) in _TYPES and normalise(value) in _VALUES
            if not head and not set(value) <= set("-: "):
                yield kind, value
            continue
        for part in _PARTS.split(line):
            if match := _COLON_PAIR.match(part):
                yield match[1], match[2]


def _unquoted(text: str) -> str:
    if re.fullmatch(_QUOTED, text):
        try:
            return str(json.loads(text, strict=False))
        except ValueError:
            pass
    return text.strip()


# ---------------------------------------------------------------- values


def entity_pairs(value: Any) -> list[Pair]:
    """(type, value) pairs of a row's value: {type: value or list of values}, [[type, value], …],
    [{"type": …, "value": …}, …], or text as `parse_entities` reads it.  None, an empty value and
    `none` are no entity."""
    if isinstance(value, str):
        return parse_entities(value)
    if isinstance(value, Mapping):
        if isinstance(inner := value.get("entities"), dict | list):
            return entity_pairs(inner)
        named = _named(value)
        pairs = [named] if named else list(value.items())
        return [(str(kind), text) for kind, item in pairs for text in _texts(item)]
    if isinstance(value, list | tuple):
        return [pair for item in value for pair in _pairs_of_item(item)]
    return []


def _named(value: Mapping[Any, Any]) -> tuple[Any, Any] | None:
    """(type, value) of {"type": …, "value": …} in one of its spellings; None of {type: value}."""
    keys = [key for key in value if key not in _BESIDE]
    kind = next((key for key in _TYPES if key in keys), None)
    text = next((key for key in _VALUES if key in keys and key != kind), None)
    if kind is None or text is None or len(keys) != 2:
        return None
    return value[kind], value[text]


def _pairs_of_item(item: Any) -> list[Pair]:
    if isinstance(item, list | tuple) and len(item) == 2:
        return [(str(item[0]), text) for text in _texts(item[1])]
    return entity_pairs(item) if isinstance(item, Mapping) else []


def _texts(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item)]
    if value is None or isinstance(value, Mapping):
        return []
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return [] if normalise(text) in NOTHING else [text]


# ---------------------------------------------------------------- the inverse


def format_entities(pairs: Sequence[Pair]) -> str:
    """`type=value; type=value`, or `none`: what `parse_entities` reads back."""
    return "; ".join(f"{_type(kind)}={_value(text)}" for kind, text in pairs) or "none"


def _type(kind: str) -> str:
    bare = len(kind) <= 60 and _BARE_TYPE.fullmatch(kind)
    return kind if bare else json.dumps(kind, ensure_ascii=False)


def _value(text: str) -> str:
    bare = text == text.strip() and not re.search('[;={"\n]', text)
    return text if bare and normalise(text) not in NOTHING else json.dumps(text, ensure_ascii=False)
