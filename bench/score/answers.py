"""From a model's raw text to the answer's fields, and back.

Tuned models answer in the dataset's format; untuned ones wrap the same answer in prose, markdown,
JSON or a reasoning trace.  Methods are compared fairly only if one documented reading serves both.

    python -m pytest tests/score/test_answers.py
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from bench.score.text import SPACELESS
from bench.spec import DatasetSpec, Field_

Pair = tuple[str, str]

# Not % or - or currency signs: they change what a value means.
_OUTER = " \t\r\n.,;:!?…'\"`´“”„‘’«»()[]{}<>*_#。、，；：！？「」『』（）【】"


# ---------------------------------------------------------------- reasoning traces


def strip_thinking(text: str) -> tuple[str, bool]:
    """(answer, truncated).  The answer is what follows the last `</think>`.

    A trace that never closes has no answer: ("", True).  Chat templates may open the trace inside
    the prompt, so a closing tag needs no opening one.  Applying it twice changes nothing.
    """
    answer = text.rpartition("</think>")[2]
    return ("", True) if "<think>" in answer else (answer.strip(), False)


# ---------------------------------------------------------------- values


@lru_cache(maxsize=1 << 14)
def normalise(value: str) -> str:
    """How values are compared: case, outer punctuation, spaces, underscores and hyphens alike."""
    text = unicodedata.normalize("NFKC", value).casefold()
    spaced = " ".join(re.sub(r"(?<=\w)[_\-](?=\w)|\s+", " ", text).split())
    return spaced.strip(_OUTER) or spaced


# ---------------------------------------------------------------- labels

# Where one statement ends and the next begins; a hyphen only between spaces (labels hold them).
_STATEMENT = re.compile(r"[\n:;.!?,()\[\]{}|\"“”。：；，！？、（）–—]|\s-\s")
_NEGATED = re.compile(
    r"(?:\b(?:not|isn't|neither|nor|rather than|instead of)|n['’]t)(?: (?:a|an|the|about))?\s+$"
)


def parse_label(text: str, labels: Sequence[str]) -> str | None:
    """The one label that an answer gives, as spelt in `labels`; None if it gives none or several.

    1. A reasoning trace is dropped.  Of a JSON object only the string values count, if any.
    2. The whole answer is a label: that one.
    3. Statements (between line breaks and punctuation) that are just a label: `Intent: billing`,
       "Billing. They also asked about delivery".  If they name a single label, that one.
    4. Else labels mentioned at word boundaries, the longest where one contains another, without
       those right after "not" and the like.  If a single label is mentioned, that one.

    Two different labels at the step that decides are no answer: choosing the first or the last
    would credit a model for listing its options.
    """
    names = _label_names(tuple(labels))
    answer = _json_strings(strip_thinking(text)[0])
    if (whole := normalise(answer)) in names:
        return names[whole]
    parts = (normalise(part) for part in _STATEMENT.split(answer))
    found = {names[part] for part in parts if part in names} or _mentioned(answer, tuple(labels))
    return found.pop() if len(found) == 1 else None


@lru_cache(maxsize=256)
def _label_names(labels: tuple[str, ...]) -> dict[str, str]:
    return {normalise(label): label for label in labels}


@lru_cache(maxsize=256)
def _mention_pattern(labels: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(_label_names(labels), key=lambda name: (-len(name), name))
    return re.compile("|".join(_bounded(name) for name in longest_first))


def _bounded(name: str) -> str:
    """Word boundaries around a name, except on a side whose script has no spaces."""
    spaceless = re.compile(f"[{SPACELESS}]")
    before = "" if spaceless.match(name[:1]) else r"(?<!\w)"
    after = "" if spaceless.match(name[-1:]) else r"(?!\w)"
    return before + re.escape(name) + after


def _mentioned(answer: str, labels: tuple[str, ...]) -> set[str]:
    text, names = normalise(answer), _label_names(labels)
    return {
        names[match.group()]
        for match in _mention_pattern(labels).finditer(text)
        if not _NEGATED.search(text[max(0, match.start() - 40) : match.start()])
    }


# ---------------------------------------------------------------- JSON


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, in order; fences and prose around them don't matter."""
    decoder = json.JSONDecoder(strict=False)  # models write raw line breaks inside strings
    start = text.find("{")
    while start >= 0:
        try:
            found, end = decoder.raw_decode(text, start)
            yield found
        except (ValueError, RecursionError):
            end = start + 1
        start = text.find("{", end)


def _json_strings(text: str) -> str:
    """The string values of the first JSON object, one a line; the text itself if there is none."""
    found = next(json_objects(text), None)
    return "\n".join(_strings(found)) or text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


