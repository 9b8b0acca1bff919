"""Records every birth and death of tensor memory while real code runs on meta (or CPU) tensors.

A dispatch mode sees each operator's outputs; a weak reference on each storage says when it dies.
The result is an event list: `allocator` replays it for reserved bytes, `ledger` for the peaks by
phase.  Each event knows the decoder layer that it belongs to, so that `depth` can repeat a layer.
The same tracer works on real CPU tensors, which is how tests check it.

What a dispatch trace cannot see: memory inside kernels (`kernels.workspace_bytes` adds it), and
allocations by libraries outside torch.  Both are explicit: `hold` and `drop`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.fit.allocator import ALLOC, EMPTY_CACHE, FREE, MOVE, PHASE, ROUND, Event
from bench.fit.ledger import Birth, Peak, peaks
from bench.fit.metacache import MetaCache

Workspace = Callable[[str, tuple[Any, ...]], int]
SHAPES = MetaCache()  # the same for every trace of a process
OUTSIDE = -1  # the layer of what belongs to none: embeddings, head, batch


@dataclass(slots=True)
class Entry:
    """A live storage."""

    ref: Any
    size: int
    category: str
    ident: int
    layer: int


class Tracer(TorchDispatchMode):
    """Counts storage bytes.  `granularity` is the rounding of one allocation, in bytes."""

    def __init__(
        self,
        workspace: Workspace | None = None,
        granularity: int = ROUND,
        device: str | None = "meta",
    ) -> None:
        super().__init__()
        self.device = device
        self.workspace = workspace
        self.granularity = granularity
        self.live: dict[int, Entry] = {}
        self.births: dict[int, Birth] = {}
        self.phases: list[str] = []
        self.categories: list[str] = []
        self.events: list[Event] = []
        self.layers: list[int] = []
        self.marks: list[int] = []
        self.observers: list[Callable[..., None]] = []
        self.category: str | None = None
        self.vocabulary: int | None = None  # tensors this wide are logits, theirs and their losses'
        self.host_bytes = 0
        self._call = SHAPES
        self._ignored: set[int] = set()
        self._names: dict[Any, str] = {}
        self._held: dict[int, int] = {}
        self._located: dict[int, int] = {}
        self._layer: int | None = None
        self._recent = OUTSIDE
        self._next = 0
        self._phase = ""
        self.start_phase("load")

    # ------------------------------------------------------------ what callers say

    @property
    def phase(self) -> str:
        return self._phase

    def start_phase(self, name: str) -> None:
        """Everything that happens from now on belongs to phase `name`, and to no layer."""
        self._phase = name
        if name not in self.phases:
            self.phases.append(name)
        self.leave_layers()
        self._emit((PHASE, self.phases.index(name), 0, 0), OUTSIDE)

    def mark_step(self) -> None:
        """A step starts here."""
        self.marks.append(len(self.events))

    def enter_layer(self, layer: int) -> None:
        """What happens from now on belongs to a decoder layer."""
        self._layer = layer

    def leave_layers(self) -> None:
        """Loops over all parameters follow: events belong to the layer of their tensors."""
        self._layer, self._recent = None, OUTSIDE

    def locate(self, tensors: Iterable[torch.Tensor], layer: int) -> None:
        """These are a decoder layer's own, or no layer's."""
        self._located.update((tensor.untyped_storage()._cdata, layer) for tensor in tensors)

    @contextmanager
    def new_tensors_are(self, category: str, like: torch.Tensor | None = None) -> Iterator[None]:
        """Storages born inside belong to `category`, and to the layer of `like`."""
        before, self.category = self.category, category
        if like is not None:
            self._recent = self._layer_of(like, self._recent)
        try:
            yield
        finally:
            self.category = before

    def hold(
        self, size: int, category: str, stream: int = 0, like: torch.Tensor | None = None
    ) -> int:
        """Allocate memory that no tensor of the trace stands for; returns its handle."""
        layer = self._where(None if like is None else self._layer_of(like, OUTSIDE))
        ident = self._born(self._round(size), category, category, layer, stream)
        self._held[ident] = layer
        return ident

    def drop(self, handle: int) -> None:
        """Free what `hold` returned."""
        self._emit((FREE, handle, 0, 0), self._where(self._held.pop(handle)))

    def empty_cache(self) -> None:
        self._emit((EMPTY_CACHE, 0, 0, 0), OUTSIDE)

    def track(self, tensor: torch.Tensor, category: str, like: torch.Tensor | None = None) -> None:
        """Count a tensor that existed before the trace, in the layer of `like` (or its own)."""
        self._record(tensor, category, category, self._layer_of(tensor if like is None else like))

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Don't count these or their views: something else stands for them (shards)."""
        self._ignored.update(tensor.untyped_storage()._cdata for tensor in tensors)

    def move(self, tensors: Iterable[torch.Tensor | None], category: str) -> None:
        """Give live tensors another category."""
        if category not in self.categories:
            self.categories.append(category)
        number = self.categories.index(category)
        for tensor in tensors:
            entry = None if tensor is None else self.live.get(tensor.untyped_storage()._cdata)
            if entry is not None and entry.category != category:
                entry.category = category
                self._emit((MOVE, entry.ident, number, 0), self._where(entry.layer))

    @property
    def peaks(self) -> dict[str, Peak]:
        return peaks(self.events, self.phases, self.births, self.categories)

    @property
    def peak(self) -> Peak:
        return max(self.peaks.values(), key=lambda peak: peak.allocated)

    # ------------------------------------------------------------ internals

    def _round(self, size: int) -> int:
        return (size + self.granularity - 1) // self.granularity * self.granularity

    def _emit(self, event: Event, layer: int) -> None:
        self.events.append(event)
        self.layers.append(layer)

    def _born(self, size: int, category: str, operator: str, layer: int, stream: int = 0) -> int:
        self._next += 1
        self.births[self._next] = (category, operator)
        self._emit((ALLOC, self._next, size, stream), layer)
        return self._next

    def _where(self, own: int | None) -> int:
        """The layer of an event: the running one; in loops over parameters that of its tensor;
        where that is unknown too (a step counter), that of the event before."""
        if self._layer is not None:
            return self._layer
        self._recent = self._recent if own is None else own
        return self._recent

    def _layer_of(self, tensor: torch.Tensor, default: Any = None) -> Any:
        key = tensor.untyped_storage()._cdata
        entry = self.live.get(key)
        return entry.layer if entry is not None else self._located.get(key, default)

    def _source_layer(self, args: tuple[Any, ...], index: int) -> int | None:
        """The layer of the tensors that output number `index` was computed from."""
        if self._layer is not None:
            return None
        for arg in args:
            one = arg[index] if isinstance(arg, (list, tuple)) and index < len(arg) else arg
            if isinstance(one, torch.Tensor):
                layer: int | None = self._layer_of(one)
                if layer is not None:
                    return layer
        return None

    def _is_logits(self, tensor: torch.Tensor) -> bool:
        """Something a token for each word of the vocabulary, not a weight or its gradient."""
        wide = self.vocabulary is not None and self.category is None and tensor.dim() > 1
        return wide and tensor.shape[-1] == self.vocabulary

    def _record(
        self, tensor: torch.Tensor, category: str, operator: str, layer: int | None
    ) -> None:
        if self.device is not None and tensor.device.type != self.device:
            return  # optimizer step counters live on the CPU
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._ignored:
            return
        size = self._round(storage.nbytes())
        entry = self.live.get(key)
        if entry is not None and entry.ref() is not None:
            if entry.size != size:
                self._resize(entry, size, operator)
            return
        if entry is not None:
            self._forget(key, entry)
        where = self._where(layer)
        ident = self._born(size, category, operator, where)
        ref = weakref.ref(storage, partial(self._on_death, key))
        self.live[key] = Entry(ref, size, category, ident, where)

    def _on_death(self, key: int, dead: Any) -> None:
        entry = self.live.get(key)
        if entry is not None and entry.ref is dead:
            self._forget(key, entry)

    def _forget(self, key: int, entry: Entry) -> None:
        del self.live[key]
        self._emit((FREE, entry.ident, 0, 0), self._where(entry.layer))

    def _resize(self, entry: Entry, size: int, operator: str) -> None:
        layer = self._where(entry.layer)
        self._emit((FREE, entry.ident, 0, 0), layer)
        entry.ident = self._born(size, entry.category, operator, layer)
        entry.size = size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = self._call(func, args, kwargs or {})
        name = self._names.get(func) or self._names.setdefault(func, str(func))
        category = self.category or self._phase.rpartition("/")[2]
        leaves = (out,) if isinstance(out, torch.Tensor) else tree_leaves(out)
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                kind = "logits" if self._is_logits(leaf) else category
                self._record(leaf, kind, name, self._source_layer(args, index))
        extra = self.workspace(name, args) if self.workspace else 0
        if extra:
            layer = self._where(None)
            ident = self._born(extra, "workspace", name, layer)
            self._emit((FREE, ident, 0, 0), layer)
        for observe in self.observers:
            observe(func, args, kwargs or {}, out)
        return out
