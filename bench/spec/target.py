"""Targets: machines, and what they cost."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from bench.spec.base import Positive, Slug, Spec


class Price(Spec):
    """Dollars per device-hour as found, never as wished: source and date belong to it."""

    usd_per_device_hour: Annotated[float, Field(ge=0)]
    low_usd: Annotated[float, Field(ge=0)]
    high_usd: Annotated[float, Field(ge=0)]
    provider: str
    date: Annotated[str, BeforeValidator(str)]  # YAML reads 2026-09-20 as a date
    source: str

    @model_validator(mode="after")
    def _ordered(self) -> Price:
        if not self.low_usd <= self.usd_per_device_hour <= self.high_usd:
            raise ValueError("price must lie within low_usd … high_usd")
        return self


class TargetSpec(Spec):
    """A machine: `devices` accelerators on each of `nodes`.

    A CPU machine counts as one device; with more, that many processes share its cores.
    """

    notes: ClassVar[frozenset[str]] = frozenset({"title", "price", "spec_source", "spec_note"})

    name: Slug
    title: str = ""
    device: Literal["cuda", "cpu", "none"] = Field(
        description="none: no machine of yours, an API's; that target is built in."
    )
    gpu: str | None = Field(None, description="GPU model as in the price list, e.g. H100-80GB-SXM.")
    match: str | None = Field(None, description="Regex over the driver's device name.")
    devices: Positive = 1
    nodes: Positive = 1
    device_memory_gib: float | None = Field(None, description="GiB that the driver reports.")
    host_ram_gib: float | None = None
    bf16: bool = True
    bf16_dense_tflops: float | None = None
    fp16_dense_tflops: float | None = None
    memory_gbs: float | None = None
    nvlink_gbs: float | None = Field(None, description="Both directions; 0 means none.")
    pcie_gbs: float | None = Field(None, description="Both directions.")
    tdp_w: float | None = None
    price: Price
    spec_source: str = ""
    spec_note: str = ""

    @model_validator(mode="after")
    def _gpu_facts(self) -> TargetSpec:
        if self.device == "cuda" and not (self.gpu and self.match and self.device_memory_gib):
            raise ValueError("a cuda target needs `gpu`, `match` and `device_memory_gib`")
        if (self.device == "none") != (self.name == "api"):
            raise ValueError("`api` with device `none` is built in: no file describes another one")
        if self.match:
            re.compile(self.match)
        return self


# Where every cell of an endpoint stands, once, whatever machines its suite is for.
API = TargetSpec(
    name="api",
    title="An API, paid per token",
    device="none",
    price=Price(
        usd_per_device_hour=0, low_usd=0, high_usd=0, provider="", date="", source="see the model"
    ),
)
