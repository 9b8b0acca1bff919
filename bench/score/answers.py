"""From a model's raw text to the answer's fields, and back.

Tuned models answer in the dataset's format; untuned ones wrap the same answer in prose, markdown,
JSON or a reasoning trace.  Methods are compared fairly only if one documented reading serves both.

    python -m pytest tests/score/test_answers.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bench.score.entities import entity_pairs, format_entities
from bench.score.json_text import json_values
from bench.score.plain import normalise, strip_thinking
from bench.score.text import SPACELESS
from bench.spec import DatasetSpec, Field_

# ---------------------------------------------------------------- labels

# Where one statement ends and the next begins; a hyphen only between spaces (labels hold them).
_STATEMENT = re.compile(r"[\n:;.!?,()\[\]{}|\"“”。：；，！？、（）–—]|\s-\s")
# "I don't think this is a billing problem": between a negation and what it denies stand only such
# words and other labels.  Elsewhere ("they did not receive the delivery") it denies something else.
_NOT = (
    r"(?:\b(?:not(?! only\b| just\b)|cannot|never|neither|nor|without|rather than|instead of)"
    r"|n['’]t)"
)
_FILLER = (
    "a an the this that it is be been as to of in about appear appears appearing seem seems look "
    "looks like think believe say call called consider considered classify classified categorize "
    "categorized label labeled labelled really clearly exactly necessarily strictly quite very "
    "related belong or and nor either"
)
_NOT_AT_ONCE = re.compile(
    r"(?:\b(?:no|не|nicht|keine?|pas|no es|non è|não é)\s+|不是|并非|不属于)$"
)
_REACH = 80  # characters before a label in which it may be negated


def parse_label(text: str, labels: Sequence[str]) -> str | None:
    """The one label that an answer gives, as spelt in `labels`; None if it gives none or several.

    1. A reasoning trace is dropped.  Of JSON only the strings, whole numbers and keys that are
       `true` count, if any.
    2. The whole answer is a label: that one.
    3. Statements (between line breaks and punctuation) that are just a label: `Intent: billing`,
       "Billing. They also asked about delivery".  If they name a single label, that one.
    4. Else labels mentioned at word boundaries, the longest where one contains another, without
       those that are negated ("not a billing problem"); one letter only as it is spelt.  If a
       single label is mentioned, that one.

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


def _json_strings(text: str) -> str:
    """What the JSON of a text says, one value a line; the text itself if it says nothing."""
    return "\n".join(string for value in json_values(text) for string in _strings(value)) or text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from [str(key)] if item is True else _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


@dataclass(frozen=True)
class _Mentions:
    """A list of labels as patterns: of any label, of single letters, of a negation before one."""

    any_label: re.Pattern[str]
    letters: re.Pattern[str] | None
    negated: re.Pattern[str]


@lru_cache(maxsize=256)
def _patterns(labels: tuple[str, ...]) -> _Mentions:
    longest_first = sorted(_label_names(labels), key=lambda name: (-len(name), name))
    whole = "|".join(_bounded(name) for name in longest_first)
    single = [label for label in labels if len(label) == 1 and label.isascii() and label.isalpha()]
    between = "|".join([*_FILLER.split(), *map(re.escape, longest_first)])
    return _Mentions(
        any_label=re.compile(whole),
        letters=re.compile("|".join(map(_bounded, single))) if single else None,
        negated=re.compile(rf"{_NOT}(?:\s+(?:{between}))*\s*$"),
    )


def _bounded(name: str) -> str:
    """Word boundaries around a name, except on a side whose script has no spaces."""
    spaceless = re.compile(f"[{SPACELESS}]")
    before = "" if spaceless.match(name[:1]) else r"(?<!\w)"
    after = "" if spaceless.match(name[-1:]) else r"(?!\w)"
    return before + re.escape(name) + after


def _mentioned(answer: str, labels: tuple[str, ...]) -> set[str]:
    """Labels that stand in the answer and aren't denied there."""
    names, patterns = _label_names(labels), _patterns(labels)
    spelt = set(patterns.letters.findall(answer)) if patterns.letters else set()
    found = set()
    for line in answer.split("\n"):
        text = normalise(line)
        for match in patterns.any_label.finditer(text):
            label, before = (
                names[match.group()],
                text[max(0, match.start() - _REACH) : match.start()],
            )
            article = patterns.letters is not None and len(label) == 1 and label not in spelt
            if not (article or patterns.negated.search(before) or _NOT_AT_ONCE.search(before)):
                found.add(label)
    return found


# ---------------------------------------------------------------- fields


