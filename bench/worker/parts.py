"""A quantised model loaded layer by layer, each rank keeping its own part of every layer.

bitsandbytes can't quantise a shard, and transformers loads a quantised model whole on each rank:
Qwen3-235B in 4 bit is 120 GiB, more than a GPU holds.  So `loading` makes from_pretrained fill one
decoder layer at a time.  A mixture's experts are read and quantised by the rank that will hold them
and by no other; 4-bit linear layers by every rank, which keeps its part.  `whole_again` gives a
layer its whole shape for the moment in which FSDP2 or ZeRO-3 cuts it up.

Both cut along the first dimension into equal parts, rank after rank, and neither asks another rank
(DeepSpeed's zero.Init would: see strategies/zero3).  What doesn't divide evenly stays whole until
then, as do embeddings, head, norms and routers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers import core_model_loading, modeling_utils

from bench.worker import ranks
from bench.worker.experts4bit import Experts4bit, packing
from bench.worker.experts4bit.module import PROJECTIONS, STATS
from bench.worker.proof.weights import decoder_layers

WHOLE_SHAPE = "whole_shape"  # set on a parameter of which this rank keeps a part
PACKED = (*PROJECTIONS, *(name + STATS for name in PROJECTIONS))
Tensors = dict[str, Any]


@contextmanager
def loading() -> Iterator[None]:
    """While it lasts, from_pretrained of a quantised model leaves each rank with its own part."""
    original = core_model_loading.convert_and_load_state_dict_in_model

    def in_parts(model: Any, state_dict: Tensors, load_config: Any, **rest: Any) -> Any:
        return _load(original, model, state_dict, load_config, **rest)

    with (
        mock.patch.object(modeling_utils, "convert_and_load_state_dict_in_model", in_parts),
        # It would reserve the whole model's bytes on each GPU
        mock.patch.object(modeling_utils, "caching_allocator_warmup", lambda *_: None),
    ):
        yield


def _load(
    original: Callable[..., Any], model: Any, state_dict: Tensors, load_config: Any, **rest: Any
) -> Any:
    """transformers' own loading, once for each layer.  Raises RuntimeError where a tensor can't be
    converted."""
    layers = decoder_layers(model)
    places = {name: layers.index(m) for name, m in model.named_modules() if m in set(layers)}
    groups: dict[int, Tensors] = {-1: {}}
    for key, tensor in _own(model, state_dict, load_config):
        renamed, source = key
        layer = next((i for name, i in places.items() if renamed.startswith(f"{name}.")), -1)
        groups.setdefault(layer, {})[source] = tensor
    found = None
    for index, tensors in sorted(groups.items()):
        if index >= 0:
            _narrow(layers[index])
        info, offloaded = original(model, tensors, load_config, **rest)
        if info.conversion_errors:
            raise RuntimeError(next(iter(info.conversion_errors.values())))
        found = info if found is None else _both(found, info)
        if index >= 0:
            _keep_own(layers[index])
    return found, offloaded


def _both(first: Any, second: Any) -> Any:
    """Missing is what neither brought; `first` counts, as loaded 4-bit weights have more names."""
    first.missing_keys &= second.missing_keys
    first.unexpected_keys |= second.unexpected_keys
    first.mismatched_keys |= second.mismatched_keys
    first.error_msgs += second.error_msgs
    return first


# ---------------------------------------------------------------- which tensors are a rank's own


def _own(
    model: Any, state_dict: Tensors, load_config: Any
) -> Iterator[tuple[tuple[str, str], Any]]:
    """((name in the model, name in the checkpoint), tensor) of what this rank has to read."""
    mapping = load_config.weight_mapping or []
    renamings = [m for m in mapping if isinstance(m, core_model_loading.WeightRenaming)]
    converters = [m for m in mapping if isinstance(m, core_model_loading.WeightConverter)]
    names = model.state_dict()
    seen: Counter[Any] = Counter()
    for key in sorted(state_dict, key=core_model_loading.dot_natural_key):
        renamed, pattern = core_model_loading.rename_source_key(
            key, renamings, converters, model.base_model_prefix, names
        )
        if renamed not in names and key in names:
            renamed, pattern = key, None
        tensor = state_dict[key]
        experts = _experts(model, renamed)
        if experts is not None:
            first, last = own_rows(experts)
            if not _is_stack(tensor, experts):  # one tensor is one expert: they come in their order
                number = seen[renamed, pattern]
                seen[renamed, pattern] += 1
                if not first <= number < last:
                    continue
            else:
                tensor = _Rows(tensor, first, last)
        yield (renamed, key), tensor


def _experts(model: Any, name: str) -> int | None:
    """How many experts a tensor of this name is packed from; None where it isn't."""
    parent, _, last = name.rpartition(".")
    if last not in PACKED:
        return None
    module = model.get_submodule(parent)
    return module.full_shapes["down_proj"][0] if isinstance(module, Experts4bit) else None


