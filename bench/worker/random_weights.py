"""`weights: random`: a model at its real shapes without a download, made tensor by tensor.

Every tensor is a stand-in that makes its values when the loader asks for them, or for a slice of
them.  So the ordinary loading runs (placement, sharding, quantisation on the fly), and memory never
holds more of the unquantised model than one tensor.  Values depend on the seed and on the tensor's
name alone: all ranks, and any sharding, see the same model.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bench.spec import ModelSpec, RandomWeights

# A prime number of values: rows of any length start at another place of the pool, so no two rows
# of a tensor are equal until it has more of them than this.
POOL = 16_777_213
DTYPE = torch.bfloat16


def config_of(model: ModelSpec) -> Any:
    """transformers' configuration of the model; a multimodal one's text tower."""
    from transformers import AutoConfig

    rest = {name: value for name, value in model.config.items() if name != "model_type"}
    return AutoConfig.for_model(model.config["model_type"], **rest).get_text_config()


def load(model: ModelSpec, **arguments: Any) -> Any:
    """What `AutoModelForCausalLM.from_pretrained(…, **arguments)` would give."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    arguments.pop("revision", None)
    config = config_of(model)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    tensors = stand_ins(model, config)
    return kind.from_pretrained(None, config=config, state_dict=tensors, **arguments)


def stand_ins(model: ModelSpec, config: Any) -> dict[str, RandomTensor]:
    """Name → stand-in of every weight of the model."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    assert isinstance(model.weights, RandomWeights)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with torch.device("meta"):
        skeleton = kind(config)  # from_config would partition it under ZeRO-3
    tied = _tied(skeleton)
    buffers = {name for name, _ in skeleton.named_buffers()}
    std = float(getattr(config, "initializer_range", None) or 0.02)
    return {
        name: RandomTensor(
            tuple(tensor.shape), _scale(name, tensor, buffers, std), _offset(model.weights, name)
        )
        for name, tensor in skeleton.state_dict().items()
        if name not in tied
    }


def _tied(skeleton: Any) -> set[str]:
    if not getattr(skeleton.config, "tie_word_embeddings", False):
        return set()
    keys = getattr(skeleton, "_tied_weights_keys", None) or {}
    return set(keys if isinstance(keys, Mapping) else ())


def _scale(name: str, tensor: torch.Tensor, buffers: set[str], std: float) -> float | None:
    """Standard deviation; None for the ones of a norm, 0 for biases and buffers."""
    if name in buffers or name.endswith("bias"):
        return 0.0
    return None if tensor.ndim == 1 and name.endswith("weight") else std


def _offset(weights: RandomWeights, name: str) -> int:
    digest = hashlib.sha256(f"{weights.seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % POOL


@functools.cache
def _pool() -> torch.Tensor:
    """Standard normal values that all tensors are cut from (32 MiB)."""
    return torch.randn(POOL, generator=torch.Generator().manual_seed(0)).to(DTYPE)


class RandomTensor:
    """One tensor to be, with the interface of a safetensors slice."""

    def __init__(self, shape: tuple[int, ...], std: float | None, offset: int) -> None:
        self.shape, self.std, self.offset = shape, std, offset

    def get_shape(self) -> list[int]:
        return list(self.shape)

    def get_dtype(self) -> str:
        return "BF16"

    def __getitem__(self, index: Any) -> torch.Tensor:
        """A slice of the first dimension is made by itself; further indices select from it."""
        parts = index if isinstance(index, tuple) else (index,)
        first = parts[0] if self.shape and isinstance(parts[0], slice) else slice(None)
        start, stop, step = first.indices(self.shape[0] if self.shape else 1)
        if step != 1:
            return self[...][index]
        rest = (slice(None), *parts[1:]) if isinstance(parts[0], slice) else parts
        return self._rows(start, max(start, stop))[rest]

    def _rows(self, start: int, stop: int) -> torch.Tensor:
        width = math.prod(self.shape[1:])
        shape = (stop - start, *self.shape[1:]) if self.shape else ()
        if self.std is None:
            return torch.ones(shape, dtype=DTYPE)
        if self.std == 0.0:
            return torch.zeros(shape, dtype=DTYPE)
        made = _stretch(self.offset + start * width, (stop - start) * width)
        return made.mul_(self.std).view(shape)


def _stretch(start: int, count: int) -> torch.Tensor:
    """`count` values of the endlessly repeated pool."""
    made = torch.empty(count, dtype=DTYPE)
    done = 0
    while done < count:
        place = (start + done) % POOL
        length = min(POOL - place, count - done)
        made[done : done + length] = _pool()[place : place + length]
        done += length
    return made


def write_tokenizer(model: ModelSpec, folder: Path) -> None:
    """The configuration and a tokenizer whose ids the model has embeddings for.

    Trained on the corpus that the weights name; without one, a token is a byte, and texts are about
    four times as long as a real tokenizer's.
    """
    from bench.worker import weights

    spec = model.weights
    assert isinstance(spec, RandomWeights)
    config = config_of(model)
    texts = weights.texts(model, spec.corpus, spec.columns) if spec.corpus else []
    size = min(spec.vocab_size, config.vocab_size) if spec.corpus else 0
    made = weights.train_tokenizer(texts, size)
    config.save_pretrained(folder)
    made.save_pretrained(folder)
