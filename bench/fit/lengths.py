"""Reserved memory when every batch has another length, as with padded real data.

Blocks of one length don't fit the next, so the caching allocator grows: up to 1.5 times what the
longest batch alone reserves, though allocated memory hardly moves.  Most of it comes within some
hundred batches.  Tracing hundreds of lengths is not needed: the steps of two or three lengths have
the same events in the same order, and each event's size is a polynomial of the length.  So the
event list of any length is made from those, and a run of batches is replayed through the allocator.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from bench.fit.allocator import ALLOC, FREE, SMALL_MAX, CachingAllocator, Event

SAME, PREVIOUS, OLDER = 0, 1, 2


@dataclass
class Pattern:
    """One steady step: what happens, with frees pointing at allocations by position.

    An event is (kind, reference, where): for an allocation its own position; for a free the
    position of what it frees, in this step, in the one before, or an absolute id.
    """

    events: list[tuple[int, int, int]]
    sizes: list[int]
    streams: list[int]

    def same_shape(self, other: Pattern) -> bool:
        return self.events == other.events


def pattern_of(events: Sequence[Event], marks: Sequence[int]) -> Pattern:
    """The last step of a trace of at least three; `marks` are the positions where steps start."""
    previous = _positions(events[marks[-2] : marks[-1]])
    own: dict[int, int] = {}
    found = Pattern([], [], [])
    for kind, ident, size, stream in events[marks[-1] :]:
        if kind == ALLOC:
            own[ident] = len(own)
            found.events.append((ALLOC, own[ident], SAME))
            found.sizes.append(size)
            found.streams.append(stream)
        elif kind == FREE and ident in own:
            found.events.append((FREE, own[ident], SAME))
        elif kind == FREE and ident in previous:
            found.events.append((FREE, previous[ident], PREVIOUS))
        elif kind == FREE:
            found.events.append((FREE, ident, OLDER))
    return found


def large_blocks(pattern: Pattern, longest: Pattern) -> Pattern:
    """Without what comes from the small pool even at the longest: it adds next to nothing."""
    large = [size > SMALL_MAX for size in longest.sizes]
    kept = [event for event in pattern.events if event[2] == OLDER or large[event[1]]]
    return Pattern(kept, pattern.sizes, pattern.streams)


def _positions(events: Sequence[Event]) -> dict[int, int]:
    found: dict[int, int] = {}
    for kind, ident, _, _ in events:
        if kind == ALLOC:
            found[ident] = len(found)
    return found


@dataclass
class Anchor:
    length: int
    pattern: Pattern


def sizes_at(length: int, anchors: Sequence[Anchor]) -> list[int]:
    """Bytes of every allocation at `length`: Lagrange's polynomial through the anchors."""
    weights = []
    for one in anchors:
        others = [other.length for other in anchors if other is not one]
        weights.append(math.prod((length - o) / (one.length - o) for o in others))
    columns = zip(*(anchor.pattern.sizes for anchor in anchors), strict=True)
    return [
        max(1, round(sum(weight * size for weight, size in zip(weights, column, strict=True))))
        for column in columns
    ]


def replay(
    start: Sequence[Event],
    last_step: Sequence[Event],
    anchors: Sequence[Anchor],
    lengths: Sequence[int],
    allocator: CachingAllocator,
    empty_cache_every: int = 0,
) -> CachingAllocator:
    """Play `start` and `last_step` (together load and two steps), then one step a length."""
    allocator.run(start)
    allocator.run(last_step)
    base = 1 << 40
    pattern = anchors[-1].pattern
    count = len(pattern.sizes)
    known = {length: sizes_at(length, anchors) for length in set(lengths)}
    before = -1  # the step before the first one: its ids are those of `start`
    first = [ident for kind, ident, _, _ in last_step if kind == ALLOC]
    for number, length in enumerate(lengths):
        sizes = known[length]
        for kind, position, where in pattern.events:
            if kind == ALLOC:
                ident = base + number * count + position
                allocator.malloc(ident, sizes[position], pattern.streams[position])
            elif where == SAME:
                allocator.free(base + number * count + position)
            elif where == PREVIOUS:
                known_before = base + before * count + position
                allocator.free(first[position] if before < 0 else known_before)
        before = number
        if empty_cache_every and (number + 1) % empty_cache_every == 0:
            allocator.empty_cache()
    return allocator


def typical_lengths(longest: int, batches: int = 1000, seed: int = 0) -> tuple[int, ...]:
    """A stated assumption for instruction data whose lengths are unknown.

    Log-normal with sigma 0.7, cut at the cap, the longest reached.  The median is 0.35 of the cap,
    but 700 tokens at most: data don't get longer because a cap does.
    """
    generator = random.Random(seed)
    median = min(0.35 * longest, 700.0)
    drawn = (generator.lognormvariate(math.log(median), 0.7) for _ in range(batches - 1))
    lengths = [max(8, min(longest, int(tokens))) for tokens in drawn]
    lengths.insert(batches * 2 // 3, longest)
    return tuple(lengths)
