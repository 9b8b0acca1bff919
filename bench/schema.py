"""JSON Schemas of the YAML files, so that an editor completes and checks them as they are typed.

Each YAML file names its schema in its first line (`# yaml-language-server: $schema=…`), which the
YAML extensions of common editors read.  A test compares the committed schemas with these types.

    python -m bench.schema        # rewrites suites/schema/*.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bench.spec import ClaimFile, DatasetSpec, MethodSpec, ModelSpec, SuiteFile, TargetSpec

FOLDER = Path("suites/schema")

# Schema file: its type.  The folder suites/<name>s/ holds the files of each; suites/ the suites.
TYPES: dict[str, type[BaseModel]] = {
    "suite.json": SuiteFile,
    "model.json": ModelSpec,
    "method.json": MethodSpec,
    "dataset.json": DatasetSpec,
    "target.json": TargetSpec,
    "claim.json": ClaimFile,
}


def schemas() -> dict[str, dict[str, Any]]:
    """File name → JSON Schema."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {name: dialect | kind.model_json_schema() for name, kind in TYPES.items()}


def write(folder: Path = FOLDER) -> list[Path]:
    """Write every schema into `folder`; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, schema in schemas().items():
        text = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
        files.append(folder / name)
    return files


if __name__ == "__main__":
    for file in write():
        print(file)
