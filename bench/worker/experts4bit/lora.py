"""LoRA on 4-bit fused experts, with peft's own configuration, initialisation and file format.

peft's wrapper adds BA to the weight and parametrises the module with the sum, which needs the whole
unquantised stack.  This one hands the two factors to the experts, which apply them to the tokens:
W x + s B (A x).  Adapters load in stock peft on the unquantised model, and are merged there.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.lora.layer import ParamWrapper as PeftParamWrapper

from bench.worker.experts4bit.module import Experts4bit


class ParamWrapper(PeftParamWrapper):
    """One adapted projection.  peft recognises nested wrappers by this class's *name*."""

    num_experts: int

    def _get_in_out_features(self, module: Any) -> tuple[int, int]:
        """The unquantised shape: the packed one is half as wide, and empty under ZeRO-3."""
        experts: Any = self.get_base_layer()
        self.num_experts, out, into = experts.full_shapes[self.parameter_name]
        self._param_ndim = 3
        return out, into

    def get_delta_factors(self, adapter_name: str) -> Any:
        """(A [E, r, I], B [E, O, r], scaling), views of peft's flat weights."""
        down: Any = self.lora_A[adapter_name].weight
        up: Any = self.lora_B[adapter_name].weight
        return (
            down.reshape(self.num_experts, -1, down.shape[-1]),
            up.reshape(up.shape[0], -1, self.num_experts).permute(2, 0, 1),
            self.scaling[adapter_name],
        )

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._check_forward_args(x, *args, **kwargs)
        active = [] if self.disable_adapters else self.active_adapters
        factors = [self.get_delta_factors(name) for name in active if name in self.lora_A]
        experts: Any = self.get_base_layer()
        before = experts.factors.get(self.parameter_name, ())
        experts.factors[self.parameter_name] = tuple(factors)
        try:
            inner: Any = self.base_layer
            result: torch.Tensor = inner(x, *args, **kwargs)
            return result
        finally:
            experts.factors[self.parameter_name] = before

    def merge(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            "4-bit experts can't take an adapter up: load it with peft on the unquantised model "
            "and merge there"
        )


def register(config: LoraConfig) -> LoraConfig:
    """Make peft use this wrapper on 4-bit experts (and its own on everything else)."""
    config._register_custom_module({Experts4bit: ParamWrapper})
    return config