def split_fields(text: str, dataset: DatasetSpec) -> dict[str, str | None]:
    """The raw text of each answer field; None where the answer doesn't have the field.

    `lines` are tried first for that format, JSON first for `json`.  Where no field name is found at
    all, every field is offered the whole answer, so that an untuned model that answers in free
    prose is read rather than called empty.
    """
    answer = strip_thinking(text)[0]
    if dataset.format == "plain":
        return {dataset.answer[0].name: answer}
    answer = _unwrapped(answer)
    readers = [_from_lines, _from_json]
    for read in readers if dataset.format == "lines" else reversed(readers):
        found = read(answer, dataset)
        if found:
            return {field.name: found.get(field.name) for field in dataset.answer}
    return {field.name: answer for field in dataset.answer}


_WRAPPED = re.compile(
    r"```\w*\n(?P<fenced>.*?)\n?```|<(?P<tag>answer|output|response)>(?P<tagged>.*)</(?P=tag)>",
    re.DOTALL | re.IGNORECASE,
)


def _unwrapped(answer: str) -> str:
    """An answer that stands in one code fence or pair of tags as a whole, without them."""
    match = _WRAPPED.fullmatch(answer)
    return answer if match is None else (match["fenced"] or match["tagged"] or "").strip()


def _from_json(answer: str, dataset: DatasetSpec) -> dict[str, str]:
    """From all objects of the answer, and from objects right inside them; the first one counts."""
    names = {normalise(field.name): field.name for field in dataset.answer}
    found: dict[str, str] = {}
    for value in _objects(answer):
        for raw, item in value.items():
            if item is not None and (name := names.get(normalise(str(raw)))):
                found.setdefault(name, _as_text(item))
    return found


def _objects(answer: str) -> Iterator[dict[Any, Any]]:
    for value in json_values(answer):
        outer = [value] if isinstance(value, dict) else value
        objects = [item for item in outer if isinstance(item, dict)]
        yield from objects
        for one in objects:
            yield from (item for item in one.values() if isinstance(item, dict))


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    return json.dumps(value, ensure_ascii=False, default=str)


def _from_lines(answer: str, dataset: DatasetSpec) -> dict[str, str]:
    """Each field's text runs to the next field name; of a repeated name the first counts.

    Names begin a line.  Those that don't anywhere are looked for inside lines: a model that was
    not tuned may put `reply: … intent: …` on one.
    """
    names = {normalise(field.name): field.name for field in dataset.answer}
    every = tuple(names.values())
    headers = [(m.start(), m.end(), _named(m)) for m in _header(every).finditer(answer)]
    if headers:
        known = {name for *_, name in headers}
        headers += _inside(answer, tuple(n for n in every if normalise(n) not in known))
    headers.sort()
    ends = [*(start for start, *_ in headers), len(answer)][1:]
    found: dict[str, str] = {}
    for (_, begin, name), end in zip(headers, ends, strict=True):
        text = _escaped_header(every).sub("", answer[begin:end])
        found.setdefault(names[name], text.strip())
    return found


def _named(match: re.Match[str]) -> str:
    return normalise(match["name"] or match["head"])


def _inside(answer: str, missing: tuple[str, ...]) -> list[tuple[int, int, str]]:
    """The first place inside a line of each name that begins none."""
    found = []
    for name in missing:
        if match := _inline(name).search(answer):
            found.append((match.start(), match.end(), normalise(name)))
    return found


_DECORATION = r"(?:(?:[-+*•>]|\#+|\d+[.)])[ \t]+)?[*_`\"']*"


def _spelt(name: str) -> str:
    return re.sub(r"[-_]", r"[ _-]", name.replace(".", r"\."))


@lru_cache(maxsize=256)
def _header(names: tuple[str, ...], indent: str = "^[ ]{0,3}") -> re.Pattern[str]:
    """`name:` at a line's start, after an optional bullet, number, heading mark or bold; or a
    heading of its own, `### name`."""
    options = "|".join(sorted(map(_spelt, names), key=len, reverse=True))
    pattern = (
        rf"{indent}(?:{_DECORATION}(?P<name>{options})[*_`\"']*[ \t]*[:：=][*_`]*[ \t]*"
        rf"|\#+[ \t]+[*_`]*(?P<head>{options})[*_`]*[ \t]*$)"
    )
    return re.compile(pattern, re.MULTILINE | re.IGNORECASE)


@lru_cache(maxsize=256)
def _inline(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=[\s;,.|])[*_`]*{_spelt(name)}[*_`]*[ \t]*[:：][*_`]*[ \t]*", re.I)


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
