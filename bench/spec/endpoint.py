"""Models behind an OpenAI-compatible API: where to ask, how, and what a token costs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, BeforeValidator, Field, field_validator, model_validator

from bench.spec.base import NonNegative, Positive, Spec

Usd = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
RESERVED = frozenset({"model", "messages", "stream", "n", "max_tokens", "max_completion_tokens"})


class TokenPrice(Spec):
    """Dollars per million tokens as found, never as wished: source and date belong to it."""

    usd_per_million_input: Usd
    usd_per_million_output: Usd
    usd_per_million_cached_input: Usd | None = Field(
        None, description="Input that the server says it had cached; null: like other input."
    )
    provider: str = Field(validation_alias=AliasChoices("provider", "name"))  # serve.api's old word
    date: Annotated[str, BeforeValidator(str)]  # YAML reads 2026-09-20 as a date
    source: str


class EndpointSpec(Spec):
    """A chat endpoint.  The key stays in the environment; a file only holds its variable's name.

    `notes` here: what it costs and how patiently it is asked, but not what is answered.
    """

    notes: ClassVar[frozenset[str]] = frozenset(
        {
            "key_env", "price", "timeout_s", "max_retries", "requests_per_minute",
            "tokens_per_minute", "concurrency", "max_usd",
        }
    )  # fmt: skip

    provider: Literal["openai"] = Field("openai", description="The protocol, whoever speaks it.")
    base_url: str = "https://api.openai.com/v1"
    model: Annotated[str, Field(min_length=1)] = Field(description="The name that is asked for.")
    key_env: str | None = Field(
        "OPENAI_API_KEY", description="Environment variable that holds the key; null: no key."
    )
    price: TokenPrice | None = Field(None, description="null: its cost stays unknown.")
    max_usd: PositiveFloat | None = Field(
        None, description="A cell stops before the request that could exceed it."
    )
    timeout_s: PositiveFloat = Field(120.0, description="Of one try.")
    max_retries: NonNegative = Field(
        6, description="Of one request: rate limits, server errors, timeouts, lost connections."
    )
    requests_per_minute: PositiveFloat | None = None
    tokens_per_minute: PositiveFloat | None = None
    concurrency: Positive = Field(4, description="Requests at the same time.")
    limit_name: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="How the server calls the limit of new tokens."
    )
    temperature: Annotated[float, Field(ge=0)] | None = Field(
        0.0, description="null: not sent; some reasoning models refuse it."
    )
    send_seed: bool = Field(True, description="false: for servers that refuse a seed.")
    extra_body: dict[str, Any] = Field({}, description="More fields of each request.")

    @field_validator("base_url")
    @classmethod
    def _plain_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected http://… or https://…, up to and with /v1")
        if parts.username or parts.password or parts.query:
            raise ValueError("an address only: the key belongs in the variable that key_env names")
        return url.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _name_not_key(cls, name: str | None) -> str | None:
        # The value isn't repeated: who gets this wrong has put the key itself there
        if name is not None and not (name.isidentifier() and name.upper() == name):
            raise ValueError(
                "expected the NAME of an environment variable, in capitals, never the key itself"
            )
        return name

    @field_validator("extra_body")
    @classmethod
    def _not_ours(cls, body: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(RESERVED & body.keys())
        if taken:
            raise ValueError(f"{taken[0]} is set from the suite, not here")
        return body

    @model_validator(mode="after")
    def _limit_needs_price(self) -> EndpointSpec:
        if self.max_usd is not None and self.price is None:
            raise ValueError("max_usd needs a `price`: without one nothing can be counted")
        return self
