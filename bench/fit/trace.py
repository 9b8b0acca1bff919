"""Records every birth and death of tensor memory while real code runs on meta (or CPU) tensors.

A dispatch mode sees each operator's outputs; a weak reference on each storage says when it dies.
The result is an event list for `allocator`, plus peaks by phase with the categories alive then.
The same tracer works on real CPU tensors, which is how tests check it.

What a dispatch trace cannot see: memory inside kernels (`kernels.workspace_bytes` adds it), and
allocations by libraries outside torch.  Both are explicit: `hold` and `drop`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.fit.allocator import ALLOC, EMPTY_CACHE, FREE, PHASE, ROUND, Event
from bench.fit.metacache import MetaCache

Workspace = Callable[[str, tuple[Any, ...]], int]


@dataclass(slots=True)
class Entry:
    """A live storage."""

    ref: Any
    size: int
    category: str
    ident: int


@dataclass
class Peak:
    """Largest allocated bytes of a phase, and what was alive then."""

    allocated: int = 0
    operator: str = ""
    categories: dict[str, int] = field(default_factory=dict)


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
        self.allocated = 0
        self.categories: dict[str, int] = {}
        self.peaks: dict[str, Peak] = {}
        self.phases: list[str] = []
        self.events: list[Event] = []
        self.marks: list[int] = []
        self.observers: list[Callable[..., None]] = []
        self.category: str | None = None
        self.host_bytes = 0
        self._call = MetaCache()
        self._ignored: set[int] = set()
        self._names: dict[Any, str] = {}
        self._held: dict[int, tuple[int, str]] = {}
        self._next = 0
        self._phase = ""
        self.start_phase("load")

    # ------------------------------------------------------------ what callers say

    @property
    def phase(self) -> str:
        return self._phase

    def start_phase(self, name: str) -> None:
        """Everything that happens from now on belongs to phase `name`."""
        self._phase = name
        if name not in self.phases:
            self.phases.append(name)
        self.events.append((PHASE, self.phases.index(name), 0, 0))
        self._note_peak(0, "start")

    def mark_step(self) -> None:
        """A step starts here."""
        self.marks.append(len(self.events))

    @contextmanager
    def new_tensors_are(self, category: str) -> Iterator[None]:
        """Storages born inside belong to `category`."""
        before, self.category = self.category, category
        try:
            yield
        finally:
            self.category = before

    def hold(self, size: int, category: str, stream: int = 0) -> int:
        """Allocate memory that no tensor of the trace stands for; returns its handle."""
        self._next += 1
        size = self._round(size)
        self._held[self._next] = (size, category)
        self.events.append((ALLOC, self._next, size, stream))
        self._add(size, category)
        self._note_peak(0, category)
        return self._next

    def drop(self, handle: int) -> None:
        """Free what `hold` returned."""
        size, category = self._held.pop(handle)
        self.events.append((FREE, handle, 0, 0))
        self._add(-size, category)

    def empty_cache(self) -> None:
        self.events.append((EMPTY_CACHE, 0, 0, 0))

    def track(self, tensor: torch.Tensor, category: str) -> None:
        """Count a tensor that existed before the trace."""
        self._record(tensor, category)
        self._note_peak(0, category)

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Don't count these or their views: something else stands for them (shards)."""
        self._ignored.update(tensor.untyped_storage()._cdata for tensor in tensors)

    def move(self, tensors: Iterable[torch.Tensor | None], category: str) -> None:
        """Give live tensors another category."""
        for tensor in tensors:
            entry = None if tensor is None else self.live.get(tensor.untyped_storage()._cdata)
            if entry is not None and entry.category != category:
                self._shift(entry, category)

    @property
    def peak(self) -> Peak:
        return max(self.peaks.values(), key=lambda peak: peak.allocated)

    # ------------------------------------------------------------ internals

    def _round(self, size: int) -> int:
        return (size + self.granularity - 1) // self.granularity * self.granularity

    def _add(self, size: int, category: str) -> None:
        self.allocated += size
        self.categories[category] = self.categories.get(category, 0) + size

    def _shift(self, entry: Entry, category: str) -> None:
        self.categories[entry.category] -= entry.size
        self.categories[category] = self.categories.get(category, 0) + entry.size
        entry.category = category

    def _record(self, tensor: torch.Tensor, category: str) -> None:
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
                self._resize(entry, size)
            return
        if entry is not None:
            self._forget(key, entry)
        self._next += 1
        ref = weakref.ref(storage, partial(self._on_death, key))
        self.live[key] = Entry(ref, size, category, self._next)
        self.events.append((ALLOC, self._next, size, 0))
        self._add(size, category)

    def _on_death(self, key: int, dead: Any) -> None:
        entry = self.live.get(key)
        if entry is not None and entry.ref is dead:
            self._forget(key, entry)

    def _forget(self, key: int, entry: Entry) -> None:
        del self.live[key]
        self.events.append((FREE, entry.ident, 0, 0))
        self._add(-entry.size, entry.category)

    def _resize(self, entry: Entry, size: int) -> None:
        self._next += 1
        self.events.append((FREE, entry.ident, 0, 0))
        self.events.append((ALLOC, self._next, size, 0))
        self._add(size - entry.size, entry.category)
        entry.ident, entry.size = self._next, size

    def _note_peak(self, extra: int, operator: str) -> None:
        now = self.allocated + extra
        peak = self.peaks.setdefault(self._phase, Peak())
        if now > peak.allocated:
            peak.allocated, peak.operator = now, operator
            peak.categories = dict(self.categories)
            if extra:
                peak.categories["workspace"] = peak.categories.get("workspace", 0) + extra

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = self._call(func, args, kwargs or {})
        name = self._names.get(func) or self._names.setdefault(func, str(func))
        category = self.category or self._phase.rpartition("/")[2]
        for leaf in (out,) if isinstance(out, torch.Tensor) else tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._record(leaf, category)
        extra = self.workspace(name, args) if self.workspace else 0
        if extra:
            self._next += 1
            self.events += [(ALLOC, self._next, extra, 0), (FREE, self._next, 0, 0)]
        self._note_peak(extra, name)
        for observe in self.observers:
            observe(func, args, kwargs or {}, out)
        return out
