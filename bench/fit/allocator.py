"""Replays allocations through a model of PyTorch's CUDA caching allocator: allocated → reserved.

Reserved is what the driver sees and what runs out.  The model follows
c10/cuda/CUDACachingAllocator.cpp (torch 2.13): sizes rounded to 512 B; blocks up to 1 MiB come
from 2 MiB segments, those under 10 MiB from 20 MiB segments, larger ones from segments rounded to
2 MiB; best fit, split when the rest is at least 512 B (small) or over 1 MiB (large), merge on free.
Blocks belong to the stream that allocated them.  `expandable_segments` replaces segments by one
growing range per pool, mapped in pages of 2 MiB (small) or 20 MiB (large).

When a request exceeds `capacity`, free segments are released and the request is tried again, as
the allocator does before it raises an out-of-memory error.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

KIB, MIB = 1 << 10, 1 << 20
ROUND = 512
SMALL_MAX = MIB
SMALL_SEGMENT = 2 * MIB
MEDIUM_MAX = 10 * MIB
MEDIUM_SEGMENT = 20 * MIB
LARGE_ROUND = 2 * MIB

ALLOC, FREE, EMPTY_CACHE, PHASE, MOVE = 1, 0, 2, 3, 4
Event = tuple[int, int, int, int]  # kind, id (or phase number), bytes (or category), stream


def round_block(size: int) -> int:
    """Bytes that the allocator hands out for a request of `size` bytes."""
    return max(ROUND, (size + ROUND - 1) // ROUND * ROUND)


def segment_size(size: int) -> int:
    """Bytes asked from the driver for a rounded request."""
    if size <= SMALL_MAX:
        return SMALL_SEGMENT
    if size < MEDIUM_MAX:
        return MEDIUM_SEGMENT
    return (size + LARGE_ROUND - 1) // LARGE_ROUND * LARGE_ROUND


@dataclass(slots=True)
class Block:
    size: int
    previous: int | None
    following: int | None
    free: bool
    pool: tuple[int, bool]


@dataclass
class CachingAllocator:
    """One device.  `capacity` is in bytes; None: unlimited."""

    capacity: int | None = None
    expandable: bool = False
    reserved: int = 0
    max_reserved: int = 0
    allocated: int = 0
    max_allocated: int = 0
    retries: int = 0
    out_of_memory: bool = False
    reserved_by_phase: dict[int, int] = field(default_factory=dict)
    _phase: int = 0
    _free: dict[tuple[int, bool], list[tuple[int, int]]] = field(default_factory=dict)
    _blocks: dict[int, Block] = field(default_factory=dict)
    _by_id: dict[int, int] = field(default_factory=dict)
    _next_address: int = 0
    _tops: dict[tuple[int, bool], int] = field(default_factory=dict)

    def run(self, events: Iterable[Event]) -> CachingAllocator:
        """Replay a trace."""
        for kind, ident, size, stream in events:
            if kind == ALLOC:
                self.malloc(ident, size, stream)
            elif kind == FREE:
                self.free(ident)
            elif kind == EMPTY_CACHE:
                self.empty_cache()
            elif kind == PHASE:
                self._phase = ident
                self._note_peak()
        return self

    def malloc(self, ident: int, size: int, stream: int = 0) -> None:
        if size % ROUND or not size:
            size = round_block(size)
        pool = (stream, size <= SMALL_MAX)
        address = self._take_free(pool, size)
        if address is None:
            address = self._grow(pool, size)
        self._split(address, size)
        block = self._blocks[address]
        block.free = False
        self._by_id[ident] = address
        self.allocated += block.size
        self.max_allocated = max(self.max_allocated, self.allocated)

    def free(self, ident: int) -> None:
        address = self._by_id.pop(ident, None)
        if address is None:
            return
        block = self._blocks[address]
        self.allocated -= block.size
        block.free = True
        self._merge(address)

    def empty_cache(self) -> None:
        """Return whole free segments to the driver."""
        for pool, entries in self._free.items():
            kept = []
            for size, address in entries:
                block = self._blocks[address]
                if block.previous is None and block.following is None and not self.expandable:
                    self.reserved -= size
                    del self._blocks[address]
                elif self.expandable and block.following is None:
                    kept.append(self._shrink(pool, address))
                else:
                    kept.append((size, address))
            self._free[pool] = sorted(entry for entry in kept if entry[0])

    # ------------------------------------------------------------ internals

    def _take_free(self, pool: tuple[int, bool], size: int) -> int | None:
        entries = self._free.get(pool)
        if not entries or entries[-1][0] < size:
            return None
        return entries.pop(bisect.bisect_left(entries, (size, -1)))[1]

    def _grow(self, pool: tuple[int, bool], size: int) -> int:
        need = self._expansion(pool, size) if self.expandable else segment_size(size)
        if self.capacity is not None and self.reserved + need > self.capacity:
            self.retries += 1
            self.empty_cache()
            self.out_of_memory |= self.reserved + need > self.capacity
        self.reserved += need
        self._note_peak()
        return self._extend(pool, need) if self.expandable else self._new_segment(pool, need)

    def _note_peak(self) -> None:
        self.max_reserved = max(self.max_reserved, self.reserved)
        peak = self.reserved_by_phase.get(self._phase, 0)
        self.reserved_by_phase[self._phase] = max(peak, self.reserved)

    def _new_segment(self, pool: tuple[int, bool], size: int) -> int:
        address = self._next_address
        self._next_address += size + (1 << 40)  # segments never merge
        self._blocks[address] = Block(size, None, None, True, pool)
        return address

    def _expansion(self, pool: tuple[int, bool], size: int) -> int:
        """Bytes to map so that the pool's last free block holds `size`."""
        page = SMALL_SEGMENT if pool[1] else MEDIUM_SEGMENT
        top = self._tops.get(pool)
        tail = self._blocks[top].size if top is not None and self._blocks[top].free else 0
        return (size - tail + page - 1) // page * page

    def _extend(self, pool: tuple[int, bool], need: int) -> int:
        top = self._tops.get(pool)
        if top is None:
            address = self._new_segment(pool, need)
        elif self._blocks[top].free:
            self._remove_free(top)
            self._blocks[top].size += need
            address = top
        else:
            address = top + self._blocks[top].size
            self._blocks[address] = Block(need, top, None, True, pool)
            self._blocks[top].following = address
        self._tops[pool] = address
        return address

    def _shrink(self, pool: tuple[int, bool], address: int) -> tuple[int, int]:
        page = SMALL_SEGMENT if pool[1] else MEDIUM_SEGMENT
        block = self._blocks[address]
        released = block.size // page * page
        self.reserved -= released
        block.size -= released
        if block.size == 0:
            del self._blocks[address]
            if block.previous is None:
                self._tops.pop(pool, None)
            else:
                self._blocks[block.previous].following = None
                self._tops[pool] = block.previous
        return (block.size, address)

    def _split(self, address: int, size: int) -> None:
        block = self._blocks[address]
        rest = block.size - size
        if rest < ROUND or not (rest > SMALL_MAX or block.pool[1] or self.expandable):
            return
        after = address + size
        self._blocks[after] = Block(rest, address, block.following, True, block.pool)
        if block.following is not None:
            self._blocks[block.following].previous = after
        elif self._tops.get(block.pool) == address:
            self._tops[block.pool] = after
        block.following, block.size = after, size
        bisect.insort(self._free.setdefault(block.pool, []), (rest, after))

    def _remove_free(self, address: int) -> None:
        block = self._blocks[address]
        entries = self._free[block.pool]
        at = bisect.bisect_left(entries, (block.size, address))
        if at < len(entries) and entries[at] == (block.size, address):
            entries.pop(at)

    def _merge(self, address: int) -> None:
        blocks = self._blocks
        block = blocks[address]
        if block.following is not None and blocks[block.following].free:
            self._remove_free(block.following)
            self._absorb(address, block.following)
        previous = block.previous
        if previous is not None and blocks[previous].free:
            self._remove_free(previous)
            self._absorb(previous, address)
            address, block = previous, blocks[previous]
        bisect.insort(self._free.setdefault(block.pool, []), (block.size, address))

    def _absorb(self, first: int, second: int) -> None:
        left, right = self._blocks[first], self._blocks.pop(second)
        left.size += right.size
        left.following = right.following
        if right.following is not None:
            self._blocks[right.following].previous = first
        elif self._tops.get(left.pool) == second:
            self._tops[left.pool] = first
