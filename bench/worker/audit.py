"""Proof of what ran, counted on the model itself.  Settings asked for prove nothing.

Before the first step: what was loaded and adapted.  In the first step: recomputation, gradients,
the attention kernel, the batches.  After the last: what moved, the optimizer, the settings.
"""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

import torch

from bench.record import Audit
from bench.spec import AdapterSpec, Cell
from bench.worker import methods, ranks, shards, strategies
from bench.worker.proof import (
    adapters,
    batches,
    determinism,
    settings,
    states,
    steps,
    weights,
)

LIBRARIES = (
    "torch transformers peft trl bitsandbytes accelerate datasets deepspeed safetensors flash_attn"
)
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class Auditor:
    """Looks at a model before the first step, in it, and after the last one."""

    def __init__(self, cell: Cell, model: Any) -> None:
        self.cell = cell
        self.model = model
        self.layers = weights.decoder_layers(model)
        self.recomputation = steps.Recomputation(self.layers)
        self.kernel = steps.AttentionKernel(self.layers)
        self.gradients = steps.Gradients(model, cell.strategy.name.startswith("zero"))
        self.batches = batches.Batches()
        self.chance = determinism.Nondeterminism(watch=cell.budget.timing_warmup_steps > 0)
        self.supervised_tokens: int | None = None
        self.recomputed: int | None = None
        self._first_step = False
        self.weights_are_placed()

    def weights_are_placed(self) -> None:
        """From here on a tensor that changes has been trained, not moved to other ranks."""
        self._sums = weights.checksums(self.model)

    # ------------------------------------------------------------ the first step

    def first_step_begins(self) -> None:
        """Start counting: validation before this point doesn't count."""
        self._first_step = True
        self.recomputation.begin()
        self.kernel.begin()
        self.gradients.begin()
        self.chance.begin()

    def saw(self, inputs: dict[str, Any]) -> None:
        """A training micro-batch; after the first step they aren't looked at any more."""
        if self._first_step:
            self.batches.add(inputs)

    def before_update(self) -> None:
        """Between the first step's last backward and its update."""
        if self._first_step:
            self.gradients.look()

    def first_step_ends(self, micro_batches: int) -> None:
        self._first_step = False
        self.chance.end()
        self.recomputed = self.recomputation.end(micro_batches)

    # ------------------------------------------------------------ reports

    def before(self) -> Audit:
        """What can be said before any step: a cell that is wrong already need not train.

        All ranks call it and get the same problems.
        """
        audit = loaded(self.cell, self.model)
        audit.stage = "before"
        audit.trainable_tensors = sum(p.requires_grad for p in self.model.parameters())
        audit.problems = _of_any_rank(audit.problems)
        return audit

    def report(self, trainer: Any) -> Audit:
        """Everything counted, and what it contradicts.

        All ranks call it and get the same problems.  `trainer` has args, model, model_wrapped,
        optimizer and settings(); None where there was none.
        """
        audit = loaded(self.cell, self.model)
        audit.stage = "after"
        self._add_movement(audit)
        audit.attention_ops = self.kernel.ops
        audit.recomputed_layers = self.recomputed
        audit.finite_gradients = self.gradients.finite
        audit.batches = self.batches.facts()
        audit.nondeterministic_ops = self.chance.ops
        if trainer is not None:
            self._add_trainer(audit, trainer)
        audit.problems = _of_any_rank(audit.problems + self._contradictions(audit))
        audit.warnings += self._oddities(audit)
        return audit

    def _add_movement(self, audit: Audit) -> None:
        moved = weights.moved(self._sums, weights.checksums(self.model))
        trainable = {name for name, p in self.model.named_parameters() if p.requires_grad}
        audit.trainable_tensors = len(trainable)
        audit.moved_params = len(moved & trainable)
        audit.frozen_moved = len(moved - trainable)
        still = sorted(trainable - moved)
        if still:
            audit.warnings.append(f"{len(still)} trainable tensors never moved, e.g. {still[0]}")

    def _add_trainer(self, audit: Audit, trainer: Any) -> None:
        wrapped = trainer.model_wrapped
        audit.wrapper = type(wrapped).__name__
        audit.problems += strategies.module(self.cell).problems(self.model, wrapped)
        audit.optimizer = type(states.unwrapped(trainer.optimizer)).__name__
        audit.optimizer_state_bytes = states.by_dtype(trainer.optimizer)
        audit.optimizer_state_devices = states.by_device(trainer.optimizer)
        audit.settings = trainer.settings()
        audit.differences = settings.differences(self.cell, trainer)

    def _contradictions(self, audit: Audit) -> list[str]:
        method = self.cell.method
        found = [str(one) for one in audit.differences if one.decides == "cell"]
        if not audit.moved_params:
            found.append("no trainable weight moved")
        if audit.frozen_moved:
            found.append(f"{audit.frozen_moved} frozen tensors changed")
        if method.gradient_checkpointing and not self.recomputed:
            found.append("gradient checkpointing was asked for, but no layer was recomputed")
        if not method.gradient_checkpointing and self.recomputed:
            found.append("layers were recomputed although gradient checkpointing is off")
        if method.attention == "flash_attention_2" and not audit.attention_ops:
            found.append("attention called no flash kernel")
        return found + self._unlearnt() + self._packed_otherwise(audit)

    def _unlearnt(self) -> list[str]:
        missing, broken = self.gradients.missing, self.gradients.broken
        found = []
        if missing:
            found.append(f"{len(missing)} trainable tensors got no gradient, e.g. {missing[0]}")
        if broken and self.cell.method.autocast != "fp16":  # there a first scale may overflow
            found.append(f"{len(broken)} gradients were not finite, e.g. {broken[0]}")
        if self.supervised_tokens == 0:
            found.append("every label was masked: nothing was learnt")
        return found

    def _packed_otherwise(self, audit: Audit) -> list[str]:
        asked, seen = self.cell.method.packing, audit.batches
        if asked and seen["rows"] and not seen["packed_rows"]:
            return ["packing was asked for, but no row held two examples"]
        if not asked and seen["packed_rows"]:
            return ["rows held several examples although packing is off"]
        return []

    def _oddities(self, audit: Audit) -> list[str]:
        seen = audit.batches
        found = [str(one) for one in audit.differences if one.decides == "cost"]
        if audit.attention == "sdpa" and audit.attention_ops == []:
            found.append("attention ran as plain matrix products, without a fused kernel")
        if seen["left_padding"]:
            found.append(f"{seen['left_padding']} padding tokens stood left of training texts")
        if seen["unsupervised_rows"]:
            found.append(
                f"{seen['unsupervised_rows']} of {seen['rows']} rows of the first step had no label"
            )
        placed = audit.optimizer_state_devices
        elsewhere = [where for where in placed if where != self.cell.target.device.split(":")[0]]
        if elsewhere and not self.cell.strategy.offload_optimizer:
            found.append(f"optimizer state lives on {', '.join(elsewhere)}")
        return found


