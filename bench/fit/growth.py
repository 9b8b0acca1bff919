"""What varying batch lengths change: how much more the allocator reserves, and how long steps take.

Both from shallow models on one device.  The growth comes from the logits' blocks and a layer's, so
that three layers show it, but it takes hundreds of batches until most of it is there; the ratio of
two lengths' times is that of the model's operators.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Sequence

from bench.fit import depth, lengths
from bench.fit.allocator import CachingAllocator
from bench.fit.costs import Cost
from bench.fit.memory import cost_rows
from bench.fit.request import Request, Sharding
from bench.fit.simulate import Trace, trace_request
from bench.plan import Growth, Pace

LAYERS = 3
ORDERS = 2  # how much it grows depends on the order
EMPTIED_EVERY = 10  # batches, where the variant with an emptied cache is asked


def growth(request: Request, remedies: bool = False) -> Growth:
    """Reserved bytes that the request's lengths add to those of the longest batch alone.

    With `remedies`, also what they add where batches are sorted, or the allocator set otherwise.
    """
    play = _Play(request)
    if not play.alike:
        return Growth(notes=["lengths change the order of events: only the longest was replayed"])
    orders = [_shuffled(request.lengths, seed) for seed in range(ORDERS)]
    found = Growth(by_order=sorted(play.added(order) for order in orders))
    if remedies:
        found.bucketed_bytes = play.added(sorted(request.lengths, reverse=True))
        found.emptied_bytes = play.added(orders[0], empty_every=EMPTIED_EVERY)
        found.expandable_bytes = play.added(orders[0], expandable=True)
    return found


class _Play:
    """Runs of batches of any lengths, made from traced steps of a few."""

    def __init__(self, request: Request) -> None:
        self.request = request
        shallow = _shallow(request, min(LAYERS, request.config["num_hidden_layers"]))
        shares = (4, 2, 1) if request.padded else (3, 1)
        traces = [_at(shallow, request.longest // share, steps=3) for share in shares]
        patterns = [lengths.pattern_of(trace.events, trace.marks) for trace in traces]
        self.alike = all(pattern.same_shape(patterns[0]) for pattern in patterns)
        large = [lengths.large_blocks(pattern, patterns[-1]) for pattern in patterns]
        self.anchors = [
            lengths.Anchor(_tokens(request.longest // share), pattern)
            for share, pattern in zip(shares, large, strict=True)
        ]
        self.first, self.longest = traces[0], traces[-1]

    def added(
        self, order: Sequence[int], expandable: bool | None = None, empty_every: int | None = None
    ) -> int:
        """Bytes that a run over batches of these lengths reserves beyond its longest batch."""
        request = self.request
        expandable = request.expandable_segments if expandable is None else expandable
        empty_every = request.empty_cache_every if empty_every is None else empty_every
        alone = CachingAllocator(expandable=expandable).run(self.longest.events)
        begun, steady = self.first.marks[1], self.first.marks[2]
        steps = self.first.events[:begun], self.first.events[begun:steady]
        allocator = CachingAllocator(expandable=expandable)
        played = lengths.replay(*steps, self.anchors, order, allocator, empty_every)
        return max(0, played.max_reserved - alone.max_reserved)


def pace(request: Request) -> Pace:
    """Operators of a micro-batch at the mean length of the batches and at the longest."""
    mean = _tokens(round(sum(request.lengths) / len(request.lengths)))
    return Pace(
        mean_costs=cost_rows(_micro_costs(request, mean)),
        longest_costs=cost_rows(_micro_costs(request, request.longest)),
    )


def _micro_costs(request: Request, length: int) -> Counter[Cost]:
    one, two = (_at(_shallow(request, layers), length, steps=2) for layers in (1, 2))
    more = request.config.get("num_hidden_layers", 1) - 1
    return depth.counts_at(one.costs.micro, two.costs.micro, more)


def _at(request: Request, length: int, steps: int) -> Trace:
    """Datasets that are as long at most ask for the same traces."""
    return _traced(request.model_dump_json(), _tokens(length), steps)


@functools.lru_cache(maxsize=16)
def _traced(request: str, length: int, steps: int) -> Trace:
    return trace_request(Request.model_validate_json(request), length, steps=steps)


def _tokens(length: int) -> int:
    return max(16, length)


def _shuffled(batches: Sequence[int], seed: int) -> list[int]:
    order = list(batches)
    random.Random(seed).shuffle(order)
    return order


def _shallow(request: Request, layers: int) -> Request:
    """The same step with fewer layers, one micro-batch an update, on one device."""
    config = depth.shallow_config(request.config, layers)
    one = {"accumulation": 1, "sharding": Sharding(), "evaluates": False}
    alike = {"lengths": (), "example_tokens": 0}  # whatever the data: a length is asked for
    return request.model_copy(update={"config": config, **one, **alike})
