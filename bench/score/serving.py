"""Samples of a serving test → percentiles, throughput, dollars per million tokens, break-even.

Money has two views.  A price per million tokens spreads the machine's hours over the tokens that it
answers at a stated utilisation.  A month's bill counts whole machines: the first token of a month
needs one, and each that is full needs another.

Tokens are input and output together, in the proportion of the rows that were asked; an API's two
prices are weighted by the same proportion.

    python -m pytest tests/score/test_serving.py
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.score.cost import Usd
from bench.spec import TokenPrice

HOURS_A_MONTH = 730.0  # 365 days ÷ 12


@dataclass(frozen=True)
class Sample:
    """One request that was answered.  Seconds since it was sent."""

    first_token_s: float | None
    total_s: float
    prompt_tokens: int
    new_tokens: int

    @property
    def per_token_s(self) -> float | None:
        """Mean seconds of a token after the first: what a reader waits for each."""
        if self.first_token_s is None or self.new_tokens < 2:
            return None
        return (self.total_s - self.first_token_s) / (self.new_tokens - 1)


@dataclass(frozen=True)
class Spread:
    """Percentiles of n values, linear between neighbours.  With few, p95 is nearly the largest."""

    n: int
    p50: float
    p95: float


@dataclass(frozen=True)
class Load:
    """What a server did with so many requests under way at once.

    `seconds`: first request sent to last one ended; its end, with fewer requests left than may be
    under way, is in it, so throughput is a little under what a steady stream would get.
    """

    concurrency: int
    seconds: float
    errors: int
    requests: int
    prompt_tokens: int
    new_tokens: int
    first_token: Spread | None
    per_token: Spread | None
    total: Spread | None

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.new_tokens

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def new_tokens_per_s(self) -> float:
        return self.new_tokens / self.seconds

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds


def spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    p50, p95 = np.percentile(known, [50, 95])
    return Spread(len(known), float(p50), float(p95))


def load(concurrency: int, seconds: float, samples: Sequence[Sample], errors: int) -> Load | None:
    """None where nothing was answered."""
    if not samples or seconds <= 0:
        return None
    return Load(
        concurrency=concurrency,
        seconds=seconds,
        errors=errors,
        requests=len(samples),
        prompt_tokens=sum(sample.prompt_tokens for sample in samples),
        new_tokens=sum(sample.new_tokens for sample in samples),
        first_token=spread(sample.first_token_s for sample in samples),
        per_token=spread(sample.per_token_s for sample in samples),
        total=spread(sample.total_s for sample in samples),
    )


def best(loads: Sequence[Load], max_first_token_s: float | None = None) -> Load | None:
    """The highest throughput of those whose first token comes in time (p95).

    Where none does, the quickest one: the limit is then missed by the least.  None of no loads.
    """
    timed = [one for one in loads if one.first_token]
    if max_first_token_s is not None and timed:
        quick = [one for one in timed if _first_p95(one) <= max_first_token_s]
        if not quick:
            return min(timed, key=_first_p95)
        loads = quick
    return max(loads, key=lambda one: one.tokens_per_s, default=None)


def _first_p95(one: Load) -> float:
    return one.first_token.p95 if one.first_token else math.inf


# ---------------------------------------------------------------- money


@dataclass(frozen=True)
class Offer:
    """A machine that answers: what it costs, what it can, and how much of that is used."""

    usd_per_hour: Usd  # the whole machine
    tokens_per_s: float
    utilization: float
    storage_usd_per_month: float = 0.0

    @property
    def capacity(self) -> float:
        """Tokens a month that one machine answers at its utilisation."""
        return self.tokens_per_s * 3600 * HOURS_A_MONTH * self.utilization

    @property
    def per_million(self) -> Usd:
        """Dollars per million tokens while the machine is used as stated; storage is not in it."""
        millions_per_hour = self.tokens_per_s * 3600 * self.utilization / 1e6
        return _scaled(self.usd_per_hour, 1 / millions_per_hour)

    def machines(self, tokens: float) -> int:
        """Whole machines for so many tokens a month; one even for none."""
        return max(1, math.ceil(tokens / self.capacity))

    def monthly(self, tokens: float) -> Usd:
        """A month's bill: whole machines that run all month, and storage."""
        rent = _scaled(self.usd_per_hour, HOURS_A_MONTH * self.machines(tokens))
        more = self.storage_usd_per_month
        return Usd(usd=rent.usd + more, low_usd=rent.low_usd + more, high_usd=rent.high_usd + more)

    def break_even(self, usd_per_million: float, machine_usd_per_hour: float) -> float | None:
        """Tokens a month from which own machines cost no more than an API; None: never.

        Just above a volume that fills its machines the next one may make them dearer again.
        """
        month = machine_usd_per_hour * HOURS_A_MONTH
        rate = usd_per_million / 1e6
        if rate <= 0:
            return None
        gain = rate * self.capacity - month  # of each machine that is full
        if gain <= 0:
            # Never by being full; storage makes it no better
            full = rate * self.capacity == month and self.storage_usd_per_month == 0
            return self.capacity if full else None
        count = max(1, math.ceil(self.storage_usd_per_month / gain))
        volume = (count * month + self.storage_usd_per_month) / rate
        return max(volume, (count - 1) * self.capacity)


def api_per_million(price: TokenPrice, prompt_tokens: int, new_tokens: int) -> float:
    """What an API asks for a million tokens of this mix of input and output."""
    asked = price.usd_per_million_input * prompt_tokens + price.usd_per_million_output * new_tokens
    return asked / (prompt_tokens + new_tokens)


def ownership(run: Usd, month: Usd, months: int) -> Usd:
    """One training run and some months of serving and storing."""
    return Usd(
        usd=run.usd + months * month.usd,
        low_usd=run.low_usd + months * month.low_usd,
        high_usd=run.high_usd + months * month.high_usd,
    )


def _scaled(cost: Usd, factor: float) -> Usd:
    return Usd(
        usd=cost.usd * factor, low_usd=cost.low_usd * factor, high_usd=cost.high_usd * factor
    )
