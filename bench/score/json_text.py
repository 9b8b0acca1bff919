"""JSON inside what a model wrote: in prose, in a code fence, several values, nearly right.

Strictly valid objects count wherever they stand.  Lists, and what is JSON but for single quotes,
trailing commas or Python's words, count only at a line's start, where no other format puts them.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

TRIED = 200  # brackets of a text that are tried: more of them that fail are no answer
LONGEST = 20_000  # characters of a nearly right value
_BRACKET = re.compile(r"[{\[]")
_AT_LINE_START = re.compile(r"(?:^|\n)[ \t]*$")
_WORD = re.compile(
    r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\b(?:true|false|null)\b|[{}\[\]]", re.DOTALL
)
_PYTHON = {"true": "True", "false": "False", "null": "None"}


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a text, in order; of nested ones the outer."""
    return (value for value in json_values(text) if isinstance(value, dict))


def json_values(text: str) -> Iterator[dict[Any, Any] | list[Any]]:
    """Objects and lists, in order; what stands inside one isn't given again."""
    decoder = json.JSONDecoder(strict=False)  # models write raw line breaks inside strings
    end = 0
    for match in islice(_BRACKET.finditer(text), TRIED):
        start = match.start()
        if start < end:
            continue
        alone = _AT_LINE_START.search(text, max(0, start - 80), start) is not None
        if match.group() == "[" and not alone:
            continue
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            found, end = _nearly(text, start) if alone else (None, start + 1)
        if isinstance(found, dict | list):
            yield found


def _nearly(text: str, start: int) -> tuple[Any, int]:
    """A Python literal from `start` to where its bracket closes, and where that is."""
    words, depth, done = [], 0, start
    for match in _WORD.finditer(text, start, start + LONGEST):
        word = match.group()
        words += [text[done : match.start()], _PYTHON.get(word, word)]
        done = match.end()
        depth += (word in "{[") - (word in "}]")
        if not depth:
            break
    else:
        return None, start + 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an escape that Python doesn't know
            return ast.literal_eval("".join(words)), done
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None, start + 1
