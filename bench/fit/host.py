"""Host RAM of one node: what loading and offloading hold.

* Processes: each rank has its libraries and CUDA's host side resident.
* Loading in 4 bit what will be sharded: each rank reads to its own device, a layer in 16 bit at the
  most; nothing stays on the host (bench.worker.parts).
* Loading, plain: every rank builds the whole model in host RAM before it moves or shards it.  With
  memory-efficient loading only one rank's copy exists at a time, or shards are read by mapping
  (reclaimable, not counted).  transformers switches the efficient path off for quantised models
  under FSDP and ZeRO-3.
* Offloaded states are pinned.  DeepSpeed's CPU optimizer keeps fp32 masters, two fp32 states and
  fp32 gradients, plus 16-bit weights and gradients in pinned buffers: 20 bytes a trained weight
  (deepspeed.runtime.zero.stage3.estimate_zero3_model_states_mem_needs: 18, times a factor of 1.5
  for buffers, "additional_buffer_factor").
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.fit.constants import constant
from bench.fit.request import DTYPE_BYTES, Request
from bench.fit.simulate import Simulation
from bench.plan import GIB

ZERO_OFFLOAD_BYTES = 18
ZERO_BUFFER_FACTOR = 1.5


@dataclass
class Host:
    load: int
    train: int


def host_memory(request: Request, found: Simulation) -> Host:
    """Bytes of one node in the load phase and while training."""
    sharding = request.sharding
    ranks = min(sharding.devices, sharding.devices_per_node)
    processes = int(ranks * constant("process_host_gib") * GIB)
    train = _offloaded(request, found, ranks)
    return Host(load=processes + _loading(request, found, ranks), train=processes + train)


def _loading(request: Request, found: Simulation, ranks: int) -> int:
    sharding, quantization = request.sharding, request.quantization
    weights = found.trace.parameters * DTYPE_BYTES[request.dtype]
    if quantization is not None and quantization.bits == 4 and sharding.kind in ("fsdp", "zero3"):
        return ranks * weights // max(1, request.config.get("num_hidden_layers", 1))
    if quantization is not None:
        weights = weights * quantization.bits // 16
    return weights if sharding.memory_efficient_load else ranks * weights


def _offloaded(request: Request, found: Simulation, ranks: int) -> int:
    sharding = request.sharding
    if not sharding.kind.startswith("zero"):
        return found.host * ranks
    if not (sharding.offload_optimizer or sharding.offload_params):
        return found.host * ranks
    share = ranks / sharding.devices
    trained = found.trace.trainable * ZERO_OFFLOAD_BYTES * ZERO_BUFFER_FACTOR
    frozen = found.trace.held_bytes - found.trace.trained_bytes
    return int(share * (trained + (frozen if sharding.offload_params else 0)))
