"""What `bench fit` was asked: its options → model, method and machines.

Every way to ask for something impossible is one line (UserError).
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import ValidationError

from bench.document import explain_first, read_yaml, validate
from bench.errors import UserError, nearest
from bench.fit import examples
from bench.fit.cell import request_for as request_of_examples
from bench.fit.request import Request
from bench.fit.steptime import find_gpu
from bench.spec import MethodSpec, ModelSpec, RandomWeights, Strategy, TargetSpec, TokenLengths

STRATEGIES = ("auto", "single", "ddp", "fsdp", "zero2", "zero3")
OFFLOAD = "+offload"
HALF = ("bf16", "fp16")


def spec_of(kind: Any, folder: Path, name: str) -> Any:
    """The named file of a folder of suites/."""
    path = folder / f"{name}.yaml"
    if not path.exists():
        names = sorted(found.stem for found in folder.glob("*.yaml"))
        raise UserError(f"no {folder.name[:-1]} named {name}. {nearest(name, names)}")
    return validate(kind, read_yaml(path))


# ---------------------------------------------------------------- model


def model_of(name: str, suites: Path) -> ModelSpec:
    """A name in suites/models, a config.json, or a hub id (asks the hub for small files only)."""
    if name.endswith(".json"):
        return _bare(Path(name).resolve().parent.name or "config", _config_of(Path(name)), name)
    if "/" in name and not (suites / "models" / f"{name}.yaml").exists():
        return _from_hub(name)
    found: ModelSpec = spec_of(ModelSpec, suites / "models", name)
    if found.endpoint:
        raise UserError(f"model {name} answers behind an API: nothing of it has to fit anywhere")
    return found


def _config_of(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: expected a JSON object, a model's config.json")
    return config


def _from_hub(hub_id: str) -> ModelSpec:
    from bench.add_model import from_hub, slug

    if Path(hub_id).exists():
        raise UserError(f"{hub_id} is a file or folder: give the path of its config.json")
    try:
        found = from_hub(hub_id)
    except UserError as error:  # it speaks of bench add-model's option
        said = str(error).replace("give --config path/to/config.json", "give a config.json's path")
        raise UserError(said) from None
    return _bare(slug(hub_id), found.config, hub_id)


def _bare(name: str, config: dict[str, Any], source: str) -> ModelSpec:
    """A model known by its architecture alone."""
    if not isinstance(config.get("model_type"), str):
        raise UserError(f"{source}: no `model_type`: this is not a model's config.json")
    slug = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "config"
    weights = RandomWeights(kind="random")
    return ModelSpec(name=slug, weights=weights, config=config, params=1, chat=False)


# ---------------------------------------------------------------- method


def method_of(options: argparse.Namespace) -> MethodSpec:
    """The named method with what the command line changes."""
    method: MethodSpec = spec_of(MethodSpec, options.suites / "methods", options.method)
    if not method.trains:
        raise UserError(f"method {method.name} trains nothing: bench fit predicts training")
    updates = {
        "optimizer": options.optimizer,
        "gradient_checkpointing": options.grad_checkpointing,
        "attention": options.attention,
        "dtype": options.base_dtype,
        "adapter": _adapter(method, options),
        "quantization": _quantization(method, options),
    }
    if options.base_dtype in HALF and method.autocast:
        updates["autocast"] = options.base_dtype
    if options.packed is not None:
        updates["packing"] = options.packed
        if options.packed and options.attention is None:
            updates["attention"] = "flash_attention_2"
    changed = {name: value for name, value in updates.items() if value is not None}
    try:
        return MethodSpec.model_validate({**method.model_dump(), **changed})
    except ValidationError as error:
        raise UserError(f"method {method.name}: {explain_first(MethodSpec, error)}") from None


def _adapter(method: MethodSpec, options: argparse.Namespace) -> dict[str, Any] | None:
    targets = options.target_modules
    if targets and targets != "all-linear":
        targets = tuple(name.strip() for name in targets.split(",") if name.strip())
    changes = {
        "rank": options.rank,
        "target_modules": targets or None,
        "dtype": options.adapter_dtype,
    }
    return _part(method.name, "adapter", method.adapter, changes)


def _quantization(method: MethodSpec, options: argparse.Namespace) -> dict[str, Any] | None:
    if options.bits == 8 and options.double_quant:
        raise UserError("--double-quant is for --bits 4: 8-bit weights have a scale a row")
    half = options.base_dtype if options.base_dtype in HALF else None
    changes = {"bits": options.bits, "double_quant": options.double_quant}
    if method.quantization is not None:
        changes["compute_dtype"] = half
    return _part(method.name, "quantization", method.quantization, changes)


def _part(name: str, part: str, before: Any, changes: dict[str, Any]) -> dict[str, Any] | None:
    told = {key: value for key, value in changes.items() if value is not None}
    if not told:
        return None
    if before is None:
        flags = ("adapter-dtype" if key == "dtype" else key.replace("_", "-") for key in told)
        options = ", ".join(f"--{flag}" for flag in flags)
        raise UserError(f"method {name} has no {part}: leave out {options}")
    return {**before.model_dump(), **told}


# ---------------------------------------------------------------- machines


def all_targets(suites: Path) -> list[TargetSpec]:
    folder = suites / "targets"
    return [spec_of(TargetSpec, folder, path.stem) for path in sorted(folder.glob("*.yaml"))]


def targets_of(options: argparse.Namespace) -> list[TargetSpec]:
    """The named machine, one made of --gpu, or all of suites/targets that have a GPU."""
    known = [target for target in all_targets(options.suites) if target.device == "cuda"]
    if options.gpu and options.target:
        raise UserError("give --target or --gpu, one of them")
    if not options.gpu and (options.gpus is not None or options.host_ram is not None):
        raise UserError("--gpus and --host-ram go with --gpu; a --target has its own")
    if options.gpu:
        return [_machine(options, known)]
    if options.target:
        target: TargetSpec = spec_of(TargetSpec, options.suites / "targets", options.target)
        if target.device != "cuda":
            raise UserError(f"target {target.name} has no GPU: predictions are for CUDA devices")
        return [target]
    return known


def _machine(options: argparse.Namespace, known: list[TargetSpec]) -> TargetSpec:
    """--gpus devices of a kind; host RAM is what a machine of suites/ has for that many, if any."""
    count = 1 if options.gpus is None else options.gpus
    if count < 1:
        raise UserError(f"--gpus {count}: at least 1")
    if options.host_ram is not None and options.host_ram <= 0:
        raise UserError(f"--host-ram {options.host_ram:g}: GiB, above 0")
    alike = [target for target in known if options.gpu.lower() in _names(target)]
    if not alike:
        return _other_gpu(options, count, known)
    same = next((target for target in alike if target.devices == count), None)
    ram = options.host_ram or (same.host_ram_gib if same else None)
    update = {"name": f"{count}x{options.gpu.lower()}", "devices": count, "host_ram_gib": ram}
    return (same or alike[0]).model_copy(update={**update, "nodes": 1})


def _names(target: TargetSpec) -> set[str]:
    return {target.name.partition("x")[2], (target.gpu or "").lower()}


def _other_gpu(options: argparse.Namespace, count: int, known: list[TargetSpec]) -> TargetSpec:
    """A GPU of gpus.yaml: its memory is in its name; nobody said what it costs."""
    name = options.gpu.upper()
    size = re.search(r"(\d+)\s*GB?$", name)
    if find_gpu(name) is None:
        names = sorted({target.name.partition("x")[2] for target in known})
        raise UserError(f"unknown GPU {options.gpu}. {nearest(options.gpu.lower(), names)}")
    if size is None:
        raise UserError(f"--gpu {options.gpu}: say its memory too, e.g. {options.gpu}-40gb")
    price = {"usd_per_device_hour": 0, "low_usd": 0, "high_usd": 0}
    unknown = {"provider": "unknown", "date": "unknown", "source": "none"}
    return TargetSpec.model_validate(
        {
            "name": f"{count}x{options.gpu.lower()}",
            "device": "cuda",
            "gpu": name,
            "match": re.escape(name),
            "devices": count,
            "device_memory_gib": float(size.group(1)),
            "host_ram_gib": options.host_ram,
            "bf16": not re.search("V100|T4", name),
            "price": {**price, **unknown},
        }
    )


def priced(target: TargetSpec) -> bool:
    return target.price.provider != "unknown"


# ---------------------------------------------------------------- request


def strategy_of(name: str) -> Strategy:
    """A suite's strategies, and +offload for what they can keep in host RAM."""
    base, offload = name.removesuffix(OFFLOAD), name.endswith(OFFLOAD)
    if base not in STRATEGIES:
        raise UserError(f"unknown strategy {name}. {nearest(name, STRATEGIES)}")
    if offload and base not in ("fsdp", "zero2", "zero3"):
        raise UserError(f"{name}: only fsdp, zero2 and zero3 offload")
    return Strategy.model_validate(
        {
            "name": base,
            "offload_optimizer": offload,
            "offload_params": offload and base != "zero2",
        }
    )


