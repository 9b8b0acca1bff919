"""How a suite's models are served, and what serving them is priced against."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from bench.spec.base import NonNegative, Positive, Spec
from bench.spec.endpoint import TokenPrice


class Serving(Spec):
    """The serve phase.  What is only priced (`notes`) changes nothing that was measured."""

    notes: ClassVar[frozenset[str]] = frozenset(
        {"utilization", "storage_usd_per_gb_month", "api", "start_limit_s", "request_limit_s"}
    )

    engine: Literal["auto", "transformers", "vllm"] = Field(
        "auto", description="auto: vLLM where it is installed, else transformers' own server."
    )
    merged: Annotated[tuple[bool, ...], Field(min_length=1)] = Field(
        (False,), description="Adapters beside the base (false), merged into it (true), or both."
    )
    concurrencies: Annotated[tuple[Positive, ...], Field(min_length=1)] = Field(
        (1, 4), description="Requests that are under way at once; each is a measurement."
    )
    requests: Positive = Field(16, description="Of each concurrency, after warm-up.")
    warmup_requests: NonNegative = Field(2, description="Sent before, and not counted.")
    max_new_tokens: Positive | None = Field(None, description="null: the budget's.")
    continuous_batching: bool | None = Field(
        None, description="transformers' server: batch what runs at once. null: on GPUs."
    )
    start_limit_s: Positive = Field(1800, description="Until the server must be healthy.")
    request_limit_s: Positive = Field(600, description="Until a request counts as an error.")
    utilization: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="Share of the measured throughput that is used on average."
    )
    storage_usd_per_gb_month: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Of 10^9 bytes; null: storage is not priced."
    )
    api: TokenPrice | None = Field(None, description="What serving is compared with.")

    @model_validator(mode="after")
    def _each_once(self) -> Serving:
        for name in ("merged", "concurrencies"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} lists a value twice")
        return self
