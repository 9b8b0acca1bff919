"""Claims: figures that somebody published, and how they can be tested here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from bench.spec.base import Positive, Slug, Spec

What = Literal[
    "device_gib",
    "weights_gb",
    "fits",
    "hours",
    "tokens_per_s",
    "usd",
    "score",
    "same_score",
    "lowest_group_gain",
    "highest_group_gain",
    "serving_usd_per_million_tokens",
]


class Publication(Spec):
    """Where the figures were read."""

    title: str
    url: str | None = None
    date: str | None = None
    note: str = ""


class Measure(Spec):
    """What to look at.

    A value of one method; with `against`, its ratio (or difference) to another method's of the same
    model, data and machine.
    """

    what: What = Field(
        description="device_gib: peak of the fullest device; weights_gb: one copy as held, 10^9 "
        "bytes; hours: of `rows` examples; same_score: is a difference shown at all."
    )
    method: Slug = Field(description="Kind: base, full, lora, qlora.")
    against: Slug | None = None
    combine: Literal["ratio", "difference"] = "ratio"
    metric: str | None = Field(None, description="E.g. rouge_l; null: the dataset's first.")
    strategy: str | None = Field(None, description="E.g. zero3+offload; null: whatever was taken.")
    unsharded: bool = Field(False, description="Only where each device holds the whole model.")
    rows: Positive | None = Field(None, description="Examples that `hours` is about.")


class Expected(Spec):
    """The published figure as bounds; both are inclusive."""

    low: float | None = None
    high: float | None = None
    holds: bool | None = Field(None, description="For `fits` and `same_score`.")

    @model_validator(mode="after")
    def _says_something(self) -> Expected:
        if self.low is None and self.high is None and self.holds is None:
            raise ValueError("give `low`, `high` or `holds`")
        return self


class Claim(Spec):
    """One published figure."""

    id: Slug
    text: str = Field(description="The claim, in one sentence.")
    models: tuple[Slug, ...] = Field((), description="Models it is about; empty: any.")
    targets: tuple[Slug, ...] = Field((), description="Machines it is about; empty: any.")
    measure: Measure
    expect: Expected
    untestable: str = Field(
        "", description="Why no verdict is possible even with a figure, e.g. private data."
    )


class ClaimFile(Spec):
    """suites/claims/*.yaml."""

    name: Slug
    source: Publication
    claims: Annotated[tuple[Claim, ...], Field(min_length=1)]
