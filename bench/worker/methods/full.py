"""Full fine-tuning: every weight is trained and saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.spec import MethodSpec

REPLACES_BASE = True


def load_arguments(method: MethodSpec) -> dict[str, Any]:
    return {}


def adapt(model: Any, method: MethodSpec) -> Any:
    model.requires_grad_(True)
    return model


def save(model: Any, folder: Path, state: dict[str, Any] | None = None) -> None:
    model.save_pretrained(folder, state_dict=state)


def load_trained(model: Any, folder: Path) -> Any:
    return model  # REPLACES_BASE: the folder was loaded in the base's place


def problems(model: Any, method: MethodSpec) -> list[str]:
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    if frozen:
        return [f"full fine-tuning left {len(frozen)} tensors frozen, e.g. {frozen[0]}"]
    return []
