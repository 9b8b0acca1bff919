"""litgpt's module tree (github.com/Lightning-AI/litgpt, litgpt/model.py and lora.py), for its rows.

Its published memory tables are measured on its own modules: fused query-key-value, LoRA deltas
zero-padded into the fused projection, expanded grouped keys and values, no padding mask, a head
that can be applied to chunks.  Written from its sources of 2023-10 to 2024-10, on meta.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bench.fit.request import Adapter

LLAMA_LIKE = ("llama", "mistral", "gemma", "gemma2", "qwen2", "qwen3", "phi3")


@dataclass(frozen=True)
class Shape:
    """litgpt.Config's fields that matter here."""

    width: int
    layers: int
    heads: int
    groups: int
    head_size: int
    inner: int
    vocabulary: int
    family: str
    bias: bool
    parallel: bool
    shared_norm: bool
    rotary: int
    softcap: float | None
    gemma: bool = field(default=False)

    @property
    def fused(self) -> int:
        return (self.heads + 2 * self.groups) * self.head_size


def shape_of(config: dict[str, Any]) -> Shape:
    """config.json → litgpt's view of the same model."""
    family = config["model_type"]
    heads = config["num_attention_heads"]
    width = config["hidden_size"]
    head_size = config.get("head_dim") or width // heads
    share = config.get("partial_rotary_factor") or config.get("rotary_pct") or 1.0
    return Shape(
        width=width,
        layers=config["num_hidden_layers"],
        heads=heads,
        groups=_groups(config),
        head_size=head_size,
        inner=config.get("intermediate_size") or 4 * width,
        vocabulary=config["vocab_size"],
        family=family,
        bias=family in ("phi", "gpt_neox"),
        parallel=family in ("phi", "gpt_neox", "falcon"),
        shared_norm=family == "phi" or (family == "falcon" and _groups(config) == 1),
        rotary=int(head_size * share),
        softcap=50.0 if family == "gemma2" else None,
        gemma=family in ("gemma", "gemma2"),
    )


def _groups(config: dict[str, Any]) -> int:
    if config["model_type"] == "falcon":
        if config.get("new_decoder_architecture"):
            return int(config.get("num_kv_heads") or config["num_attention_heads"])
        return 1 if config.get("multi_query", True) else int(config["num_attention_heads"])
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.float()
        x = x * torch.rsqrt(torch.mean(x * x, dim=-1, keepdim=True) + 1e-5)
        return x.to(dtype) * self.weight


