"""A suite as it is written, and as it is resolved."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bench.spec.base import Positive, Slug, Spec
from bench.spec.budget import Budget, Comparison, Constraints, ConvergenceTarget, Strategy
from bench.spec.cell import Cell
from bench.spec.serving import Serving


class Reference(BaseModel):
    """An entry of a suite's list: `use` names a file, other keys replace fields of it."""

    model_config = ConfigDict(extra="allow")
    use: Slug


class When(Spec):
    model: tuple[Slug, ...] = ()
    method: tuple[Slug, ...] = ()
    dataset: tuple[Slug, ...] = ()
    target: tuple[Slug, ...] = ()


class Rule(Spec):
    """An exception to the matrix; later rules win."""

    when: When
    seeds: tuple[int, ...] | None = None
    budget: dict[str, Any] = Field({}, description="Replaces fields of the suite's budget.")
    method: dict[str, Any] = Field({}, description="Replaces fields of the methods it applies to.")
    micro_batches: tuple[Positive, ...] = Field((), description="Replaces the suite's.")
    strategy: Strategy | None = None
    serve: bool = Field(True, description="false: not served, whatever the suite says.")
    exclude: bool = False
    reason: str = ""

    @model_validator(mode="after")
    def _says_why(self) -> Rule:
        if self.exclude and not self.reason:
            raise ValueError("an excluded part of the matrix needs its `reason`")
        return self


class SuiteFile(BaseModel):
    """A suite as written: names and overrides.  `bench/suite.py` resolves it to a Suite."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Slug
    version: Positive = 1
    title: str = ""
    models: tuple[Slug | Reference, ...] = Field(min_length=1)
    methods: tuple[Slug | Reference, ...] = Field(min_length=1)
    datasets: tuple[Slug | Reference, ...] = Field(min_length=1)
    targets: tuple[Slug | Reference, ...] = Field(
        (), description="Machines; only models behind an `endpoint` need none."
    )
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    micro_batches: tuple[Positive, ...] = Field(
        (), description="Each trained cell once with each: which is the fastest that fits?"
    )
    strategy: Strategy = Strategy()
    budget: Budget
    converged: ConvergenceTarget | None = None
    comparison: Comparison = Comparison()
    constraints: Constraints = Constraints()
    serve: Serving | None = Field(None, description="Measure serving too; null: no serve phase.")
    rules: tuple[Rule, ...] = ()


class Suite(BaseModel):
    """A resolved matrix."""

    model_config = ConfigDict(frozen=True)

    name: str
    version: int
    title: str
    path: str
    cells: tuple[Cell, ...]
    excluded: tuple[tuple[str, str], ...] = Field((), description="(what, reason)")