def loaded(cell: Cell, model: Any, dtype: str | None = None) -> Audit:
    """What can be counted on a loaded model alone, trained or not.

    `dtype` is what its unquantised weights should be in; the method's without it.
    """
    method = cell.method
    dtype = dtype or method.dtype
    audit = Audit(
        **weights.facts(model),
        bytes_by_rank=ranks.gathered(shards.held_bytes(model)),
        sharded_tensors=sum(map(shards.is_sharded, model.parameters())),
        adapted_modules=adapters.adapted_modules(model),
        router_adapted=adapters.router_adapted(model),
        attention=getattr(model.config, "_attn_implementation", None),
        decoder_layers=len(weights.decoder_layers(model)),
        load=getattr(model, "load_facts", None),
        load_by_rank=_load_by_rank(model),
        libraries=libraries(),
    )
    audit.problems = methods.module(method.kind).problems(model, method)
    wrong = weights.wrong_dtypes(model, getattr(torch, DTYPES[dtype]))
    if wrong:
        audit.problems.append(f"{len(wrong)} tensors are not {dtype}, e.g. {wrong[0]}")
    if audit.attention != method.attention:
        audit.problems.append(f"attention is {audit.attention}, not {method.attention}")
    if method.adapter:
        _check_adapters(audit, model, method.adapter)
    if method.quantization:
        audit.warnings += [
            f"{part} weights are held in {held}, not in {method.quantization.bits} bit"
            for part, held in weights.unquantized_parts(model).items()
        ]
    wasteful = [one for one in (audit.load, *audit.load_by_rank) if one and not _saved(one)]
    if wasteful:
        peak, held = wasteful[0].host_peak_bytes or 0, wasteful[0].held_bytes
        audit.warnings.append(
            f"loading was not memory-saving: {peak / 2**30:.2f} GiB of host memory for "
            f"{held / 2**30:.2f} GiB of weights"
        )
    return audit


def _load_by_rank(model: Any) -> list[Any]:
    facts = getattr(model, "load_facts", None)
    return ranks.gathered(facts) if facts and ranks.world() > 1 else []


def _saved(facts: Any) -> bool:
    return facts.memory_saving is not False


def _check_adapters(audit: Audit, model: Any, adapter: AdapterSpec) -> None:
    dead, missed = adapters.dead_targets(model, adapter), adapters.missed(model, adapter)
    if dead:
        audit.problems.append(f"no module carries an adapter for {', '.join(dead)}")
    if audit.router_adapted and set(adapters.ROUTERS) & set(adapter.exclude_modules):
        audit.problems.append("the router is adapted, although it is excluded")
    if missed:
        audit.warnings.append(
            f"{len(missed)} kinds of linear layer carry no adapter, e.g. {missed[0]}"
        )


def _of_any_rank(problems: list[str]) -> list[str]:
    """Ranks that disagree on whether to go on would wait for each other."""
    return list(dict.fromkeys(one for found in ranks.gathered(problems) for one in found))


def libraries() -> dict[str, str]:
    """Versions of the libraries that this process has imported."""
    found = {}
    for name in LIBRARIES.split():
        if name in sys.modules:
            found[name] = importlib.metadata.version(name)
    return found