# ---------------------------------------------------------------- entities

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PAIR = re.compile(
    rf"({_QUOTED}|[^\s=:;,{{}}\[\]\"][^=:;,\n{{}}\[\]\"]{{0,59}}?)[ \t]*=[ \t]*"
    rf"({_QUOTED}|[^;\n]*?)(?=\s*(?:;|\n|$|,\s*[\w .-]+=))"
)
_COLON_PAIR = re.compile(r"^\s*(?:[-*+•]\s+)?\**(\w[\w ./-]{0,40}?)\**\s*:\**\s*(\S.*?)\s*$")
_BULLET = re.compile(r"^(?:[-*+•]|\d+[.)])\s+")
_BARE_TYPE = re.compile(r"[^\W\d_][\w./-]*(?: [\w./-]+)*")
_NOTHING = frozenset({"", "none", "null", "n/a"})


def parse_entities(text: str) -> list[Pair]:
    """(type, value) pairs of `order=4821; product=router`, of a JSON object, or of `none`.

    Values are returned as written and compared by `normalise`.  `order=none` is no entity; a value
    with a separator in it stands in double quotes, with JSON escapes.
    """
    answer = strip_thinking(text)[0]
    found = _json_list(answer) if answer.startswith("[") else next(json_objects(answer), None)
    if found is not None:
        return entity_pairs(found)
    pairs = [(match[1], match[2]) for match in _PAIR.finditer(answer)]
    if not pairs:
        lines = (_COLON_PAIR.match(line) for line in re.split("[;\n]", answer))
        pairs = [(match[1], match[2]) for match in lines if match]
    return [
        (_unquoted(_BULLET.sub("", kind).strip("*`")), _unquoted(value))
        for kind, value in pairs
        if value.startswith('"') or normalise(value) not in _NOTHING
    ]


def _json_list(text: str) -> list[Any] | None:
    try:
        found = json.JSONDecoder(strict=False).raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _unquoted(text: str) -> str:
    if re.fullmatch(_QUOTED, text):
        try:
            return str(json.loads(text, strict=False))
        except ValueError:
            pass
    return text.strip()


def entity_pairs(value: Any) -> list[Pair]:
    """(type, value) pairs of a row's value: {type: value or list of values}, [[type, value], …],
    [{"type": …, "value": …}, …], or text as `parse_entities` reads it.  None is no entity."""
    if isinstance(value, str):
        return parse_entities(value)
    if isinstance(value, Mapping):
        if set(value) == {"entities"} and isinstance(value["entities"], dict | list):
            return entity_pairs(value["entities"])
        if set(value) == {"type", "value"}:
            value = {str(value["type"]): value["value"]}
        return [(str(kind), text) for kind, item in value.items() for text in _texts(item)]
    if isinstance(value, list | tuple):
        return [pair for item in value for pair in _pairs_of_item(item)]
    return []


def _pairs_of_item(item: Any) -> list[Pair]:
    if isinstance(item, list | tuple) and len(item) == 2:
        return [(str(item[0]), text) for text in _texts(item[1])]
    return entity_pairs(item) if isinstance(item, Mapping) else []


def _texts(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item)]
    if value is None or isinstance(value, Mapping):
        return []
    return [value if isinstance(value, str) else json.dumps(value)]


def format_entities(pairs: Sequence[Pair]) -> str:
    """`type=value; type=value`, or `none`: what `parse_entities` reads back."""
    return "; ".join(f"{_type(kind)}={_value(text)}" for kind, text in pairs) or "none"


def _type(kind: str) -> str:
    bare = len(kind) <= 60 and _BARE_TYPE.fullmatch(kind)
    return kind if bare else json.dumps(kind, ensure_ascii=False)


def _value(text: str) -> str:
    bare = text == text.strip() and not re.search('[;={"\n]', text)
    return (
        text if bare and normalise(text) not in _NOTHING else json.dumps(text, ensure_ascii=False)
    )


# ---------------------------------------------------------------- fields


def split_fields(text: str, dataset: DatasetSpec) -> dict[str, str | None]:
    """The raw text of each answer field; None where the answer doesn't have the field.

    `lines` are tried first for that format, a JSON object first for `json`.  Where no field name is
    found at all, every field is offered the whole answer, so that an untuned model that answers in
    free prose is read rather than called empty.
    """
    answer = strip_thinking(text)[0]
    if dataset.format == "plain":
        return {dataset.answer[0].name: answer}
    readers = [_from_lines, _from_json]
    for read in readers if dataset.format == "lines" else reversed(readers):
        found = read(answer, dataset)
        if found:
            return {field.name: found.get(field.name) for field in dataset.answer}
    return {field.name: answer for field in dataset.answer}


