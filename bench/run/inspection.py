"""`bench check SUITE --data`: each dataset's rows are checked in a process of their own.

What was found is kept in results/<suite>/data/<dataset>.json, so that the report can warn of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import store
from bench.errors import UserError
from bench.score.hygiene import Hygiene
from bench.spec import Cell


def inspect(cells: Sequence[Cell], results: Path) -> Iterator[Hygiene]:
    """Check every dataset of the cells, one after another, and keep what was found.

    Raises UserError where rows can't be had.
    """
    datasets: dict[str, list[Cell]] = {}
    for cell in cells:
        datasets.setdefault(cell.dataset.name, []).append(cell)
    for name, group in datasets.items():
        found = _inspect(group)
        store.write_json(store.hygiene_file(results, group[0].suite, name), found)
        yield found


def _inspect(cells: Sequence[Cell]) -> Hygiene:
    done = subprocess.run(
        [sys.executable, "-m", "bench.worker.inspect"],
        input=json.dumps({"cells": [cell.model_dump(mode="json") for cell in cells]}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise UserError(f"the rows of {cells[0].dataset.name} can't be checked: {lines[-1]}")
    return Hygiene.model_validate_json(done.stdout.strip().splitlines()[-1])
