"""GPTQ linear layers as auto_gptq trains them: unpacked to 16 bit in every forward.

auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py with trainable=True: the packed int32 weight is
shifted out, scaled and multiplied with torch ops, so a layer's 16-bit weight is alive, and saved
for the backward, wherever its activations are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.fit.request import Quantization

PACK = 8  # 4-bit values in an int32


class GPTQLinear(nn.Linear):
    """n/2 bytes of codes, and a 16-bit scale and a 4-bit zero a group.

    A subclass of nn.Linear only so that peft accepts it.
    """

    def __init__(self, linear: nn.Linear, group: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        groups, out = -(-linear.in_features // group), linear.out_features
        self.group = group
        empty = torch.empty
        self.register_buffer("qweight", empty(linear.in_features // PACK, out, dtype=torch.int32))
        self.register_buffer("qzeros", empty(groups, out // PACK, dtype=torch.int32))
        self.register_buffer("scales", empty(groups, out, dtype=torch.float16))
        self.register_buffer("g_idx", empty(linear.in_features, dtype=torch.int32))
        self.register_buffer("shifts", empty(1, PACK, 1, dtype=torch.int32))
        self.bias = linear.bias

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        tensor: Any = self.qweight
        return tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes: Any = self.qweight
        scales: Any = self.scales
        shifts: Any = self.shifts
        expanded = codes.unsqueeze(1).expand(-1, PACK, -1)
        weight = torch.bitwise_right_shift(expanded, shifts).to(torch.int8)
        weight = torch.bitwise_and(weight, 15).reshape(-1, self.group, self.out_features)
        weight = (scales.unsqueeze(1) * weight).reshape(self.in_features, self.out_features)
        out = torch.matmul(x.to(scales.dtype), weight).to(x.dtype)
        return out if self.bias is None else out + self.bias


def replace_with_gptq(model: nn.Module, quantization: Quantization) -> None:
    """Every nn.Linear of the decoder layers; embeddings and head stay 16-bit."""
    for name, module in list(model.named_modules()):
        if type(module) is not nn.Linear or any(part in name for part in quantization.skip):
            continue
        parent, _, last = name.rpartition(".")
        with torch.device("meta"):
            linear = GPTQLinear(module, quantization.group_size)
        setattr(model.get_submodule(parent), last, linear)