def _norm(shape: Shape) -> nn.Module:
    return RMSNorm(shape.width) if shape.family in LLAMA_LIKE else nn.LayerNorm(shape.width)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return ((x * cos) + (rotated * sin)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attn: nn.Module = nn.Linear(shape.width, shape.fused, bias=shape.bias)
        self.proj: nn.Module = nn.Linear(shape.heads * shape.head_size, shape.width, shape.bias)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        shape, (batch, length, _) = self.shape, x.shape
        q, k, v = self._split(self.attn(x))
        q, k = (self._rotate(tensor, cos, sin) for tensor in (q, k))
        y = self._attend(q, k, v).transpose(1, 2)
        out: torch.Tensor = self.proj(y.reshape(batch, length, shape.heads * shape.head_size))
        return out

    def _split(self, qkv: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shape, (batch, length, _) = self.shape, qkv.shape
        per_group = shape.heads // shape.groups
        qkv = qkv.view(batch, length, shape.groups, per_group + 2, shape.head_size)
        q, k, v = qkv.permute(0, 2, 3, 1, 4).split((per_group, 1, 1), dim=2)
        if shape.groups not in (shape.heads, 1):
            size = (batch, shape.groups, per_group, length, shape.head_size)
            k, v = k.expand(size), v.expand(size)
        final = (batch, -1, length, shape.head_size)
        return q.reshape(final), k.reshape(final), v.reshape(final)

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        rotary = self.shape.rotary
        return torch.cat((rope(x[..., :rotary], cos, sin), x[..., rotary:]), dim=-1)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.shape.softcap is None:
            if k.shape[1] != q.shape[1]:  # one shared head broadcasts over all
                k, v = k.expand_as(q), v.expand_as(q)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.mT * self.shape.head_size**-0.5
        scores = torch.tanh(scores / self.shape.softcap) * self.shape.softcap
        mask = torch.ones(q.shape[2], q.shape[2], dtype=q.dtype, device=q.device).triu(1)
        scores = scores + mask.masked_fill(mask.bool(), torch.finfo(q.dtype).min)
        return F.softmax(scores, dim=-1, dtype=torch.float).to(q.dtype) @ v


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gated, self.gemma = shape.family in LLAMA_LIKE, shape.gemma
        if self.gated:
            self.fc_1: nn.Module = nn.Linear(shape.width, shape.inner, bias=False)
            self.fc_2: nn.Module = nn.Linear(shape.width, shape.inner, bias=False)
        else:
            self.fc: nn.Module = nn.Linear(shape.width, shape.inner, bias=shape.bias)
        self.proj: nn.Module = nn.Linear(shape.inner, shape.width, bias=shape.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gated:
            gate, up = self.fc_1(x), self.fc_2(x)
            inner = (F.gelu(gate, approximate="tanh") if self.gemma else F.silu(gate)) * up
        else:
            inner = F.gelu(self.fc(x))
        out: torch.Tensor = self.proj(inner)
        return out


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.norm_1 = _norm(shape)
        self.attn = Attention(shape)
        self.norm_2 = None if shape.shared_norm else _norm(shape)
        self.post_1 = _norm(shape) if shape.family == "gemma2" else nn.Identity()
        self.post_2 = _norm(shape) if shape.family == "gemma2" else nn.Identity()
        self.mlp = MLP(shape)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        normed = self.norm_1(x)
        attended = self.post_1(self.attn(normed, cos, sin))
        if self.shape.parallel:
            second = normed if self.norm_2 is None else self.norm_2(x)
            out: torch.Tensor = self.mlp(second) + attended + x
            return out
        x = attended + x
        assert self.norm_2 is not None
        out = self.post_2(self.mlp(self.norm_2(x))) + x
        return out


class GPT(nn.Module):
    """Called with (ids, chunk): logits, or the list of logits of chunks of `chunk` tokens."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        self.wte = nn.Embedding(shape.vocabulary, shape.width)
        self.h = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.ln_f = _norm(shape)
        self.lm_head: nn.Module = nn.Linear(
            shape.width, shape.vocabulary, bias=shape.family == "phi"
        )
        self.to(dtype)

    def forward(self, ids: torch.Tensor, chunk: int = 0) -> Any:
        x = self.wte(ids)
        cos = torch.empty(ids.shape[1], self.shape.rotary, dtype=x.dtype, device=x.device)
        sin = torch.empty_like(cos)
        if self.shape.gemma:
            x = x * self.shape.width**0.5
        for block in self.h:
            x = block(x, cos, sin)
        x = self.ln_f(x)
        if chunk:
            return [self._head(part) for part in x.split(chunk, dim=1)]
        return self._head(x)

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(x)
        return torch.tanh(logits / 30.0) * 30.0 if self.shape.softcap else logits


# ---------------------------------------------------------------- LoRA


class LoRALinear(nn.Module):
    def __init__(self, linear: Any, adapter: Adapter) -> None:
        super().__init__()
        self.linear = linear
        self.lora_dropout = nn.Dropout(adapter.dropout) if adapter.dropout else nn.Identity()
        self.lora_A = nn.Parameter(torch.empty(adapter.rank, linear.in_features))
        self.lora_B = nn.Parameter(torch.empty(linear.out_features, adapter.rank))
        self.scaling = adapter.alpha / adapter.rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x)
        delta = self.lora_dropout(x) @ self.lora_A.mT @ self.lora_B.mT
        return out + delta * self.scaling


class LoRAQKV(nn.Module):
    """LoRA on parts of the fused projection: one A for all, a grouped B, zero-padded result."""

    def __init__(self, linear: Any, shape: Shape, adapter: Adapter, parts: tuple[str, ...]) -> None:
        super().__init__()
        sizes = {"q": shape.heads * shape.head_size, "k": shape.groups * shape.head_size}
        sizes["v"] = sizes["k"]
        self.linear, self.sizes = linear, [sizes[part] for part in parts]
        self.rank, self.scaling = adapter.rank, adapter.alpha / adapter.rank
        self.lora_dropout = nn.Dropout(adapter.dropout) if adapter.dropout else nn.Identity()
        self.lora_A = nn.Parameter(torch.empty(adapter.rank * len(parts), linear.in_features))
        self.lora_B = nn.Parameter(torch.empty(sum(self.sizes), adapter.rank))
        self.same = len(set(sizes.values())) == 1
        self.all = len(parts) == len(sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x)
        after_a = F.linear(self.lora_dropout(x), self.lora_A).transpose(-2, -1)
        delta = self._conv(after_a).transpose(-2, -1)
        if not self.all:
            delta = self._zero_pad(delta)
        return out + delta * self.scaling

    def _conv(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.lora_B.unsqueeze(-1)
        if self.same:
            return F.conv1d(x, weight, groups=len(self.sizes))
        parts = zip(x.chunk(len(self.sizes), dim=1), weight.split(self.sizes), strict=True)
        return torch.cat([F.conv1d(part, piece) for part, piece in parts], dim=1)

    def _zero_pad(self, x: torch.Tensor) -> torch.Tensor:
        result = x.new_zeros(x.shape[0] * x.shape[1], self.linear.out_features)
        index = torch.zeros(x.shape[-1], dtype=torch.long, device=x.device)
        result = result.index_copy(1, index, x.reshape(-1, x.shape[-1]))
        return result.view(*x.shape[:-1], -1)


_ROLES = {"o": "proj", "gate": "mlp", "up": "mlp", "down": "mlp", "lm_head": "head"}


def add_lora(model: GPT, adapter: Adapter, dtype: torch.dtype) -> GPT:
    """Wrap what the adapter's target roles (q, k, v, o, up, …) name; freeze the rest."""
    model.requires_grad_(False)
    roles = set(adapter.target_modules)
    parts = tuple(part for part in ("q", "k", "v") if part in roles)
    others = {_ROLES[role] for role in roles if role in _ROLES}
    with torch.device("meta"):
        for block in model.h:
            _adapt_block(block, model.shape, adapter, parts, others)
        if "head" in others:
            model.lm_head = LoRALinear(model.lm_head, adapter)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.to(dtype)
    return model


def _adapt_block(
    block: Any, shape: Shape, adapter: Adapter, parts: tuple[str, ...], others: set[str]
) -> None:
    if parts:
        block.attn.attn = LoRAQKV(block.attn.attn, shape, adapter, parts)
    if "proj" in others:
        block.attn.proj = LoRALinear(block.attn.proj, adapter)
    if "mlp" in others:
        for name in ("fc", "fc_1", "fc_2", "proj"):
            if hasattr(block.mlp, name):
                setattr(block.mlp, name, LoRALinear(getattr(block.mlp, name), adapter))


def build_litgpt(config: dict[str, Any], dtype: torch.dtype) -> GPT:
    """The tree on meta, not adapted."""
    with torch.device("meta"):
        return GPT(shape_of(config), dtype)
