"""What was found: the typed contents of results/.  Pure.

Bytes and seconds are stored, GiB and dollars are computed when printing.  Unknown is None, never a
guess.  `schema_version` counts incompatible changes of this file:

    1  first version

Every type here is written by `bench/store.py` and read by `bench/report/`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1
# Counts changes of how a step is timed (what is on the clock, what is synchronised, which tokens):
# speeds of two protocols are never compared.
TIMING_PROTOCOL = 1


class Status(StrEnum):
    """How a phase of a cell ended.  All of them are results."""

    OK = "ok"
    SKIPPED = "skipped"
    OOM_GPU = "oom_gpu"
    OOM_HOST = "oom_host"
    DIVERGED = "diverged"
    TIMEOUT = "timeout"
    KILLED = "killed"
    ERROR = "error"
    INVALID = "invalid"

    @property
    def final(self) -> bool:
        """A final status is not tried again.  `killed` and `error` come from outside the cell
        (a signal, a missing file), so the next run of the suite makes a new attempt."""
        return self not in (Status.KILLED, Status.ERROR)


class Record(BaseModel):
    """Base of every record: unknown keys of a newer version are kept, not dropped."""

    model_config = ConfigDict(extra="allow")


class Memory(Record):
    """Peak bytes.  GPU: the maximum over ranks.  Host: the sum over the process tree."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None  # what the driver reports for the process
    host_bytes: int | None = None  # resident set
    host_baseline_bytes: int | None = None  # the same after imports, before the model


class GpuReading(Record):
    """What the driver said of one GPU since the sample before."""

    energy_j: float | None = Field(None, description="Since the phase began.")
    power_w: float | None = Field(None, description="Mean of the readings.")
    utilization: float | None = Field(None, description="Share of time with a kernel running.")
    temperature_c: float | None = Field(None, description="Highest reading.")
    readings: int = 0
    slowed: dict[str, int] = Field({}, description="What held clocks back, in how many readings.")


class GpuSample(Record):
    """A line of gpu.jsonl: the phase's GPUs up to one moment."""

    phase: str
    since: float = Field(description="Unix seconds at which the phase's process was started.")
    t: float
    devices: list[GpuReading]


class GpuUse(Record):
    """One GPU over a whole phase."""

    seconds: float
    energy_j: float | None = None
    energy_source: Literal["counter", "power"] | None = Field(
        None, description="The driver's counter, or the integral of power readings."
    )
    power_w: float | None = None
    utilization: float | None = None
    temperature_c: float | None = Field(None, description="Highest reading.")
    slowed: dict[str, float] = Field({}, description="What held clocks back: share of readings.")


class Environment(Record):
    """The machine and software that really ran."""

    hostname_hash: str
    os: str
    python: str
    cpu: str
    cpu_cores: int
    ram_bytes: int
    gpus: list[str] = []
    gpu_memory_bytes: list[int] = []
    driver: str | None = None
    cuda: str | None = None
    packages: dict[str, str] = {}
    load_average: float | None = Field(None, description="1 minute, when the phase started.")
    git_commit: str | None = None
    git_dirty: bool | None = None


class Difference(Record):
    """A setting that is not in effect as it was asked for."""

    setting: str
    asked: Any = None
    in_effect: Any = None
    decides: Literal["cell", "cost"] = Field(
        description="cell: it is another cell than it says. cost: memory or speed alone."
    )

    def __str__(self) -> str:
        return f"{self.setting}: asked for {self.asked}, in effect {self.in_effect}"


class LoadFacts(Record):
    """Host memory of one process while the weights were loaded."""

    host_peak_bytes: int | None = Field(None, description="Growth of anonymous memory.")
    held_bytes: int = Field(description="Weights that this process holds afterwards.")
    host_held_bytes: int = Field(description="Those of them on the host.")
    unquantized_bytes: int = Field(description="The whole model in the dtype it loads in.")
    memory_saving: bool | None = Field(
        None, description="The whole model was never there unquantised. null: too small to tell."
    )


