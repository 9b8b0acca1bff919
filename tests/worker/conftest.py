"""Real tiny models: made once a session, in the session's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import suite
from bench.spec import Cell

from ..conftest import ROOT

pytest.importorskip("torch")


@pytest.fixture(scope="session")
def cells() -> dict[tuple[str, str], Cell]:
    found = suite.load(ROOT / "suites" / "smoke.yaml").cells
    return {(cell.model.name, cell.method.name): cell for cell in found}


@pytest.fixture(autouse=True)
def in_project(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("ADAPTBENCH_CACHE", str(cache))


@pytest.fixture
def tokenizer(cells: dict[tuple[str, str], Cell]) -> Any:
    from bench.worker import load

    return load.tokenizer(cells["tiny-llama", "lora"].model)


def changed(cell: Cell, **parts: Any) -> Cell:
    """The cell with fields of its parts replaced, validated again."""
    data = cell.model_dump()
    for name, fields in parts.items():
        data[name] = {**data[name], **fields}
    return Cell.model_validate(data)
