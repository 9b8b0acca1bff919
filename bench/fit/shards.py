"""Sharded engines as one rank sees them: see `sharding` for what each holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from bench.fit.build import decoder_layers
from bench.fit.quantize import quant_state_tensors
from bench.fit.request import Request
from bench.fit.step import Placement
from bench.fit.trace import Tracer

COMMUNICATION = 1  # stream of gathers and reductions: its blocks are never reused by stream 0


@dataclass(eq=False)
class Unit:
    """Weights that are gathered and released together."""

    name: str
    parameters: list[nn.Parameter]
    layer: int | None = None
    gathered: int | None = None
    pending: set[int] = field(default_factory=set)

    @property
    def elements(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters)

    @property
    def trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters if parameter.requires_grad]


class Shared(Placement):
    """Common to the engines that shard optimizer states."""

    def __init__(self, model: nn.Module, request: Request, tracer: Tracer) -> None:
        super().__init__(model, request, tracer)
        self.sharding = request.sharding
        self.world = request.sharding.devices
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.shards: dict[int, nn.Parameter] = {}
        self.partitions: dict[int, torch.Tensor] = {}  # reduced gradients of this rank
        self.host_state = 0

    @property
    def on_host(self) -> bool:
        """The update runs on the CPU: masters, gradients and states live there."""
        return self.sharding.offload_optimizer or self.sharding.offload_params

    @property
    def fp32_update(self) -> bool:
        return self.sharding.fp32_master or self.sharding.mixed_precision

    def shard_elements(self, parameter: torch.Tensor) -> int:
        return -(-parameter.numel() // self.world)

    def make_shards(self) -> None:
        """What the optimizer updates: this rank's part, in the update's precision."""
        for parameter in self.trained:
            dtype = torch.float32 if self.fp32_update else parameter.dtype
            shard = nn.Parameter(
                torch.empty(self.shard_elements(parameter), dtype=dtype, device="meta")
            )
            self.shards[id(parameter)] = shard
            if self.on_host:
                self.host_state += shard.numel() * dtype.itemsize
            else:
                self.tracer.track(shard, "weights", like=parameter)

    def parameters(self) -> list[nn.Parameter]:
        return list(self.shards.values())

    def reduce_into_partition(self, parameter: torch.Tensor) -> None:
        """The full gradient becomes this rank's part; on the host if the update is there."""
        parameter.grad = None
        if self.on_host or id(parameter) in self.partitions:
            return
        dtype = torch.float32 if self.sharding.mixed_precision else parameter.dtype
        with self.tracer.new_tensors_are("gradients", like=parameter):
            part = torch.empty(self.shard_elements(parameter), dtype=dtype, device="meta")
        self.partitions[id(parameter)] = part

    def zero_grad(self) -> None:
        for tensor in (*self.trained, *self.shards.values()):
            tensor.grad = None
        self.partitions.clear()

    def clips(self) -> list[nn.Parameter]:
        return [] if self.on_host else self._with_gradients()

    def optimizer_step(self, optimizers: list[torch.optim.Optimizer]) -> None:
        if self.on_host:
            states = {"sgd": 0, "adafactor": 1}.get(self.request.optimizer, 2)
            self.tracer.host_bytes = self.host_state + self._shard_bytes() * (states + 1)
            return
        self._with_gradients()
        for optimizer in optimizers:
            optimizer.step()
        for shard in self.shards.values():
            shard.grad = None

    def _shard_bytes(self) -> int:
        return sum(shard.numel() * shard.element_size() for shard in self.shards.values())

    def _with_gradients(self) -> list[nn.Parameter]:
        """Gradient partitions in the update's dtype: DeepSpeed copies 16-bit ones to fp32."""
        with self.tracer.new_tensors_are("gradients"):
            for key, shard in self.shards.items():
                if shard.grad is None:
                    part = self.partitions.get(key)
                    same = part is not None and part.dtype == shard.dtype
                    shard.grad = part if same else torch.empty_like(shard)
        return self.parameters()


class PartlyShared(Shared):
    """ZeRO-1 and ZeRO-2: whole 16-bit weights, sharded fp32 masters and states."""

    def load(self) -> None:
        Placement.load(self)
        self.make_shards()
        elements = self.trained_elements
        width = max((p.element_size() for p in self.trained), default=2)
        bucket = min(self.sharding.bucket_elements, elements) * width
        self.tracer.hold(2 * bucket, "communication")  # two take turns (overlap_comm)
        for parameter in self.trained:
            parameter.register_post_accumulate_grad_hook(self._reduced)

    def _reduced(self, parameter: torch.Tensor) -> None:
        """ZeRO-2 keeps its part of each gradient; ZeRO-1 keeps all of them until the update."""
        if self.sharding.kind == "zero2":
            self.reduce_into_partition(parameter)
        else:
            self.tracer.move([parameter.grad], "gradients")

    def after_backward(self, last: bool) -> None:
        if last:
            for parameter in self.trained:
                if parameter.grad is not None:
                    self.reduce_into_partition(parameter)