class Audit(Record):
    """Proof of what ran: counted on the model that ran, not copied from the settings.

    Written before the first step and again after the last, so a cell that dies has one too.
    """

    schema_version: Literal[1] = 1
    stage: Literal["before", "after", "generate"] = Field(
        "after", description="before the first step, after the last; generate: nothing trained."
    )
    total_params: int
    trainable_params: int
    bytes_by_dtype: dict[str, int] = Field(description="Of all parameters, as held in memory.")
    bytes_by_part: dict[str, dict[str, int]] = Field(
        {}, description="Embeddings, attention, mlp, experts, router, head, adapters, other."
    )
    bytes_by_rank: list[int] = Field([], description="Weights that each process holds.")
    quantized_params: int = Field(description="Weights held in 4 or 8 bit.")
    quantizable_params: int | None = Field(None, description="Those that quantisation is for.")
    quantization_state_bytes: int = Field(0, description="Scales outside the parameters.")
    adapted_modules: dict[str, int] = Field({}, description="Kind of module: how many.")
    router_adapted: bool | None = Field(None, description="null: there is no router.")
    attention: str | None = None
    attention_ops: list[str] | None = Field(
        None, description="Kernels that attention called; none: plain matrix products."
    )
    optimizer: str | None = None
    optimizer_state_bytes: dict[str, int] = Field({}, description="By dtype, after the last step.")
    optimizer_state_devices: dict[str, int] = Field({}, description="Bytes by device, this rank.")
    recomputed_layers: int | None = Field(
        None, description="Layer forwards that ran again in the first step's backward pass."
    )
    decoder_layers: int | None = None
    finite_gradients: int | None = Field(
        None, description="Trainable tensors that got a finite gradient in the first step."
    )
    moved_params: int | None = Field(None, description="Trainable tensors that changed.")
    trainable_tensors: int | None = None
    frozen_moved: int | None = Field(None, description="Frozen tensors that changed: must be 0.")
    batches: dict[str, int] = Field({}, description="Rows and paddings seen in the first step.")
    nondeterministic_ops: list[str] | None = Field(
        None, description="Of the first step, as torch names them; null: it wasn't watched."
    )
    load: LoadFacts | None = None
    load_by_rank: list[LoadFacts] = Field([], description="Of each rank, where there were several.")
    settings: dict[str, Any] = Field({}, description="What was in effect, read back.")
    wrapper: str | None = Field(None, description="Class that the trainer ran the model in.")
    sharded_tensors: int | None = Field(
        None, description="Parameters of which a rank holds a part."
    )
    differences: list[Difference] = Field([], description="Asked for against in effect.")
    libraries: dict[str, str] = Field({}, description="Versions that this process imported.")
    problems: list[str] = Field([], description="Any entry makes the cell invalid.")
    warnings: list[str] = []


class PhaseRecord(Record):
    """What every phase leaves: how it ended, when, and what it held."""

    schema_version: Literal[1] = 1
    phase: Literal["train", "generate", "serve"]
    status: Status
    reason: str | None = Field(None, description="One line; always set unless ok.")
    stage: str | None = Field(None, description="Stage in which it ended, unless ok.")
    started_at: str
    wall_s: float = Field(description="From process start to process end: what a rental bills.")
    interruptions: int = Field(
        0, description="Earlier processes of this phase in this attempt; their time is in wall_s."
    )
    stage_s: dict[str, float] = Field({}, description="load, train, evaluate, save, generate …")
    memory: dict[str, Memory] = Field({}, description="Peaks by stage, and `process` for all.")
    ranks: int = Field(1, description="Processes that shared the phase.")
    rank_memory: list[dict[str, Memory]] = Field(
        [], description="Peaks by stage of each rank, where there were several."
    )
    threads: int | None = None
    gpus: list[GpuUse] = Field([], description="Energy and use of each; empty: no sensors.")
    environment: Environment | None = None


class TrainRecord(PhaseRecord):
    phase: Literal["train"] = "train"
    steps: int = 0
    planned_steps: int | None = None
    tokens: int = Field(0, description="Non-padding input tokens.")
    padded_tokens: int = Field(0, description="Input tokens with padding.")
    supervised_tokens: int = 0
    timing_protocol: int = Field(1, description="Of the worker that ran; see TIMING_PROTOCOL.")
    train_rows: int | None = None
    split_rows: int | None = Field(None, description="Rows of the whole train split.")
    rows_fingerprint: str | None = Field(None, description="Hash of the rows used.")
    truncated_rows: int | None = None
    dropped_rows: int | None = Field(None, description="Nothing left to learn after truncation.")
    first_loss: float | None = None
    final_loss: float | None = None
    validation_loss: float | None = Field(None, description="Last one, nats per answer token.")
    resumed_from_step: int | None = Field(
        None, description="Checkpoint that it last went on from, after an interruption."
    )
    repeated_steps: int = Field(
        0, description="Done, lost and done again; no other count has them."
    )
    repeated_s: float = 0.0
    repeated_tokens: int = 0
    weights: str | None = Field(None, description="Name in the cache folder, not a path.")
    weights_sha256: str | None = None


