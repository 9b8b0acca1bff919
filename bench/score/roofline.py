"""What serving costs at least: no server moves more bytes or does more arithmetic than its GPUs.

Each token of a batch reads every weight that the batch uses once, and each sequence's keys and
values; a prompt costs two operations a weight and token.  Peaks at 100 %, tensor-parallel over
all devices, nothing else counted: real servers reach half of it or less, so throughput is at most,
and dollars are at least, what is computed here.  A bound can settle that an API is cheaper, never
that it is dearer.

    time of a batch = prompts · 2 · active weights ÷ peak  +  new tokens · max(bytes ÷ bandwidth,
                      2 · active weights · batch ÷ peak)

Williams, Waterman, Patterson: Roofline (2009); for decoding, Pope et al., arXiv:2211.05102.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.score.serving import Load
from bench.spec import DTYPE_BYTES, Cell


@dataclass(frozen=True)
class Request:
    """Mean tokens of a request."""

    prompt: float
    new: float


@dataclass(frozen=True)
class Machine:
    """All devices together, per second."""

    flops: float
    bytes_per_s: float
    memory_bytes: float


@dataclass(frozen=True)
class Weights:
    """`expert_share`: of the held bytes, those of experts; `used`: a token's share of them."""

    held_bytes: float
    active_params: float
    cache_bytes: float  # keys and values of one position
    expert_share: float = 0.0
    used: float = 1.0

    def read_bytes(self, batch: int) -> float:
        """Of one decoded token of each sequence, whose experts are drawn evenly."""
        touched = 1 - (1 - self.used) ** batch
        return self.held_bytes * (1 - self.expert_share * (1 - touched))


def at_best(weights: Weights, machine: Machine, request: Request, batch: int) -> Load | None:
    """The load of a machine that does nothing but what it must.  None where a batch doesn't fit."""
    positions = request.prompt + request.new
    cached = batch * positions * weights.cache_bytes
    if weights.held_bytes + cached > machine.memory_bytes or positions <= 0:
        return None
    prompts = batch * request.prompt * 2 * weights.active_params / machine.flops
    moved = (weights.read_bytes(batch) + cached) / machine.bytes_per_s
    computed = batch * 2 * weights.active_params / machine.flops
    return Load(
        concurrency=batch,
        seconds=prompts + request.new * max(moved, computed),
        errors=0,
        requests=batch,
        prompt_tokens=round(batch * request.prompt),
        new_tokens=round(batch * request.new),
        first_token=None,
        per_token=None,
        total=None,
    )


def weights_of(cell: Cell, held_bytes: int) -> Weights | None:
    """From the model's public sizes.  None where they aren't known."""
    config, params = cell.model.config, cell.model.params
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    if not layers or not heads or not params:
        return None
    width = config.get("head_dim") or config["hidden_size"] // heads
    cache = 2 * 2 * layers * (config.get("num_key_value_heads") or heads) * width  # 16 bit
    active, experts = cell.model.active_params, config.get("num_experts")
    used = config.get("num_experts_per_tok")
    if not active or not experts or not used:
        return Weights(held_bytes, active or params, cache)
    one = (params - active) / (experts - used)
    return Weights(held_bytes, active, cache, one * experts / params, used / experts)


def machine_of(cell: Cell) -> Machine | None:
    """None where the target's peaks aren't known."""
    target = cell.target
    if not (target.bf16_dense_tflops and target.memory_gbs and target.device_memory_gib):
        return None
    count = target.devices * target.nodes
    return Machine(
        flops=target.bf16_dense_tflops * 1e12 * count,
        bytes_per_s=target.memory_gbs * 1e9 * count,
        memory_bytes=target.device_memory_gib * 2**30 * count,
    )


def request_of(cell: Cell) -> Request | None:
    """From the lengths that the dataset's file states; None where it states none.

    The answer's share of the longest example is taken for its share of the mean one.
    """
    lengths = cell.dataset.lengths
    if lengths is None or lengths.prompt_longest is None:
        return None
    share = 1 - min(1.0, lengths.prompt_longest / lengths.longest)
    new = min(lengths.mean * share, cell.budget.max_new_tokens)
    return Request(prompt=lengths.mean * (1 - share), new=max(1.0, new))


def served_bytes(cell: Cell, held_bytes: int | None) -> int | None:
    """What a server holds: weights in the dtype that they are deployed in; quantised ones as the
    plan counts them (`held_bytes`)."""
    method = cell.method
    if method.quantization:
        return held_bytes
    dtype = (method.autocast if method.trains else None) or method.dtype
    return cell.model.params * DTYPE_BYTES[dtype] if cell.model.params else None


def bound(cell: Cell, held_bytes: int | None) -> Load | None:
    """The best of all batches that fit (powers of two); None where anything isn't known or fits."""
    machine, request = machine_of(cell), request_of(cell)
    served = served_bytes(cell, held_bytes)
    if not served or machine is None or request is None:
        return None
    weights = weights_of(cell, served)
    loads: list[Load] = []
    while weights and (load := at_best(weights, machine, request, 2 ** len(loads))):
        loads.append(load)
    return max(loads, key=lambda load: load.tokens_per_s, default=None)
