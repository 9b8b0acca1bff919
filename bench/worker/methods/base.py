"""The untouched model: what every adaptation has to beat."""

from __future__ import annotations

from typing import Any

from bench.spec import MethodSpec

REPLACES_BASE = False


def load_arguments(method: MethodSpec) -> dict[str, Any]:
    return {}


def load_trained(model: Any, folder: Any) -> Any:
    return model


def problems(model: Any, method: MethodSpec) -> list[str]:
    return []