def micro_batch_of(options: argparse.Namespace) -> int | None:
    """None: the largest that fits."""
    if options.micro_batch == "max":
        return None
    if not options.micro_batch.isdigit() or int(options.micro_batch) < 1:
        raise UserError(f"--micro-batch {options.micro_batch}: a number from 1 on, or max")
    return int(options.micro_batch)


def request_for(
    model: ModelSpec, method: MethodSpec, target: TargetSpec, options: argparse.Namespace
) -> Request:
    """A request without a suite, by the same mapping as a cell's."""
    _check(model, method, target, options)
    micro = micro_batch_of(options) or 1
    strategy = strategy_of(options.strategy)
    devices = 1 if strategy.name == "single" else target.devices * target.nodes
    whole = options.global_batch or micro * devices
    if whole % (micro * devices):
        raise UserError(
            f"micro-batch {micro} × {devices} devices does not divide the global batch {whole}"
        )
    budget = SimpleNamespace(micro_batch=micro, global_batch=whole, max_length=options.seq_len)
    cell: Any = SimpleNamespace(
        model=model, method=method, target=target, strategy=strategy, budget=budget
    )
    try:
        return request_of_examples(cell, _examples(options))
    except ValidationError as error:
        raise UserError(explain_first(Request, error)) from None


def _examples(options: argparse.Namespace) -> examples.Examples:
    """All of --seq-len, or with --mean-len a distribution of which that is the longest."""
    if options.mean_len is None:
        return examples.assumed(options.seq_len)
    stated = TokenLengths(
        mean=options.mean_len, longest=options.seq_len, rows=examples.DRAWN, source="--mean-len"
    )
    return examples.drawn(stated, options.seq_len)


