"""Where weights, gradients and states live when several devices share the work.

One rank's step is traced on full-shape meta tensors; module hooks then play what the sharding
engine does to memory: shards are counted instead of whole weights, a unit's weights appear when it
is gathered and vanish when it is released, gradients are reduced into shards, and the optimizer
runs on shard-sized tensors.  That costs one single-device trace, where tracing the real engine on
fake processes costs minutes, and it covers engines that can't run without a GPU.

What each engine holds beyond the shards:

* DDP: gradient buckets, one more copy of the gradients (torch DDP, gradient_as_bucket_view=False).
* FSDP: one unit (decoder layer, or the root with embeddings and head) gathered plus the next one
  prefetched; in the backward its gradient and the reduce-scatter input (torch.distributed.fsdp).
* ZeRO-1/2: whole 16-bit weights; fp32 master weights and states in shards; reduce buckets
  (deepspeed/runtime/zero/stage_1_and_2.py).
* ZeRO-3: everything in shards, gathered by module, kept up to `max_live_elements` and prefetched up
  to `prefetch_elements`; reduce bucket; fp32 masters (deepspeed/runtime/zero/stage3.py).
"""

from __future__ import annotations

from torch import nn

from bench.fit.build import decoder_layers
from bench.fit.request import Request
from bench.fit.shards import FullyShared, PartlyShared
from bench.fit.step import Placement
from bench.fit.trace import Tracer


def placement_for(model: nn.Module, request: Request, tracer: Tracer) -> Placement:
    """The placement that the request's sharding names."""
    kinds: dict[str, type[Placement]] = {
        "single": Placement,
        "ddp": DataParallel,
        "fsdp": FullyShared,
        "zero1": PartlyShared,
        "zero2": PartlyShared,
        "zero3": FullyShared,
        "pipeline": Pipeline,
    }
    return kinds[request.sharding.kind](model, request, tracer)


class DataParallel(Placement):
    """torch DDP: every rank holds everything, plus buckets as large as the gradients."""

    def load(self) -> None:
        super().load()
        size = sum(p.numel() * p.element_size() for p in self.parameters())
        self.tracer.hold(size, "communication")


class Pipeline(Placement):
    """Layers split over devices in order (device_map): 1/n of the weights and of the saved inputs.

    Only the heaviest device matters; it holds its share of the layers and the head's logits.
    """

    def load(self) -> None:
        devices = self.request.sharding.devices
        inside = {id(p) for layer in decoder_layers(self.model) for p in layer.parameters()}
        self.tracer.ignore(self.model.parameters())
        for parameter in self.model.parameters():
            size = parameter.numel() * parameter.element_size()
            share = size // devices if id(parameter) in inside else size
            self.tracer.hold(share, "weights", like=parameter)
