"""A cell of a suite → the request that its training step is."""

from __future__ import annotations

import math
from typing import Any

from bench.fit import examples
from bench.fit.examples import Examples
from bench.fit.predict import Job
from bench.fit.request import Adapter, Decoding, Quantization, Request, Sharding
from bench.plan import DataLengths
from bench.spec import Cell, MethodSpec, Strategy, TargetSpec


def request_of_cell(cell: Cell) -> Request:
    """The step of a cell, on examples as long as its own."""
    return request_for(cell, examples.of_cell(cell))


def request_for(cell: Any, found: Examples) -> Request:
    """The worker trains with TRL's SFTTrainer: fused head, outputs and gradients freed early.

    Packed rows are all max_length long.  `cell` is one, or has what is read of it here.
    """
    method, budget, target = cell.method, cell.budget, cell.target
    micro = budget.micro_batch
    packed = method.packing
    sharding = sharding_of(cell.strategy, method, target)
    ranks = 1 if sharding.kind == "single" else sharding.devices
    fields: dict[str, Any] = {
        "config": cell.model.config,
        "method": method.kind if method.kind in ("base", "full", "lora", "qlora") else "full",
        "dtype": method.dtype,
        "autocast": method.autocast,
        "attention": method.attention,
        "adapter": _adapter(method),
        "quantization": _quantization(method),
        "optimizer": method.optimizer or "adamw",
        "loss": "trl",
        "keeps_outputs": False,
        "frees_gradients_at_once": True,
        "max_grad_norm": method.max_grad_norm,
        "checkpointing": "full" if method.gradient_checkpointing else "none",
        "accumulation": max(1, budget.global_batch // (micro * ranks)),
        "micro_batch": micro,
        "seq_len": budget.max_length if packed else found.longest,
        "lengths": () if packed else examples.batches(found.lengths, micro),
        "example_tokens": 0 if packed or len(found.lengths) == 1 else round(found.mean, 1),
        "padded": not packed,
        "sharding": sharding,
        "evaluates": True,
    }
    return Request(**fields)


def job_of_cell(cell: Cell) -> Job:
    """Updates where they are known, and what the generate phase does at once."""
    budget = cell.budget
    found = examples.of_cell(cell)
    positions = cell.model.config.get("max_position_embeddings") or budget.max_length
    return Job(
        steps=budget.max_steps or _steps_of_rows(cell, found) if cell.method.trains else None,
        decoding=Decoding(
            batch=budget.generate_batch,
            prompt=min(found.prompt, max(1, positions - budget.max_new_tokens)),
            new=budget.max_new_tokens,
        ),
        answers=budget.max_test_rows,
        data=DataLengths(
            source=found.source, mean=found.mean, longest=found.longest, rows=found.rows
        ),
    )


def _steps_of_rows(cell: Cell, found: Examples) -> int | None:
    budget = cell.budget
    rows = min((n for n in (budget.max_train_rows, found.rows) if n is not None), default=None)
    if budget.epochs is None or rows is None:
        return None
    return max(1, math.ceil(budget.epochs * rows / budget.global_batch))


def sharding_of(strategy: Strategy, method: MethodSpec, target: TargetSpec) -> Sharding:
    """`auto` is resolved by the caller; here it means one device."""
    kind: Any = "single" if strategy.name == "auto" else strategy.name
    zero = kind.startswith("zero")
    return Sharding(
        kind=kind,
        devices=1 if kind == "single" else target.devices * target.nodes,
        devices_per_node=target.devices,
        offload_params=strategy.offload_params,
        offload_optimizer=strategy.offload_optimizer,
        fp32_master=zero,
    )


def _adapter(method: MethodSpec) -> Adapter | None:
    found = method.adapter
    if found is None:
        return None
    return Adapter(
        rank=found.rank,
        alpha=found.alpha,
        dropout=found.dropout,
        target_modules=found.target_modules,
        exclude_modules=found.exclude_modules,
        target_parameters=found.target_parameters,
        dtype=found.dtype,
        dora=found.dora,
        rslora=found.rslora,
        worker_targets=True,
    )


def _quantization(method: MethodSpec) -> Quantization | None:
    found = method.quantization
    if found is None:
        return None
    return Quantization(
        bits=found.bits,
        quant_type=found.quant_type,
        double_quant=found.double_quant,
        compute_dtype=found.compute_dtype,
        experts=found.bits == 4,
    )
