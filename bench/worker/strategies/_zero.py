"""DeepSpeed's ZeRO: what stages 2 and 3 share."""

from __future__ import annotations

import importlib.util
from typing import Any

from bench.spec import Cell
from bench.worker.strategies._common import gloo, too_few, trained_dtype


def supports(cell: Cell) -> str | None:
    method, name = cell.method, cell.strategy.name
    if importlib.util.find_spec("deepspeed") is None:
        return f"{name} needs DeepSpeed: install with DS_BUILD_OPS=0 pip install -e '.[zero]'"
    if method.autocast == "fp16":
        return f"{name} in fp16 needs a loss scaler that is not tested here: use bf16 or fp32"
    if trained_dtype(cell) != "fp32":
        return (
            f"{name} always updates fp32 copies, so {trained_dtype(cell)} weights would not be "
            "trained as the method says: use fp32 with autocast"
        )
    if cell.strategy.offload_optimizer and str(method.optimizer).startswith("paged"):
        return f"{name} with offload steps on the host; paged optimizers page from a GPU: use adamw"
    return too_few(cell)


def join(cell: Cell) -> None:
    """DeepSpeed counts ranks by itself; unasked it sees one, and makes a model that isn't split.

    On a CPU it would compile collectives over shared memory first, under a lock file that a killed
    run leaves behind: the next one then waits for ever.  gloo's own need no compiler.
    """
    import deepspeed

    if cell.target.device == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo" if cell.target.device == "cpu" else "nccl")


def configuration(cell: Cell, stage: int) -> dict[str, Any]:
    """DeepSpeed's configuration, with nothing left to `auto` or to a default that counts.

    Mixed precision is DeepSpeed's torch_autocast: its own bf16 mode would cast the adapters and
    what else is fp32, and train something else than `single` does.
    """
    strategy, budget, method = cell.strategy, cell.budget, cell.method
    zero: dict[str, Any] = {
        "stage": stage,
        "contiguous_gradients": True,
        "overlap_comm": cell.target.device == "cuda",
        "reduce_bucket_size": 50_000_000,
    }
    if strategy.offload_optimizer:
        zero["offload_optimizer"] = _host(cell)
    if stage == 3:
        # Small parameters would stay whole on each rank, and gathering those that were updated
        # fails where their dtypes differ (fp32 adapters and a bf16 base).
        zero["stage3_param_persistence_threshold"] = 0
        if strategy.offload_params:
            zero["offload_param"] = _host(cell)
    settings: dict[str, Any] = {
        "train_batch_size": budget.global_batch,
        "train_micro_batch_size_per_gpu": budget.micro_batch,
        "gradient_accumulation_steps": cell.accumulation,
        "gradient_clipping": method.max_grad_norm or 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        # torch's own AdamW steps on the host: DeepSpeed's would need a compiler at run time
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": False},
        "fp16": {"enabled": False},
    }
    if method.autocast:
        settings["torch_autocast"] = {
            "enabled": True,
            "dtype": "bfloat16",
            "lower_precision_safe_modules": [],  # gradients are reduced in fp32, as elsewhere
        }
    return settings


def _host(cell: Cell) -> dict[str, Any]:
    return {"device": "cpu", "pin_memory": cell.target.device == "cuda"}


def arguments(cell: Cell, stage: int) -> dict[str, Any]:
    return {**gloo(cell), "deepspeed": configuration(cell, stage), "bf16": False}


def problems(wrapped: Any, stage: int) -> list[str]:
    held = getattr(wrapped, "zero_optimization_stage", None)
    if held is None:
        return [f"not zero{stage}: the trainer ran a {type(wrapped).__name__}"]
    return [] if held() == stage else [f"not zero{stage}: DeepSpeed ran stage {held()}"]
