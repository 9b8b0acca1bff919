"""The untouched model: what every adaptation has to beat.

With `quantization` it is held in 4 or 8 bit: what quantising alone costs, and saves in serving.
"""

from __future__ import annotations

from typing import Any

from bench.spec import MethodSpec
from bench.worker.methods import qlora

REPLACES_BASE = False


def load_arguments(method: MethodSpec) -> dict[str, Any]:
    return qlora.load_arguments(method) if method.quantization else {}


def load_trained(model: Any, folder: Any) -> Any:
    return model


def problems(model: Any, method: MethodSpec) -> list[str]:
    return qlora.too_little_quantized(model) if method.quantization else []
