"""One process.  A model too large for one device has its layers spread over all of the target's.

Spread layers work one after another: a large model then fits, but no faster than on one device.
"""

from __future__ import annotations

from typing import Any

import torch

from bench.spec import Cell
from bench.worker.strategies._common import loading, shard

__all__ = ["arguments", "check", "loading", "placement", "problems", "shard", "supports"]


class DoesNotFit(torch.OutOfMemoryError):
    """Weights were left over when the devices were full."""


def supports(cell: Cell) -> str | None:
    if cell.strategy.offload_params or cell.strategy.offload_optimizer:
        return "strategy single keeps everything on the devices: remove the offload settings"
    return None


def placement(cell: Cell) -> dict[str, Any]:
    if cell.target.device == "cpu":
        return {}
    if cell.target.devices == 1:
        return {"device_map": {"": 0}}
    return {"device_map": "balanced"}


def check(model: Any) -> None:
    """Raises DoesNotFit where layers were put on the host or the disk without a word."""
    places = getattr(model, "hf_device_map", {})
    outside = sorted(str(name) for name, place in places.items() if place in ("cpu", "disk"))
    if outside and len(set(places.values())) > 1:
        raise DoesNotFit(
            f"the weights exceed the devices: {len(outside)} of {len(places)} parts "
            f"would stay on the host, e.g. {outside[0]}"
        )


def arguments(cell: Cell) -> dict[str, Any]:
    return {}


def problems(model: Any, wrapped: Any) -> list[str]:
    return []