def with_micro_batch(
    request: Request, largest: int, options: argparse.Namespace, target: TargetSpec
) -> Request:
    """At most `largest`; with a global batch, the largest that divides a device's share of it."""
    if options.global_batch is None:
        return request.model_copy(update={"micro_batch": largest})
    devices = 1 if options.strategy == "single" else target.devices * target.nodes
    share = options.global_batch // devices
    micro = next(size for size in range(min(largest, share), 0, -1) if share % size == 0)
    accumulation = request.micro_batch * request.accumulation // micro
    return request.model_copy(update={"micro_batch": micro, "accumulation": accumulation})


def _check(
    model: ModelSpec, method: MethodSpec, target: TargetSpec, options: argparse.Namespace
) -> None:
    positions = model.config.get("max_position_embeddings")
    if options.seq_len < 2:
        raise UserError(f"--seq-len {options.seq_len}: at least 2 tokens")
    if options.mean_len is not None and not 0 < options.mean_len <= options.seq_len:
        raise UserError(f"--mean-len {options.mean_len:g}: above 0, at most --seq-len")
    if positions and options.seq_len > positions:
        raise UserError(f"--seq-len {options.seq_len}: {options.model} has {positions} positions")
    if not target.bf16 and "bf16" in _dtypes(method):
        raise UserError(
            f"method {method.name} computes in bf16, which {target.name} has no hardware for: "
            "add --base-dtype fp16"
        )


def can_compute(method: MethodSpec, target: TargetSpec) -> bool:
    return target.bf16 or "bf16" not in _dtypes(method)


def _dtypes(method: MethodSpec) -> set[str | None]:
    found: set[str | None] = {method.dtype, method.autocast}
    if method.quantization:
        found.add(method.quantization.compute_dtype)
    return found
