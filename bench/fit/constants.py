"""Empirical constants with their sources, from constants.yaml; a calibration file can replace them.

python -m bench.fit calibrate results/ --write calibration.yaml
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("constants.yaml")


@functools.cache
def table() -> dict[str, Any]:
    """name → {value, unit, source}."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


def constant(name: str) -> float:
    """The value; an unknown name is a programming error."""
    return float(table()[name]["value"])