def _is_stack(tensor: Any, experts: int) -> bool:
    shape = tensor.get_shape()
    # Codes and unquantised weights are 3-D; a 2-D uint8 tensor holds the scales of all experts
    return shape[0] == experts and (len(shape) == 3 or str(tensor.get_dtype()) == "U8")


def own_rows(count: int) -> tuple[int, int]:
    """The part [first, last) of `count` rows that this rank keeps; all where they don't divide."""
    if count % ranks.world():
        return 0, count
    share = count // ranks.world()
    return ranks.rank() * share, (ranks.rank() + 1) * share


class _Rows:
    """Some rows of a tensor that isn't read yet, itself not read yet."""

    def __init__(self, tensor: Any, first: int, last: int) -> None:
        self.tensor, self.first, self.last = tensor, first, last

    def get_shape(self) -> list[int]:
        return [self.last - self.first, *self.tensor.get_shape()[1:]]

    def get_dtype(self) -> Any:
        return self.tensor.get_dtype()

    def __getitem__(self, index: Any) -> torch.Tensor:
        rows: torch.Tensor = self.tensor[self.first : self.last]
        return rows[index]


# ---------------------------------------------------------------- a layer's parameters


def _narrow(layer: nn.Module) -> None:
    """Make the empty experts of a layer as few as this rank will fill."""
    for parameter, shape in _packed(layer):
        first, last = own_rows(shape[0])
        parameter.data = parameter.data[first:last]


def _keep_own(layer: nn.Module) -> None:
    """Keep this rank's part of what the layer holds in 4 bit, and note its whole shape."""
    for parameter, shape in _packed(layer):
        if parameter.shape != shape:
            setattr(parameter, WHOLE_SHAPE, shape)
    for parameter in layer.parameters():
        if type(parameter).__name__ != "Params4bit":
            continue
        first, last = own_rows(len(parameter))
        if last - first < len(parameter):
            setattr(parameter, WHOLE_SHAPE, parameter.shape)
            parameter.data = parameter.data[first:last].clone()


def _packed(layer: nn.Module) -> Iterator[tuple[Any, torch.Size]]:
    """(parameter, its whole shape) of all that holds experts."""
    for module in layer.modules():
        if isinstance(module, Experts4bit):
            for name in PROJECTIONS:
                codes, stats = packing.shapes(module.full_shapes[name], module.double_quant)
                yield getattr(module, name), torch.Size(codes)
                yield getattr(module, name + STATS), torch.Size(stats)


def whole_again(module: nn.Module) -> None:
    """Give every parameter its whole shape, zero where another rank has the values.

    To be cut up at once: until then the module computes nonsense.
    """
    for parameter in module.parameters():
        shape = getattr(parameter, WHOLE_SHAPE, None)
        if shape is None:
            continue
        first, last = own_rows(shape[0])
        data = parameter.data.new_zeros(shape)
        data[first:last] = parameter.data
        parameter.data = data
        delattr(parameter, WHOLE_SHAPE)
