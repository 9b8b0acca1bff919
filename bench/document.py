"""A YAML file whose every part knows its line, and pydantic's errors told in those terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from bench.errors import UserError, nearest

Location = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Document:
    """A YAML file's data, and the line on which each part of it begins."""

    path: Path
    data: Any
    lines: dict[Location, int]

    def where(self, location: Sequence[str | int]) -> str:
        """`file:line` of the deepest part of `location` that the file holds."""
        place = tuple(location)
        while place and place not in self.lines:
            place = place[:-1]
        return f"{shown(self.path)}:{self.lines.get(place, 1)}"


def read_yaml(path: Path) -> Document:
    """Parse a YAML file and remember where everything stands."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"no file {shown(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{shown(path)}: can't be read: {error}") from None
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
        data = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{shown(path)}:{line}: not valid YAML: {problem}") from None
    lines: dict[Location, int] = {}
    _walk(node, (), lines, path)
    if not isinstance(data, dict):
        raise UserError(
            f"{shown(path)}:1: expected `key: value` lines, found {type(data).__name__}"
        )
    return Document(path, data, lines)


def _walk(node: yaml.Node | None, place: Location, lines: dict[Location, int], path: Path) -> None:
    if node is None:
        return
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*place, index), lines, path)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*place, key.value)
            line = key.start_mark.line + 1
            if here in lines:
                raise UserError(f"{shown(path)}:{line}: {key.value} stands twice: remove one")
            lines[here] = line
            _walk(value, here, lines, path)


def validate(kind: type[M], document: Document, prefix: Location = ()) -> M:
    """Validate a document's data; the first error becomes one line with its place.

    `prefix` is where the data stands in the document, for overrides inside a suite.
    """
    try:
        return kind.model_validate(document.data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        where = document.where((*prefix, *_written(first["loc"], document.data)))
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        text = _explain(kind, first)
        raise UserError(f"{where}: {field + ': ' if field else ''}{text}{more}") from None


def _written(location: Sequence[str | int], data: Any) -> Location:
    """Pydantic's location without the union tags and type names that no file holds."""
    place: list[str | int] = []
    for part in location:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            if part != location[-1]:
                continue
        place.append(part)
    return tuple(place)


def _explain(kind: type[BaseModel], error: Any) -> str:
    if error["type"] == "extra_forbidden":
        key = str(error["loc"][-1])
        return f"unknown key. {nearest(key, _field_names(kind))}"
    if error["type"] == "missing":
        return "is missing"
    message = str(error["msg"]).removeprefix("Value error, ")
    value = error.get("input")
    plain = isinstance(value, (str, int, float, bool)) and error["type"] != "value_error"
    return f"{message} (got {value!r})" if plain else message


def explain_first(kind: type[BaseModel], error: ValidationError) -> str:
    """The first of pydantic's errors as `field: what is wrong`."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    text = _explain(kind, first)
    return f"{field}: {text}" if field else text


def _field_names(kind: type[BaseModel]) -> set[str]:
    schema = kind.model_json_schema()
    parts = [schema, *schema.get("$defs", {}).values()]
    return {name for part in parts for name in part.get("properties", {})}


def shown(path: Path) -> str:
    """Relative to where the person stands, where that is shorter."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
