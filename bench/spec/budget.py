"""What a suite says about its cells: budget, placement, targets of convergence, comparison."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from bench.spec.base import NonNegative, Positive, Slug, Spec
from bench.spec.dataset import DatasetSpec


class ConvergenceTarget(Spec):
    """When a run counts as converged: a validation loss or a score, as a number or relative to the
    best that another method reached on the same model, dataset and machine.

    {validation_loss: 1.2}                         that loss or less
    {relative_to: full, within: 0.01}              at most 1 % above full's best loss
    {score: intent.f1, at_least: 0.8}              that score or more
    {score: first, relative_to: full}              at most 1 % below full's best score

    A score needs `budget: {score_rows: …}`: validation rows answered at each evaluation.
    """

    validation_loss: Annotated[float, Field(gt=0)] | None = None
    score: str | None = Field(
        None, description="`field.metric` on validation rows; first: each dataset's first metric."
    )
    at_least: float | None = Field(None, description="That score, in the metric's own units.")
    relative_to: Slug | None = Field(None, description="Method whose best loss or score counts.")
    within: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.01, description="Share of it: best loss × (1 + within), best score × (1 − within)."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> ConvergenceTarget:
        if self.score is None:
            if (self.validation_loss is None) == (self.relative_to is None):
                raise ValueError("give `validation_loss` or `relative_to`, one of them")
            if self.at_least is not None:
                raise ValueError("`at_least` is for a score: name it, e.g. `score: first`")
        elif self.validation_loss is not None:
            raise ValueError("give `validation_loss` or `score`, one of them")
        elif (self.at_least is None) == (self.relative_to is None):
            raise ValueError("a score needs `at_least` or `relative_to`, one of them")
        return self

    def metric(self, dataset: DatasetSpec) -> str:
        """The score's name, `field.metric`, in a dataset.  Only where there is a score."""
        assert self.score is not None
        return dataset.primary_metric if self.score == "first" else self.score


class Comparison(Spec):
    """How the report compares methods: what with, and what counts as no difference.

    δ, the margin, is yours to choose before you look: the largest loss of quality that wouldn't
    change your decision.  Without one the report calls nothing "as good as" anything.
    """

    reference: Slug = Field("full", description="Method that all others are compared with.")
    margin: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="δ as a share of a metric's scale: 0.02 is 2 points of accuracy or BLEU."
    )
    margins: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="δ of single metrics, `field.metric`, in the metric's own units."
    )
    cluster: Literal["row", "group"] = Field(
        "row", description="group: rows of a group aren't independent, so whole groups are drawn."
    )

    def delta(self, metric: str) -> float | None:
        """δ of a metric, in its own units."""
        if metric in self.margins:
            return self.margins[metric]
        return None if self.margin is None else self.margin * scale(metric)


class Constraints(Spec):
    """What a choice must keep to: the report's advice rejects what doesn't, and says why.

    `bench report SUITE --max-usd 50` sets the same for one report.
    """

    max_usd: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Dollars of one run, all phases."
    )
    max_hours: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Wall hours of one run, all phases."
    )
    targets: tuple[Slug, ...] = Field((), description="Machines that you can have; empty: all.")
    min_score: float | None = Field(
        None, description="The least value of the dataset's first metric, in its own units."
    )
    max_loss_vs_full: Annotated[float, Field(ge=0)] | None = Field(
        None, description="How much worse than `comparison.reference`, in the metric's units."
    )
    monthly_tokens: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Tokens that will be served a month: serving then counts as cost."
    )
    max_latency_ms: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Time to first token when serving, 95th percentile."
    )


def scale(metric: str) -> float:
    """The highest value of a metric: 1, but 100 for BLEU."""
    return 100.0 if metric.rpartition(".")[2] == "bleu" else 1.0


class Budget(Spec):
    """How much each cell may train, evaluate and use."""

    later: ClassVar[frozenset[str]] = frozenset(
        {"hang_limit_s", "probe", "checkpoint_every", "score_rows"}
    )

    max_steps: Positive | None = None
    epochs: Annotated[float, Field(gt=0)] | None = None
    micro_batch: Positive = 1
    global_batch: Positive = 16
    max_length: Positive = 1024
    max_new_tokens: Positive = 256
    generate_batch: Positive = 16
    max_train_rows: Positive | None = None
    max_validation_rows: Positive | None = None
    max_test_rows: Positive | None = None
    evaluate_every: Positive = Field(50, description="Steps between validation losses.")
    checkpoint_every: Positive | None = Field(
        None,
        description="Steps between checkpoints that an interrupted training goes on from; null: "
        "it begins anew.",
    )
    score_rows: Positive | None = Field(
        None,
        description="Validation rows answered at each evaluation, off the clock: their scores show "
        "convergence too. Answers take far longer than a loss.",
    )
    timing_warmup_steps: NonNegative = Field(2, description="Recorded, not counted in tokens/s.")
    time_limit_s: Positive | None = Field(None, description="Per phase.")
    hang_limit_s: Positive = Field(
        1800, description="Several ranks: how long none may be heard of, e.g. while loading."
    )
    host_memory_limit_gib: Annotated[float, Field(gt=0)] | None = None
    keep_weights: bool = False
    probe: bool = Field(
        False, description="The longest rows alone, nothing saved: the runner's own short runs."
    )

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> Budget:
        if (self.max_steps is None) == (self.epochs is None):
            raise ValueError("give `max_steps` or `epochs`, one of them")
        if self.global_batch % self.micro_batch:
            raise ValueError(
                f"micro_batch {self.micro_batch} does not divide global_batch "
                f"{self.global_batch}: give one that does"
            )
        return self


class Strategy(Spec):
    """How work is placed.  `auto` picks the fastest strategy that is predicted to fit."""

    name: Literal["auto", "single", "ddp", "fsdp", "zero2", "zero3"] = "single"
    offload_params: bool = False
    offload_optimizer: bool = False
