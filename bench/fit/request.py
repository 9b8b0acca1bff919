"""The question that a prediction answers: one model, one method, one step, one machine.  Pure.

A `Request` is wider than a suite's cell: published runs of other frameworks vary things that our
own worker fixes (loss path, reentrant checkpointing, library versions), and predicting those runs
is how the predictor is judged.  Every field that changes memory is explicit here.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bench.spec import DTYPE_BYTES, Dtype, Optimizer

__all__ = ["DTYPE_BYTES", "Adapter", "Decoding", "Quantization", "Request", "Sharding"]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Adapter(Part):
    """What peft.get_peft_model receives."""

    kind: str = Field("LORA", description="peft type; anything whose set-up needs no real data.")
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    exclude_modules: tuple[str, ...] = ()
    target_parameters: tuple[str, ...] = ()
    modules_to_save: tuple[str, ...] = ()
    dtype: Dtype = "fp32"
    dora: bool = False
    rslora: bool = False
    worker_targets: bool = Field(
        False, description="Spell out all-linear as bench.worker does: no router, no head."
    )
    train_a: bool = Field(True, description="False: LoRA-FA, the A matrices stay frozen.")
    options: dict[str, Any] = Field({}, description="Further arguments of the peft config.")


class Quantization(Part):
    """How the frozen base is held."""

    bits: Literal[4, 8] = 4
    quant_type: Literal["nf4", "fp4", "gptq"] = "nf4"
    double_quant: bool = True
    compute_dtype: Dtype = "bf16"
    skip: tuple[str, ...] = Field(("lm_head",), description="Modules that stay 16-bit.")
    group_size: int = Field(128, description="GPTQ only: weights per scale.")
    saves_inputs: bool = Field(
        False,
        description="bitsandbytes before 0.43 kept each 4-bit layer's input for the backward, "
        "and longer: as a plain attribute it lives as long as the graph that the logits hold.",
    )
    half_state: bool = Field(
        False,
        description="bitsandbytes before 0.43 quantised from fp16: dequantised weights are fp16 "
        "and a bf16 computation holds a second copy.",
    )
    kbit_preparation: bool = Field(
        False, description="peft.prepare_model_for_kbit_training: what is left becomes fp32."
    )
    experts: bool = Field(False, description="Fused experts in 4 bit too (our own loading).")


class Sharding(Part):
    """How work is spread over devices."""

    kind: Literal["single", "ddp", "fsdp", "zero1", "zero2", "zero3", "pipeline"] = "single"
    devices: int = 1
    devices_per_node: int = 8
    offload_params: bool = False
    offload_optimizer: bool = False
    fp32_master: bool = Field(False, description="DeepSpeed bf16: fp32 weights beside the 16-bit.")
    mixed_precision: bool = Field(
        False, description="FSDP: shards and reductions in fp32, computed in the request's dtype."
    )
    reshard: bool = True
    separate_ends: bool = Field(False, description="Embeddings and head are units of their own.")
    bucket_elements: int = Field(500_000_000, description="DeepSpeed reduce_bucket_size.")
    prefetch_elements: int = Field(50_000_000, description="ZeRO-3 prefetch_bucket_size.")
    max_live_elements: int = Field(1_000_000_000, description="ZeRO-3 max_live_parameters.")
    shards_quant_state: bool = Field(False, description="fsdp_qlora leaves absmax replicated.")
    memory_efficient_load: bool = True


class Decoding(Part):
    """What is generated at once, and on how many devices the layers are spread."""

    batch: int
    prompt: int = Field(description="Tokens of the longest prompt.")
    new: int = Field(description="Tokens written at most.")
    devices: int = 1


class Request(Part):
    """One training step on one machine."""

    config: dict[str, Any] = Field(description="The public config.json.")
    method: Literal["full", "lora", "qlora", "base"] = "full"
    tree: Literal["transformers", "litgpt"] = Field(
        "transformers", description="litgpt: Lightning's own modules, for its published runs."
    )
    dtype: Dtype = "bf16"
    autocast: Literal["bf16", "fp16"] | None = None
    fp32_outputs: bool = Field(
        False, description="accelerate under mixed precision converts the outputs to fp32."
    )
    attention: Literal["eager", "sdpa", "flash_attention_2"] = "sdpa"
    adapter: Adapter | None = None
    quantization: Quantization | None = None
    optimizer: Optimizer | Literal["adamw_torch_2_0"] = "adamw"
    optimizer_in_backward: bool = False
    loss: Literal["upcast", "native", "chunked", "chunked_head", "trl", "liger"] = "upcast"
    loss_chunk: int = Field(0, description="Tokens per chunk; 0: eight chunks (torchtune).")
    max_grad_norm: float | None = 1.0
    checkpointing: Literal["none", "full", "selective"] = "full"
    reentrant: bool = False
    activation_offload: bool = False
    keeps_outputs: bool = Field(
        True, description="A hand-written loop's variable holds the logits through the backward."
    )
    frees_gradients_at_once: bool = Field(
        False, description="The Trainer frees gradients right after the update."
    )
    accumulation: int = 1
    micro_batch: int = 1
    seq_len: int = 1024
    padded: bool = Field(False, description="A padding mask reaches attention.")
    lengths: tuple[int, ...] = Field(
        (),
        description="Longest sequence of successive batches; empty: always seq_len. "
        "They decide reserved memory, the longest one decides allocated memory.",
    )
    example_tokens: float = Field(
        0, description="Mean tokens of an example, padding apart; 0: as many as its batch is long."
    )
    previous_length: int = Field(
        0, description="Length of the step before the longest one; 0: as long."
    )
    evaluates: bool = Field(
        False, description="A validation loss follows, as bench.worker.train computes it."
    )
    expandable_segments: bool = False
    empty_cache_every: int = Field(0, description="Steps between torch.cuda.empty_cache; 0: never.")
    sharding: Sharding = Sharding()
    compute_capability: float = 8.0
    sms: int = Field(108, description="Streaming multiprocessors of the GPU: sizes workspaces.")
    fused_kernels: bool = Field(False, description="torch.compile: see fit/trace.py on its error.")

    @model_validator(mode="after")
    def _complete(self) -> Request:
        if "model_type" not in self.config:
            raise ValueError("config has no `model_type`: pass the model's config.json")
        if self.method in ("lora", "qlora") and self.adapter is None:
            raise ValueError(f"method {self.method} needs an adapter")
        if self.method == "qlora" and self.quantization is None:
            raise ValueError("method qlora needs a quantization")
        limit = self.config.get("max_position_embeddings")
        if limit and self.longest > limit:
            raise ValueError(
                f"sequence length {self.longest} exceeds the model's {limit} positions"
            )
        return self

    @property
    def longest(self) -> int:
        return max(self.lengths, default=self.seq_len)

    def as_long_as_longest(self) -> Request:
        """The same step if every batch had the longest length."""
        return self.model_copy(
            update={"seq_len": self.longest, "lengths": (), "example_tokens": 0.0}
        )

    @property
    def digest(self) -> str:
        """Cache key: the same step on the same library versions has the same memory."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
