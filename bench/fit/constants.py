"""Empirical constants and their sources, from constants.yaml; `bench calibrate` proposes others."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("constants.yaml")


@functools.cache
def table() -> dict[str, Any]:
    """name → {value, unit, source}, and `by_gpu` with the same by GPU."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


def constant(name: str, gpu: str | None = None) -> float:
    """The value, that of `gpu` (a `match` of gpus.yaml) where one was measured.

    An unknown name is a programming error.
    """
    entry = table()[name]
    return float(entry.get("by_gpu", {}).get(gpu, entry)["value"])
