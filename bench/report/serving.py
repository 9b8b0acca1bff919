"""serve.json and its events → what it takes and costs to answer.

Nothing here is required: a cell without a serve phase has None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.record import LoadEvent, RequestEvent, ServedVariant, ServeRecord, Status
from bench.score import serving
from bench.score.cost import Usd, rental
from bench.score.serving import Load, Offer, Sample
from bench.spec import Cell, Serving
from bench.store import Attempt


@dataclass(frozen=True)
class Variant:
    """One way of serving the cell, and what was measured at each concurrency."""

    record: ServedVariant
    loads: tuple[Load, ...] = ()

    @property
    def ok(self) -> bool:
        return self.record.status is Status.OK


@dataclass(frozen=True)
class Point:
    """A variant at one concurrency, priced on its target."""

    variant: ServedVariant
    load: Load
    offer: Offer
    asked: Serving

    @property
    def first_token_p95_ms(self) -> float | None:
        return 1000 * self.load.first_token.p95 if self.load.first_token else None

    @property
    def api_per_million(self) -> float | None:
        """The API's price of the same mix of input and output."""
        if self.asked.api is None:
            return None
        return serving.api_per_million(
            self.asked.api, self.load.prompt_tokens, self.load.new_tokens
        )

    def break_even(self, usd_per_hour: float) -> float | None:
        """Tokens a month from which own machines cost no more than the API; None: never."""
        api = self.api_per_million
        return None if api is None else self.offer.break_even(api, usd_per_hour)


@dataclass(frozen=True)
class Served:
    """What the serve phase of a cell found."""

    cell: Cell
    record: ServeRecord
    variants: tuple[Variant, ...]

    def points(self) -> list[Point]:
        """Every concurrency of every variant that was what it is called."""
        return [
            self.point_of(variant, load)
            for variant in self.variants
            if variant.ok
            for load in variant.loads
        ]

    def best(self, max_latency_ms: float | None = None) -> Point | None:
        """The highest throughput whose first token comes in time."""
        points = self.points()
        limit = None if max_latency_ms is None else max_latency_ms / 1000
        chosen = serving.best([point.load for point in points], limit)
        return next((point for point in points if point.load is chosen), None)

    def point_of(self, variant: Variant, load: Load) -> Point:
        asked = self.cell.serve or Serving()
        stored, price = variant.record.stored_bytes, asked.storage_usd_per_gb_month
        offer = Offer(
            usd_per_hour=machine_hour(self.cell),
            tokens_per_s=load.tokens_per_s,
            utilization=asked.utilization,
            storage_usd_per_month=(stored or 0) / 1e9 * (price or 0.0),
        )
        return Point(variant.record, load, offer, asked)


def machine_hour(cell: Cell) -> Usd:
    """The whole target for an hour; a CPU machine is rented whole, whoever shares it."""
    target = cell.target
    devices = target.devices if target.device == "cuda" else 1
    return rental(3600, target.price, devices=devices, nodes=target.nodes)


def of(cell: Cell, attempt: Attempt) -> Served | None:
    """What an attempt's serve phase left.  Raises UserError where a file was damaged."""
    record = attempt.serve
    if record is None:
        return None
    requests, loads = attempt.requests, attempt.loads
    variants = tuple(Variant(v, _loads(v.name, requests, loads)) for v in record.variants)
    return Served(cell, record, variants)


def _loads(
    variant: str, requests: Sequence[RequestEvent], loads: Sequence[LoadEvent]
) -> tuple[Load, ...]:
    """Warm-up isn't in them."""
    found = []
    for event in loads:
        if event.variant != variant:
            continue
        asked = [
            request
            for request in requests
            if request.counted
            and request.variant == variant
            and request.concurrency == event.concurrency
        ]
        samples = [sample for request in asked if (sample := _sample(request))]
        made = serving.load(event.concurrency, event.seconds, samples, len(asked) - len(samples))
        if made:
            found.append(made)
    return tuple(found)


def _sample(request: RequestEvent) -> Sample | None:
    if request.error or request.prompt_tokens is None or request.new_tokens is None:
        return None
    return Sample(request.first_token_s, request.total_s, request.prompt_tokens, request.new_tokens)
