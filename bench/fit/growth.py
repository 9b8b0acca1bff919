"""What varying batch lengths change: how much more the allocator reserves, and how long steps take.

Both from shallow models on one device.  The growth comes from the logits and from a few layers'
blocks; the ratio of two lengths' times is that of the model's operators.
"""

from __future__ import annotations

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

LAYERS = 8
ORDERS = 3  # how much it grows depends on the order: the median and the largest are reported
EMPTIED_EVERY = 10  # batches, where the variant with an emptied cache is asked


def growth(request: Request) -> Growth:
    """Reserved bytes that the request's lengths add to those of the longest batch alone."""
    shallow = _shallow(request, min(LAYERS, request.config["num_hidden_layers"]))
    shares = (4, 2, 1) if request.padded else (3, 1)
    traces = [_at(shallow, request.longest // share, steps=3) for share in shares]
    anchors = [
        lengths.Anchor(_tokens(request.longest // share), lengths.pattern_of(t.events, t.marks))
        for share, t in zip(shares, traces, strict=True)
    ]
    if not all(anchor.pattern.same_shape(anchors[0].pattern) for anchor in anchors):
        return Growth(notes=["lengths change the order of events: only the longest was replayed"])
    alone = CachingAllocator(expandable=request.expandable_segments)
    fixed = alone.run(traces[-1].events).max_reserved

    def added(
        order: Sequence[int], expandable: bool = request.expandable_segments,
        empty_every: int = request.empty_cache_every,
    ) -> int:  # fmt: skip
        return max(0, _reserved(traces[0], anchors, order, expandable, empty_every) - fixed)

    orders = [_shuffled(request.lengths, seed) for seed in range(ORDERS)]
    return Growth(
        by_order=sorted(added(order) for order in orders),
        bucketed_bytes=added(sorted(request.lengths, reverse=True)),
        emptied_bytes=added(orders[0], empty_every=EMPTIED_EVERY),
        expandable_bytes=added(orders[0], expandable=True),
    )


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
    return trace_request(request, _tokens(length), steps=steps)


def _tokens(length: int) -> int:
    return max(16, length)


def _shuffled(batches: Sequence[int], seed: int) -> list[int]:
    order = list(batches)
    random.Random(seed).shuffle(order)
    return order


def _reserved(
    start: Trace,
    anchors: list[lengths.Anchor],
    order: Sequence[int],
    expandable: bool,
    empty_every: int,
) -> int:
    """Peak of a run over batches of these lengths."""
    first, last = start.marks[1], start.marks[2]
    allocator = CachingAllocator(expandable=expandable)
    steps = start.events[:first], start.events[first:last]
    return lengths.replay(*steps, anchors, order, allocator, empty_every).max_reserved


def _shallow(request: Request, layers: int) -> Request:
    """The same step with fewer layers, one micro-batch an update, on one device."""
    config = depth.shallow_config(request.config, layers)
    one = {"accumulation": 1, "sharding": Sharding(), "lengths": (), "evaluates": False}
    return request.model_copy(update={"config": config, **one})
