"""The committed JSON Schemas are today's types, and every YAML file in suites/ meets its schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from bench.schema import FOLDER, TYPES, schemas, write

ROOT = Path(__file__).parent.parent
YAML_FILES = sorted((ROOT / "suites").rglob("*.yaml"))


def schema_of(path: Path) -> str:
    """`suites/models/x.yaml` → `model.json`; `suites/x.yaml` → `suite.json`."""
    return f"{path.parent.name.removesuffix('s')}.json"


@pytest.mark.parametrize("name", TYPES)
def test_committed_schema_is_current(name: str) -> None:
    committed = json.loads((ROOT / FOLDER / name).read_text(encoding="utf-8"))
    assert committed == schemas()[name], "run `python -m bench.schema`"


def test_written_schemas_are_valid_json_schema(tmp_path: Path) -> None:
    assert {path.name for path in write(tmp_path)} == set(TYPES)
    for path in tmp_path.glob("*.json"):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_yaml_meets_its_schema(path: Path) -> None:
    name = schema_of(path)
    if name not in TYPES:
        pytest.skip(f"no schema for {path.parent.name}")
    text = path.read_text(encoding="utf-8")
    jsonschema.validate(yaml.safe_load(text), schemas()[name])
    pointed = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / pointed).resolve() == (ROOT / FOLDER / name).resolve()


def test_schema_refuses_a_misspelt_key() -> None:
    suite = yaml.safe_load((ROOT / "suites" / "quick.yaml").read_text(encoding="utf-8"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(suite | {"modles": []}, schemas()["suite.json"])
