"""Which modules carry an adapter, which of those that were asked for don't, and the router."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from bench.spec import AdapterSpec

ROUTERS = ("gate", "router")


def adapted_modules(model: Any) -> dict[str, int]:
    """Kind of adapted module (last name; the parameter for fused experts): how many of them."""
    kinds = Counter(_kind(name, module) for name, module in model.named_modules() if _has(module))
    return dict(sorted(kinds.items()))


def _has(module: Any) -> bool:
    return bool(getattr(module, "lora_A", None))


def _kind(name: str, module: Any) -> str:
    parameter = getattr(module, "parameter_name", None)
    return f"experts.{parameter}" if parameter else name.rsplit(".", 1)[-1]


def router_adapted(model: Any) -> bool | None:
    """Whether an adapter or training moves a mixture's router; None for dense models."""
    from bench.worker.proof.weights import parts

    routers = [name for name, part in parts(model).items() if part == "router"]
    if not routers:
        return None
    adapted = [n for n, m in model.named_modules() if _has(m) and n.rsplit(".", 1)[-1] in ROUTERS]
    trained = [name for name in routers if model.get_parameter(name).requires_grad]
    return bool(adapted or trained)


def dead_targets(model: Any, adapter: AdapterSpec) -> list[str]:
    """Targets named in the method that no module carries an adapter for."""
    if adapter.target_modules == "all-linear":
        return []
    names = [name for name, module in model.named_modules() if _has(module)]
    stems = {name.removesuffix(".base_layer") for name in names}
    fused = any("experts." in kind for kind in adapted_modules(model))
    return [
        target
        for target in adapter.target_modules
        if not any(stem == target or stem.endswith(f".{target}") for stem in stems)
        # the layers that experts were fused from are adapted under the fused parameter's name
        and not (fused and target in ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"))
    ]


def missed(model: Any, adapter: AdapterSpec) -> list[str]:
    """Linear layers of the decoder that `all-linear` means and that carry no adapter.

    peft 0.21 drops `gate_proj`, `up_proj` and `down_proj` of shared experts and dense layers in
    families whose experts are fused.
    """
    from bench.worker.proof.weights import decoder_layers

    if adapter.target_modules != "all-linear":
        return []
    found = []
    for layer in decoder_layers(model):
        for name, module in layer.named_modules():
            plain = isinstance(module, torch.nn.Linear) and "lora_" not in name
            if plain and not name.endswith("base_layer") and not _has(module):
                found.append(name)
    return sorted({n for n in found if n.rsplit(".", 1)[-1] not in adapter.exclude_modules})