class FullyShared(Shared):
    """FSDP and ZeRO-3: weights exist whole only while their unit computes."""

    def load(self) -> None:
        self.tracer.ignore((*self.model.parameters(), *quant_state_tensors(self.model)))
        self.make_shards()
        self._hold_frozen()
        if self.sharding.fp32_master and not self.sharding.offload_params:
            for parameter in self.trained:  # the computed shards beside the masters
                size = self.shard_elements(parameter) * parameter.element_size()
                self.tracer.hold(size, "weights", like=parameter)
        if self.sharding.kind == "zero3":
            bucket = min(self.sharding.bucket_elements, self.trained_elements)
            self.tracer.hold(bucket * 2, "communication")
        layers = self._wrapped_modules()
        numbers = {id(module): number for number, module in enumerate(decoder_layers(self.model))}
        self.units = [
            Unit(f"unit {i}", list(module.parameters()), numbers.get(id(module)))
            for i, module in enumerate(layers)
        ]
        inside = {id(p) for unit in self.units for p in unit.parameters}
        self.root = Unit("root", [p for p in self.model.parameters() if id(p) not in inside])
        self.forwarding = True
        for unit, module in zip(self.units, layers, strict=True):
            self._hook(unit, module)
        self._hook_gradients(self.root)

    def _wrapped_modules(self) -> list[nn.Module]:
        """Units in the order of the forward."""
        layers = decoder_layers(self.model)
        if not self.sharding.separate_ends:
            return layers
        model: Any = self.model
        return [model.get_input_embeddings(), *layers, model.get_output_embeddings()]

    def _hold_frozen(self) -> None:
        for parameter in self.model.parameters():
            size = self.shard_elements(parameter) * parameter.element_size()
            if parameter.requires_grad:
                continue
            if self.sharding.offload_params:
                self.host_state += size
            else:
                self.tracer.hold(size, "weights", like=parameter)
        share = self.world if self.sharding.shards_quant_state else 1
        for tensor in quant_state_tensors(self.model):
            size = tensor.numel() * tensor.element_size() // share
            self.tracer.hold(size, "weights", like=tensor)
        for tensor in self.model.buffers():
            self.tracer.track(tensor, "weights")

    # ------------------------------------------------------------ gathering

    def _hook(self, unit: Unit, module: nn.Module) -> None:
        module.register_forward_pre_hook(_calling(self._before_forward, unit))
        module.register_forward_hook(_calling(self._after_forward, unit))
        module.register_full_backward_pre_hook(_calling(self._before_backward, unit))
        module.register_full_backward_hook(_calling(self._after_backward, unit))
        self._hook_gradients(unit)

    def _hook_gradients(self, unit: Unit) -> None:
        for parameter in unit.trained:
            parameter.register_post_accumulate_grad_hook(_accumulating(self._accumulated, unit))

    def _gather(self, unit: Unit) -> None:
        if unit.gathered is None:
            size = sum(p.numel() * p.element_size() for p in unit.parameters)
            unit.gathered = self.tracer.hold(size, "gathered", COMMUNICATION)

    def _release(self, unit: Unit) -> None:
        if unit.gathered is not None:
            self.tracer.drop(unit.gathered)
            unit.gathered = None

    def before_forward(self) -> None:
        self.forwarding = True
        self._gather(self.root)

    def before_backward(self) -> None:
        self.forwarding = False

    def _before_forward(self, unit: Unit) -> None:
        self._gather(unit)
        self._prefetch(unit)

    def _after_forward(self, unit: Unit) -> None:
        if self.forwarding and self.sharding.reshard and not self._reused_soon(unit):
            self._release(unit)

    def _before_backward(self, unit: Unit) -> None:
        if unit.layer is not None:
            self.tracer.enter_layer(unit.layer)  # before the tracer's own hook sees it
        self._gather(unit)
        self._prefetch(unit)

    def _after_backward(self, unit: Unit) -> None:
        self._release(unit)

    def _prefetch(self, unit: Unit) -> None:
        """The gather that overlaps this unit's work."""
        at = self.units.index(unit) + (1 if self.forwarding else -1)
        if not 0 <= at < len(self.units):
            return
        following = self.units[at]
        whole = (
            self.sharding.kind == "fsdp" or following.elements <= self.sharding.prefetch_elements
        )
        if whole:
            self._gather(following)

    def _reused_soon(self, unit: Unit) -> bool:
        """ZeRO-3 keeps what the backward needs again within max_reuse_distance elements."""
        if self.sharding.kind != "zero3":
            return False
        later = self.units[self.units.index(unit) :]
        return 2 * sum(item.elements for item in later) <= self.sharding.max_live_elements

    # ------------------------------------------------------------ gradients

    def _accumulated(self, parameter: torch.Tensor, unit: Unit) -> None:
        """When all gradients of a unit are complete, they are reduced into shards."""
        self.tracer.move([parameter.grad], "gradients")
        unit.pending.add(id(parameter))
        if self.sharding.kind == "zero3":
            self.reduce_into_partition(parameter)
        elif len(unit.pending) == len(unit.trained):
            self._reduce_scatter(unit)

    def _reduce_scatter(self, unit: Unit) -> None:
        """FSDP copies the unit's gradients into one flat input, in the reduction's dtype."""
        width = 4 if self.sharding.mixed_precision else unit.trained[0].element_size()
        size = sum(p.numel() for p in unit.trained) * width
        handle = self.tracer.hold(size, "communication", COMMUNICATION)
        for parameter in unit.trained:
            self.reduce_into_partition(parameter)
        self.tracer.drop(handle)
        unit.pending.clear()

    def after_backward(self, last: bool) -> None:
        for unit in (*self.units, self.root):
            unit.pending.clear()
            self._release(unit)


def _calling(function: Callable[[Unit], None], unit: Unit) -> Callable[..., None]:
    def hook(*_: Any) -> None:
        function(unit)

    return hook


def _accumulating(
    function: Callable[[torch.Tensor, Unit], None], unit: Unit
) -> Callable[[torch.Tensor], None]:
    def hook(parameter: torch.Tensor) -> None:
        function(parameter, unit)

    return hook
