"""Methods: how weights adapt."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from bench.spec.base import Dtype, NonNegative, Positive, Slug, Spec

Optimizer = Literal[
    "adamw",
    "adamw_fused",
    "adamw_8bit",
    "paged_adamw_8bit",
    "paged_adamw_32bit",
    "adafactor",
    "sgd",
]


class AdapterSpec(Spec):
    """A LoRA adapter (peft.LoraConfig's terms)."""

    rank: Positive = 16
    alpha: Positive = 32
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    exclude_modules: tuple[str, ...] = Field(
        (), description="E.g. [gate]: `all-linear` would adapt a mixture's router too."
    )
    target_parameters: tuple[str, ...] = Field((), description="Fused expert weights to adapt.")
    dtype: Dtype = "fp32"
    rslora: bool = False
    dora: bool = False


class QuantizationSpec(Spec):
    """bitsandbytes quantisation of the frozen base."""

    later: ClassVar[frozenset[str]] = frozenset({"experts_at_once"})

    bits: Literal[4, 8] = 4
    quant_type: Literal["nf4", "fp4"] = "nf4"
    double_quant: bool = True
    compute_dtype: Dtype = "bf16"
    storage_dtype: Literal["uint8", "bf16", "fp16", "fp32"] = "uint8"
    experts_at_once: Positive | None = Field(
        None,
        description="Fused 4-bit experts unpacked at a time; null: a layer's. Fewer need less "
        "memory and more kernel launches.",
    )


# Kinds that train nothing, and those of them that don't even look at a model.
WITHOUT_MODEL = frozenset({"majority", "copy"})
UNTRAINED = WITHOUT_MODEL | {"base"}


class MethodSpec(Spec):
    """How weights adapt.  `kind` names the file in bench/worker/methods/ that does it."""

    notes: ClassVar[frozenset[str]] = frozenset({"title"})
    later: ClassVar[frozenset[str]] = frozenset({"shots"})

    name: Slug
    title: str = ""
    kind: Slug
    dtype: Dtype = Field("bf16", description="dtype of the weights that are not quantised.")
    autocast: Literal["bf16", "fp16"] | None = Field(
        None, description="Mixed precision; null computes in the weights' own dtype."
    )
    attention: Literal["eager", "sdpa", "flash_attention_2"] = "sdpa"
    adapter: AdapterSpec | None = None
    quantization: QuantizationSpec | None = None
    optimizer: Optimizer | None = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    lr_warmup_steps: NonNegative = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    gradient_checkpointing: bool = True
    packing: bool = False
    shots: NonNegative = Field(0, description="Answered examples in the prompt (kind base).")

    @property
    def trains(self) -> bool:
        return self.kind not in UNTRAINED

    @property
    def needs_model(self) -> bool:
        return self.kind not in WITHOUT_MODEL

    @model_validator(mode="after")
    def _parts_fit_kind(self) -> MethodSpec:
        if self.kind in ("lora", "qlora") and self.adapter is None:
            raise ValueError(f"{self.kind} needs an `adapter` block (rank, alpha, target_modules)")
        if self.kind == "qlora" and self.quantization is None:
            raise ValueError("qlora needs a `quantization` block (bits, quant_type, double_quant)")
        if self.kind in ("full", "lora") and self.quantization is not None:
            raise ValueError(f"{self.kind} trains unquantised weights: remove `quantization`")
        if self.kind == "full" and self.adapter is not None:
            raise ValueError("full trains every weight: remove `adapter`, or use kind: lora")
        if self.trains and self.learning_rate is None:
            raise ValueError(f"{self.kind} trains, so it needs a `learning_rate`")
        if self.shots and self.kind != "base":
            raise ValueError(
                f"{self.kind} takes no `shots`: examples in the prompt are for kind: base"
            )
        if self.packing and self.attention != "flash_attention_2":
            raise ValueError(
                "packing needs attention: flash_attention_2; other kernels let packed examples "
                "see each other"
            )
        return self