class GenerateRecord(PhaseRecord):
    phase: Literal["generate"] = "generate"
    rows: int = 0
    rows_fingerprint: str | None = Field(None, description="Hash of the rows used.")
    planned_rows: int | None = None
    test_rows: int | None = Field(None, description="Rows of the whole test split.")
    prompt_tokens: int = 0
    new_tokens: int = 0
    generate_s: float | None = Field(None, description="Synchronised, model loaded, all batches.")
    adapter_changes_logits: bool | None = Field(
        None, description="False: the adapter did not load, whatever the library said."
    )
    paddings: dict[str, int] = Field({}, description="Padding tokens of the prompts, by side.")
    weights_sha256: str | None = None


class ServedVariant(Record):
    """One way of serving a cell's weights, and proof that they were these weights."""

    name: str = Field(description="plain: as evaluated; merged: the adapter inside the base.")
    status: Status
    reason: str | None = Field(None, description="One line; always set unless ok.")
    engine: str = Field("", description="transformers or vllm.")
    engine_version: str | None = None
    options: dict[str, Any] = Field({}, description="What the server was told.")
    stored_bytes: int | None = Field(None, description="Files that deploying it needs.")
    held_bytes: int | None = Field(None, description="Weights as the server holds them.")
    dtypes: dict[str, int] = Field({}, description="The same by dtype.")
    quantized_params: int | None = None
    adapted_modules: int | None = None
    weights_sha256: str | None = Field(None, description="Of the trained weights in use.")
    start_s: float | None = Field(None, description="Process start to a healthy answer.")
    host_bytes: int | None = Field(None, description="The server's peak resident set.")
    device_bytes: int | None = Field(None, description="What the driver reported for the server.")
    compared_rows: int = Field(0, description="Rows that the generate phase answered too.")
    same_answers: float | None = Field(None, description="Share that was answered alike.")
    same_openings: float | None = Field(None, description="Share that began alike.")


class ServeRecord(PhaseRecord):
    """Its samples are `request` and `load` events; percentiles are computed from them."""

    phase: Literal["serve"] = "serve"
    settings: dict[str, Any] = Field({}, description="The suite's `serve`, less what is priced.")
    variants: list[ServedVariant] = Field([])


class RequestEvent(Record):
    """One request to the server, in events.jsonl.  Seconds since it was sent."""

    event: Literal["request"] = "request"
    t: float = Field(description="Unix seconds at its end.")
    variant: str
    concurrency: int
    counted: bool = Field(True, description="False: warm-up.")
    row: str
    first_token_s: float | None = Field(None, description="First text of the answer.")
    total_s: float
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    error: str | None = None


class LoadEvent(Record):
    """A concurrency was held: all its requests from the first's start to the last's end."""

    event: Literal["load"] = "load"
    t: float
    variant: str
    concurrency: int
    seconds: float


class StepEvent(Record):
    """One optimizer update, in events.jsonl."""

    event: Literal["step"] = "step"
    t: float = Field(description="Unix seconds at its end.")
    step: int
    loss: float | None
    seconds: float = Field(description="Synchronised; evaluation, logging and saving outside.")
    tokens: int
    padded_tokens: int
    supervised_tokens: int
    sequences: int
    learning_rate: float | None = None
    grad_norm: float | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    host_bytes: int | None = None


class EvaluationEvent(Record):
    """A validation loss, in events.jsonl.  `train_s` and `tokens` are those spent before it."""

    event: Literal["evaluation"] = "evaluation"
    t: float
    step: int
    loss: float | None
    seconds: float
    train_s: float
    tokens: int
    rows: int


class ScoredEvent(Record):
    """Validation rows that were answered in training, off its clock, in events.jsonl; the answers
    are in validation.jsonl.  `train_s` and `tokens` are those spent before it."""

    event: Literal["scored"] = "scored"
    t: float
    step: int
    seconds: float = Field(description="Synchronised; not in train_s.")
    train_s: float
    tokens: int
    rows: int
    new_tokens: int


class Prediction(Record):
    """One test row, in predictions.jsonl.  New metrics need no new run."""

    id: str
    group: str | None = None
    prediction: str
    reference: dict[str, Any] = Field(description="Answer field: true value.")
    finish_reason: Literal["stop", "length", "content_filter", "context_length"]
    prompt_tokens: int | None
    new_tokens: int | None


class ValidationAnswer(Prediction):
    """One validation row as answered after so many steps of training, in validation.jsonl."""

    step: int


class ApiPrediction(Prediction):
    """One test row that an endpoint answered; null tokens: it reported no usage.

    `content_filter` and `context_length`: refused, and an empty answer unless it said something.
    """

    response: dict[str, Any] = Field(description="Its body, as received; an error's too.")
    request_id: str | None = None
    retries: int = 0
    latency_s: float = Field(description="Of the try that was answered.")
