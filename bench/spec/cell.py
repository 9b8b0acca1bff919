"""One point of the matrix."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from bench.spec.base import Slug, Spec
from bench.spec.budget import Budget, Comparison, Constraints, ConvergenceTarget, Strategy
from bench.spec.dataset import DatasetSpec
from bench.spec.method import MethodSpec
from bench.spec.model import ModelSpec
from bench.spec.serving import Serving
from bench.spec.target import TargetSpec


class Cell(Spec):
    """One point of the matrix, fully resolved: no default is left implicit."""

    # Serving measures what was trained and doesn't change it: added later, it repeats no training.
    # The serve phase's record keeps the settings that it ran with.
    notes: ClassVar[frozenset[str]] = frozenset(
        {"suite", "suite_version", "converged", "comparison", "constraints", "serve"}
    )

    schema_version: Literal[1] = 1
    suite: Slug
    suite_version: int
    model: ModelSpec
    method: MethodSpec
    dataset: DatasetSpec
    target: TargetSpec
    strategy: Strategy
    budget: Budget
    seed: int
    converged: ConvergenceTarget | None = None
    comparison: Comparison = Comparison()
    constraints: Constraints = Constraints()
    serve: Serving | None = None

    def identity(self) -> dict[str, Any]:
        """What decides a run.  Of an endpoint's cell only what the endpoint is asked: another
        micro-batch or dtype in the suite doesn't pay for the same answers again."""
        found = super().identity()
        if self.model.endpoint is None:
            return found
        shots = self.method.shots
        reads_train = shots or not self.method.needs_model
        rows = ("max_test_rows", "max_train_rows") if reads_train else ("max_test_rows",)
        return {name: found[name] for name in ("schema_version", "model", "dataset", "seed")} | {
            "method": {"name": self.method.name, "kind": self.method.kind, "shots": shots},
            "target": {"name": self.target.name},
            "budget": {name: found["budget"][name] for name in ("max_new_tokens", *rows)},
        }

    @property
    def id(self) -> str:
        """Readable slug plus 8 hex digits of the canonical JSON: the same cell, the same id."""
        canonical = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:8]
        parts = (self.model, self.method, self.dataset, self.target)
        return "_".join([*(part.name for part in parts), f"s{self.seed}", digest])

    @property
    def accumulation(self) -> int:
        """Micro-batches per step on each device."""
        return self.budget.global_batch // (self.budget.micro_batch * self.data_parallel)

    @property
    def data_parallel(self) -> int:
        if self.strategy.name in ("auto", "single"):
            return 1
        return self.target.devices * self.target.nodes

    @model_validator(mode="after")
    def _possible(self) -> Cell:
        method, target = self.method, self.target
        if (self.model.endpoint is None) != (target.device != "none"):
            raise ValueError(f"{self.model.name} can't run on target {target.name}")
        dtypes = {method.dtype, method.autocast}
        if method.quantization:
            dtypes.add(method.quantization.compute_dtype)
        if "bf16" in dtypes and not target.bf16:
            raise ValueError(
                f"method {method.name} computes in bf16, which {target.name} has no hardware for: "
                "use dtype and compute_dtype fp16 or fp32"
            )
        if target.device == "cpu" and method.attention == "flash_attention_2":
            raise ValueError("flash_attention_2 needs a CUDA device: use attention: sdpa on a CPU")
        if target.device == "cpu" and (method.optimizer or "").startswith("paged"):
            raise ValueError(
                "paged optimizers page between GPU and host memory; on a CPU bitsandbytes falls "
                "back to non-paged with only a warning: use adamw_8bit"
            )
        positions = self.model.config.get("max_position_embeddings")
        if positions and self.budget.max_length > positions:
            raise ValueError(
                f"max_length {self.budget.max_length} exceeds the {positions} positions of "
                f"{self.model.name}"
            )
        if self.budget.global_batch % (self.budget.micro_batch * self.data_parallel):
            raise ValueError(
                f"micro_batch {self.budget.micro_batch} × {self.data_parallel} devices does not "
                f"divide global_batch {self.budget.global_batch}"
            )
        return self