def _from_json(answer: str, dataset: DatasetSpec) -> dict[str, str]:
    names = {normalise(field.name): field.name for field in dataset.answer}
    for found in json_objects(answer):
        known = {
            names[key]: value for raw, value in found.items() if (key := normalise(raw)) in names
        }
        if known:
            return {name: _as_text(value) for name, value in known.items() if value is not None}
    return {}


def _as_text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _from_lines(answer: str, dataset: DatasetSpec) -> dict[str, str]:
    """Each field's text runs to the next field name; of a repeated name the first counts."""
    names = {normalise(field.name): field.name for field in dataset.answer}
    headers = list(_header(tuple(names.values())).finditer(answer))
    ends = [*(match.start() for match in headers), len(answer)][1:]
    found: dict[str, str] = {}
    for match, end in zip(headers, ends, strict=True):
        text = _escaped_header(tuple(names.values())).sub("", answer[match.end() : end])
        found.setdefault(names[normalise(match["name"])], text.strip())
    return found


_DECORATION = r"(?:(?:[-+*•>]|\#+|\d+[.)])[ \t]+)?[*_`\"']*"


@lru_cache(maxsize=256)
def _header(names: tuple[str, ...], indent: str = "^[ ]{0,3}") -> re.Pattern[str]:
    """`name:` at a line's start, after an optional bullet, number, heading mark or bold."""
    ways = (re.sub(r"[-_]", r"[ _-]", name.replace(".", r"\.")) for name in names)
    options = "|".join(sorted(ways, key=len, reverse=True))
    pattern = rf"{indent}{_DECORATION}(?P<name>{options})[*_`\"']*[ \t]*[:：][*_`]*[ \t]*"
    return re.compile(pattern, re.MULTILINE | re.IGNORECASE)


@lru_cache(maxsize=256)
def _escaped_header(names: tuple[str, ...]) -> re.Pattern[str]:
    """Four spaces before a line of a text that would read as a field name."""
    line = _header(names, indent="[ ]*").pattern
    return re.compile(rf"^[ ]{{4}}(?={line})", re.MULTILINE | re.IGNORECASE)


# ---------------------------------------------------------------- the inverse


def format_answer(row_values: Mapping[str, Any], dataset: DatasetSpec) -> str:
    """The completion to train on: `row_values` (by field name) in the dataset's format.

    Outer whitespace of texts is dropped.  ValueError for a missing field or an unknown label.
    """
    for field in dataset.answer:
        if field.name not in row_values:
            raise ValueError(f"dataset {dataset.name}: row has no value for field {field.name}")
    if dataset.format == "json":
        values = {
            field.name: _json_value(row_values[field.name], field) for field in dataset.answer
        }
        return json.dumps(values, ensure_ascii=False)
    texts = {field.name: _line_value(row_values[field.name], field) for field in dataset.answer}
    if dataset.format == "plain":
        return texts[dataset.answer[0].name]
    return "\n".join(f"{name}: {_indent_headers(text, texts)}" for name, text in texts.items())


def true_label(value: Any, field: Field_) -> str:
    """A row's label as spelt in the field's list; ValueError where it isn't one of them."""
    name = _label_names(field.labels).get(normalise(str(value)))
    if name is None:
        raise ValueError(f"field {field.name}: {value!r} is not one of its labels {field.labels}")
    return name


def _line_value(value: Any, field: Field_) -> str:
    if field.type == "entities":
        return format_entities(entity_pairs(value))
    return true_label(value, field) if field.type == "label" else text_options(value)[0].strip()


def _json_value(value: Any, field: Field_) -> Any:
    if field.type != "entities":
        return _line_value(value, field)
    grouped: dict[str, list[str]] = {}
    for kind, text in entity_pairs(value):
        grouped.setdefault(kind, []).append(text)
    return {kind: texts[0] if len(texts) == 1 else texts for kind, texts in grouped.items()}


def text_options(value: Any) -> list[str]:
    """The accepted texts of a row: one, or several references.  The first one is trained on."""
    if isinstance(value, list | tuple):
        return [str(item) for item in value] or [""]
    return ["" if value is None else str(value)]


def _indent_headers(text: str, names: Mapping[str, str]) -> str:
    header = _header(tuple(names), indent="^[ ]*").pattern
    first, *rest = text.split("\n")
    marked = [f"    {line}" if re.match(header, line, re.IGNORECASE) else line for line in rest]
    return "\n".join([first, *marked])
