"""What a prediction says.  Pure: bytes and seconds, like bench.record."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from bench.record import Record

GIB = 1 << 30


class StepMemory(Record):
    """Peak bytes of one rank in training, and of its node's host."""

    allocated_bytes: int
    reserved_bytes: int = Field(description="What the allocator takes, with this data's lengths.")
    reserved_fixed_bytes: int = Field(description="The same if every batch had the longest length.")
    reserved_high_bytes: int = Field(description="The worst of several orders of the lengths.")
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
    micro_costs: list[tuple[int, int, bool, int]] = Field(
        [], description="flops, bytes, fp32, calls: forward and backward."
    )
    update_costs: list[tuple[int, int, bool, int]] = Field([])
    notes: list[str] = Field([])


class GenerationMemory(Record):
    """Peak bytes of the fullest device while a batch of prompts is answered."""

    allocated_bytes: int
    reserved_bytes: int
    phases: dict[str, int] = Field({}, description="Allocated peak by phase.")
    devices: int = Field(1, description="Devices that the layers are spread over.")
    held_bytes: int = 0
    prompt_costs: list[tuple[int, int, bool, int]] = Field(
        [], description="flops, bytes, fp32, calls: of all prompts of a batch."
    )
    token_costs: list[tuple[int, int, bool, int]] = Field(
        [], description="The same for one token of each, at the full length of the cache."
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
    tokens: int = Field(description="Of all ranks, padding included.")


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
    device_high_bytes: int | None = None
    memory: StepMemory | None = None
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
