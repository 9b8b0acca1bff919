"""What a prediction says.  Pure: bytes and seconds, like bench.record."""

from __future__ import annotations

import statistics
from typing import Any, Literal

from pydantic import Field

from bench.record import Record

GIB = 1 << 30

CostRow = tuple[int, int, bool, int]  # flops, bytes, fp32, calls of an operator


class StepMemory(Record):
    """Peak bytes of one rank in training, every batch as long as the longest, and of its host."""

    allocated_bytes: int
    reserved_bytes: int = Field(description="What the allocator takes.")
    host_bytes: int = Field(description="Per node: offloaded state, pinned buffers, load phase.")
    host_load_bytes: int = 0
    phases: dict[str, int] = Field(description="Allocated peak by phase.")
    reserved_phases: dict[str, int] = Field({})
    breakdown: dict[str, int] = Field(description="What is alive at the peak, by category.")
    peak_phase: str
    peak_operator: str = ""
    parameters: int
    trainable: int
    held_bytes: int = Field(0, description="All weights as held, on one full copy.")
    trained_bytes: int = 0
    load_bytes: int = Field(
        0, description="A rank's device while a quantised model loads in parts; 0: not so loaded."
    )
    micro_batches: int = 1
    micro_costs: list[CostRow] = Field([], description="Forward and backward.")
    update_costs: list[CostRow] = Field([])


class Growth(Record):
    """Reserved bytes that batches of different lengths add to those of the longest alone."""

    by_order: list[int] = Field([], description="Of several orders of the batches, sorted.")
    bucketed_bytes: int | None = Field(None, description="Batches sorted by length.")
    emptied_bytes: int | None = Field(None, description="Cache emptied every 10 batches.")
    expandable_bytes: int | None = Field(None, description="expandable_segments:True.")
    notes: list[str] = Field([])

    @property
    def median_bytes(self) -> int:
        return int(statistics.median(self.by_order)) if self.by_order else 0

    @property
    def high_bytes(self) -> int:
        return max(self.by_order, default=0)


class Pace(Record):
    """Operators of a micro-batch at the mean length of its batches, and at the longest."""

    mean_costs: list[CostRow]
    longest_costs: list[CostRow]


class DataLengths(Record):
    """Tokens of the training examples that a plan is for."""

    source: Literal["counted", "stated", "assumed"] = Field(
        description="On the rows; in the dataset's file; nowhere: all as long as the budget allows."
    )
    mean: float
    longest: int
    rows: int | None = Field(None, description="Of the train split.")


class GenerationMemory(Record):
    """Peak bytes of the fullest device while a batch of prompts is answered."""

    allocated_bytes: int
    reserved_bytes: int
    phases: dict[str, int] = Field({}, description="Allocated peak by phase.")
    devices: int = Field(1, description="Devices that the layers are spread over.")
    held_bytes: int = 0
    prompt_costs: list[CostRow] = Field([], description="Of all prompts of a batch.")
    token_costs: list[CostRow] = Field(
        [], description="Of one token of each, at the full length of the cache."
    )


class Limit(Record):
    """One resource of the target."""

    name: str = Field(description="gpu or host.")
    phase: str
    need_bytes: int
    have_bytes: int

    @property
    def missing_bytes(self) -> int:
        return max(0, self.need_bytes - self.have_bytes)


class StepTime(Record):
    """Seconds of one optimizer update, by what they are spent on."""

    compute_s: float
    communication_s: float = 0.0
    offload_s: float = 0.0
    step_s: float
    low_s: float
    high_s: float
    flops: float = Field(description="Of one rank's update.")
    tokens: int = Field(description="Of all ranks, without padding.")
    padded_tokens: int = Field(0, description="The same with padding.")


class Plan(Record):
    """The answer for one cell or one configuration."""

    schema_version: int = 1
    fits: bool | None = Field(description="None: unknown, see `notes`.")
    limits: list[Limit] = Field([])
    strategy: str
    offload_params: bool = False
    offload_optimizer: bool = False
    micro_batch: int
    device_bytes: int | None = Field(None, description="Reserved plus context: the driver's view.")
    device_high_bytes: int | None = Field(
        None, description="With the growth of the worst order of batches; null: not traced."
    )
    data: DataLengths | None = None
    memory: StepMemory | None = None
    growth: Growth | None = Field(None, description="Traced where it could matter.")
    evaluation_bytes: int | None = Field(None, description="As device_bytes, during evaluation.")
    generation: GenerationMemory | None = None
    generation_bytes: int | None = Field(None, description="Allocated plus context.")
    time: StepTime | None = None
    steps: int | None = None
    train_s: float | None = None
    generate_s: float | None = Field(None, description="At most: every answer at full length.")
    usd: float | None = Field(None, description="Training and generation; loading is not in it.")
    usd_low: float | None = None
    usd_high: float | None = None
    changes: list[dict[str, Any]] = Field([], description="Smallest changes that would fit.")
    notes: list[str] = Field([])
