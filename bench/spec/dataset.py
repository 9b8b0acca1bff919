"""Datasets: rows, the prompt made of them, the answer that is trained on and scored."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from bench.spec.base import Positive, Slug, Spec


class Source(Spec):
    """One place rows come from.  Either a hub id or local files, never both."""

    hub: str | None = Field(None, description="Hub dataset id.")
    revision: str | None = None
    config: str | None = None
    split: str = "train"
    files: tuple[str, ...] = Field((), description="Local JSONL, CSV or Parquet paths.")
    group: str | None = Field(None, description="Group given to every row of this source.")

    @model_validator(mode="after")
    def _one_place(self) -> Source:
        if (self.hub is None) == (not self.files):
            raise ValueError("a source is either `hub: owner/name` or `files: [path, …]`")
        if self.hub and not self.revision:
            raise ValueError(f"pin `revision` of {self.hub}, so that the rows can't change")
        return self


class Split(Spec):
    """Cut validation and test out of `train` (deterministic), where no separate split exists."""

    validation: Annotated[float, Field(gt=0, lt=0.5)]
    test: Annotated[float, Field(gt=0, lt=0.5)]
    by: str | None = Field(None, description="Column whose values must not span splits.")
    seed: int = 0


class Field_(Spec):  # `Field` is pydantic's
    """One thing that the answer holds, and how it is scored.

    text: free text.  label: one of `labels`.  entities: pairs `type=value; type=value`.
    """

    name: Slug
    type: Literal["text", "label", "entities"]
    column: str = ""
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = Field(
        (), description="Names from bench/score, or evaluate:<id or local path>."
    )

    @model_validator(mode="after")
    def _labels_fit_type(self) -> Field_:
        if self.type == "label" and len(self.labels) < 2:
            raise ValueError(f"label field {self.name} needs its list of `labels`")
        if self.type != "label" and self.labels:
            raise ValueError(f"field {self.name} is of type {self.type}: it takes no `labels`")
        return self

    @property
    def source_column(self) -> str:
        return self.column or self.name


class Message(Spec):
    role: Literal["system", "user", "assistant"]
    content: str = Field(description="jinja2 template over the row's columns.")


class TokenLengths(Spec):
    """Tokens of the training examples, prompt and answer, for plans made where the rows aren't.

    Lengths are taken to be log-normal, with this mean, and `longest` as the longest of `rows`.
    """

    mean: Annotated[float, Field(gt=0)]
    longest: Positive
    prompt_longest: Positive | None = Field(None, description="Of the prompts alone.")
    rows: Positive = Field(description="Rows of the train split.")
    source: str = Field(description="Where the figures are from, with date.")

    @model_validator(mode="after")
    def _ordered(self) -> TokenLengths:
        if self.mean > self.longest:
            raise ValueError(f"mean {self.mean:g} is above longest {self.longest}")
        return self


class DatasetSpec(Spec):
    """Rows, the prompt made of them, and the answer that is trained on and scored."""

    notes: ClassVar[frozenset[str]] = frozenset(
        {"title", "licence", "homepage", "synthetic", "lengths"}
    )

    name: Slug
    title: str = ""
    licence: str
    homepage: str = ""
    synthetic: bool = False
    language: str = "en"
    train: tuple[Source, ...]
    validation: tuple[Source, ...] = ()
    test: tuple[Source, ...] = ()
    split: Split | None = None
    columns: dict[str, str] = Field({}, description="New name: source column.")
    group: str | None = Field(None, description="Column (or the source's group) to report apart.")
    messages: tuple[Message, ...] = Field(
        (), description="The prompt. With `messages_column`, leave it empty."
    )
    messages_column: str | None = Field(None, description="Column that holds chat messages.")
    reasoning: str | None = Field(None, description="Column with a reasoning trace to train on.")
    answer: tuple[Field_, ...]
    lengths: TokenLengths | None = Field(
        None, description="For plans; where rows and tokenizer are here, they are counted instead."
    )
    format: Literal["plain", "lines", "json"] = Field(
        "plain", description="plain: one bare value. lines: `name: value` each. json: one object."
    )

    @model_validator(mode="after")
    def _complete(self) -> DatasetSpec:
        if not self.answer:
            raise ValueError("`answer` lists at least one field")
        if self.format == "plain" and len(self.answer) > 1:
            raise ValueError("several answer fields need `format: lines` or `format: json`")
        if bool(self.messages) == (self.messages_column is not None):
            raise ValueError("give the prompt as `messages` or as `messages_column`, one of them")
        if bool(self.split) == bool(self.validation and self.test):
            raise ValueError("name `validation` and `test` sources, or a `split` of train")
        if not any(field.metrics for field in self.answer):
            raise ValueError("no answer field has `metrics`: nothing would be scored")
        return self

    @property
    def primary_metric(self) -> str:
        """`field.metric` that the report weighs against cost: the first one listed."""
        field = next(field for field in self.answer if field.metrics)
        return f"{field.name}.{field.metrics[0]}"
