"""What was asked for against what is in effect: a table of differences.

A difference that makes the cell another cell is a problem; one that only costs memory or speed is
a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.record import Difference
from bench.spec import Cell
from bench.worker.proof import states

# Method's or budget's name → the trainer argument that has to say the same.
SAME = {
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "lr_warmup_steps": "warmup_steps",
    "packing": "packing",
    "micro_batch": "per_device_train_batch_size",
    "max_length": "max_length",
}
ADAPTER = {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout", "rslora": "use_rslora"}


def differences(cell: Cell, trainer: Any) -> list[Difference]:
    """Settings of the cell that the trainer, the adapter or the quantiser has otherwise."""
    rows = [*_trainer(cell, trainer), *_adapter(cell, trainer.model)]
    rows += _quantization(cell, trainer.model)
    return [row for row in rows if row.asked != row.in_effect]


def _row(name: str, asked: Any, effect: Any, decides: Any = "cell") -> Difference:
    return Difference(setting=name, asked=_plain(asked), in_effect=_plain(effect), decides=decides)


def _plain(value: Any) -> Any:
    return value if value is None or type(value) in (bool, int, float, str) else str(value)


def _trainer(cell: Cell, trainer: Any) -> Iterator[Difference]:
    method, budget, arguments = cell.method, cell.budget, trainer.args
    for name, argument in SAME.items():
        asked = getattr(method, name) if hasattr(method, name) else getattr(budget, name)
        yield _row(name, asked, getattr(arguments, argument, None))
    yield _row("accumulation", cell.accumulation, arguments.gradient_accumulation_steps)
    yield _row("max_grad_norm", method.max_grad_norm or 0.0, arguments.max_grad_norm)
    yield _row("seed", cell.seed, arguments.seed)
    yield _row("autocast", method.autocast, _autocast(trainer))
    if trainer.optimizer is not None:
        group = states.unwrapped(trainer.optimizer).param_groups[0]
        rate = group.get("initial_lr", group["lr"])
        yield _row("learning rate of the optimizer", method.learning_rate, rate)
        if method.optimizer == "adamw_fused":
            yield _row("fused optimizer", True, bool(group.get("fused")), "cost")


def _autocast(trainer: Any) -> str | None:
    arguments, engine = trainer.args, trainer.model_wrapped
    if hasattr(engine, "torch_autocast_enabled"):  # DeepSpeed's: the trainer's is off then
        on = engine.torch_autocast_enabled()
        return _short(engine.torch_autocast_dtype()).lower() if on else None
    if arguments.bf16:
        return "bf16"
    return "fp16" if arguments.fp16 else None


def _adapter(cell: Cell, model: Any) -> Iterator[Difference]:
    adapter = cell.method.adapter
    if adapter is None:
        return
    config = model.peft_config["default"]
    for name, theirs in ADAPTER.items():
        yield _row(f"adapter {name}", getattr(adapter, name), getattr(config, theirs))


def _quantization(cell: Cell, model: Any) -> Iterator[Difference]:
    asked = cell.method.quantization
    config = getattr(model.config, "quantization_config", None)
    if asked is None:
        yield _row("quantization", None, config if config is None else type(config).__name__)
        return
    yield _row("quantization bits", asked.bits, _bits(config))
    if asked.bits == 4 and config is not None:
        yield _row("quant_type", asked.quant_type, config.bnb_4bit_quant_type)
        yield _row("double_quant", asked.double_quant, config.bnb_4bit_use_double_quant)
        compute = _short(config.bnb_4bit_compute_dtype)
        yield _row("compute_dtype", asked.compute_dtype, compute)
        storage = _short(config.bnb_4bit_quant_storage)
        yield _row("storage_dtype", asked.storage_dtype, storage, "cost")


def _bits(config: Any) -> int | None:
    if getattr(config, "load_in_4bit", False):
        return 4
    return 8 if getattr(config, "load_in_8bit", False) else None


def _short(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(name, name)
