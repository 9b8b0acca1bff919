"""LoRA: low-rank adapters beside frozen linear layers (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.spec import AdapterSpec, MethodSpec

REPLACES_BASE = False


def load_arguments(method: MethodSpec) -> dict[str, Any]:
    return {}


def adapt(model: Any, method: MethodSpec) -> Any:
    """Add the adapters.

    Raises UserError for a target that names no module: peft only objects when *none* matches.
    """
    from peft import LoraConfig, get_peft_model

    from bench.worker import experts4bit

    adapter = method.adapter
    assert adapter is not None  # checked by MethodSpec
    targets = target_modules(model, adapter)
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=targets,
        target_parameters=list(adapter.target_parameters) or None,
        use_rslora=adapter.rslora,
        use_dora=adapter.dora,
        bias="none",
        task_type="CAUSAL_LM",
    )
    experts4bit.register(config)
    adapted = get_peft_model(model, config, autocast_adapter_dtype=False)
    _check_targets(adapted, method, targets)
    set_adapter_dtype(adapted, method)
    return adapted


def target_modules(model: Any, adapter: AdapterSpec) -> list[str]:
    """Last names of the modules to adapt.

    `all-linear` is spelt out here, because peft's own adapts a mixture's router too, through
    `target_parameters` that `exclude_modules` doesn't reach.  Fused experts are not nn.Linear: peft
    maps the names of their unfused layers to them.
    """
    import torch

    if adapter.target_modules != "all-linear":
        return list(adapter.target_modules)
    head = model.get_output_embeddings()
    names = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }
    if any(name.endswith("experts.gate_up_proj") for name, _ in model.named_parameters()):
        names |= _unfused_names(model)
    return sorted(names - set(adapter.exclude_modules))


def _unfused_names(model: Any) -> set[str]:
    """What peft calls the layers that a family's experts are fused from, e.g. w1, w2 and w3.

    Raises UserError for a family that peft has no names for.
    """
    import peft.utils.transformers_weight_conversion as peft_conversion

    conversion: Any = peft_conversion  # its tables have no public names
    kind = model.config.model_type
    family = conversion._MODEL_TO_CONVERSION_PATTERN.get(kind, kind)
    names = conversion._MOE_TARGET_MODULE_MAPPING.get(family)
    if names is None:
        raise UserError(
            f"peft has no names for the fused experts of {kind}: instead of all-linear, set "
            "target_modules to the names of the linear layers and target_parameters to "
            "[experts.gate_up_proj, experts.down_proj]"
        )
    return {name for name, target in names.items() if target in ("gate_up_proj", "down_proj")}


def set_adapter_dtype(model: Any, method: MethodSpec) -> None:
    """Give trainable weights the dtype that the method names.

    peft takes the base's, and TRL's trainer casts adapters of quantised models to bf16 whatever
    the method says; so this runs after peft and again after the trainer is built.
    """
    from bench.worker.load import torch_dtype

    assert method.adapter is not None
    dtype = torch_dtype(method.adapter.dtype)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)


def save(model: Any, folder: Path, state: dict[str, Any] | None = None) -> None:
    model.save_pretrained(folder, state_dict=state)


def load_trained(model: Any, folder: Path) -> Any:
    """The adapter on the base, unmerged, as a user would deploy it.

    Raises UserError where keys don't match: peft only warns, and answers as the base would.
    """
    from peft import PeftConfig, PeftModel
    from peft.utils import load_peft_weights

    from bench.worker import experts4bit

    config = experts4bit.register(PeftConfig.from_pretrained(str(folder)))
    adapted = PeftModel.from_pretrained(model, folder, config=config, autocast_adapter_dtype=False)
    saved = set(load_peft_weights(str(folder), device="cpu"))
    held = {
        name.replace(".default", "")
        for name, _ in adapted.named_parameters()
        if ".lora_" in name or "lora_" in name.rsplit(".", 1)[-1]
    }
    if saved != held:
        odd = sorted(saved ^ held)
        raise UserError(
            f"adapter in {folder.name}: {len(odd)} keys don't match the model, e.g. {odd[0]}"
        )
    return adapted


def problems(model: Any, method: MethodSpec) -> list[str]:
    """Trainable weights that aren't adapters, or adapters of another dtype."""
    assert method.adapter is not None
    from bench.worker.load import torch_dtype

    dtype = torch_dtype(method.adapter.dtype)
    found = []
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    other = [name for name, _ in trainable if "lora_" not in name]
    if other:
        found.append(f"{len(other)} trainable tensors are not adapters, e.g. {other[0]}")
    wrong = [name for name, p in trainable if p.dtype != dtype]
    if wrong:
        found.append(f"{len(wrong)} adapter tensors are not {method.adapter.dtype}: {wrong[0]}")
    return found


def _check_targets(model: Any, method: MethodSpec, targets: list[str]) -> None:
    config = model.peft_config["default"]
    adapted = model.base_model.targeted_module_names
    for target in set(targets) & set(config.target_modules or ()):  # peft renames fused experts'
        if not any(name == target or name.endswith(f".{target}") for name in adapted):
            raise UserError(
                f"method {method.name}: target module {target!r} matches nothing in this model"
            )
