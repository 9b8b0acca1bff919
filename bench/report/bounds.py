"""What serving a planned cell costs at least: a bound, where nothing was measured.

It can settle one question before anything is rented: whether an API is cheaper in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from bench.report import answer, show
from bench.report.advice import Advice
from bench.report.compare import Panel
from bench.report.frames import frame
from bench.report.options import Option, options
from bench.report.serving import machine_hour
from bench.score import roofline, serving
from bench.score.serving import Load, Offer
from bench.spec import Serving


@dataclass(frozen=True)
class Bound:
    """The highest throughput that the target's peaks allow, priced."""

    option: Option
    load: Load
    offer: Offer
    asked: Serving

    @property
    def api_per_million(self) -> float | None:
        api = self.asked.api
        if api is None:
            return None
        return serving.api_per_million(api, self.load.prompt_tokens, self.load.new_tokens)

    @property
    def settled(self) -> bool:
        """Dearer than the API at the lowest price of the machine, with a perfect server."""
        api = self.api_per_million
        return api is not None and self.offer.per_million.low_usd > api


def of(option: Option) -> Bound | None:
    """None where it was measured, or where sizes, peaks or lengths aren't known."""
    cell = option.entry.cell
    if cell.serve is None or option.plan is None or option.served(cell.constraints):
        return None
    load = roofline.bound(cell, option.plan.weights_bytes)
    if load is None:
        return None
    offer = Offer(machine_hour(cell), load.tokens_per_s, cell.serve.utilization)
    return Bound(option, load, offer, cell.serve)


def every(panels: Sequence[Panel]) -> list[Bound]:
    return [bound for option in options(panels) if (bound := of(option))]


def sentences(advice: Advice) -> Iterator[str]:
    """Of each model, the cheapest option that fits, where an API is cheaper in any case."""
    if advice.measured:
        return
    told: set[str] = set()
    for option in advice.accepted:  # cheapest first
        bound = of(option) if option.entry.model not in told else None
        if bound is not None and len(told) < answer.NAMED:
            told.add(option.entry.model)
            if bound.settled:
                yield _sentence(bound)


def _sentence(bound: Bound) -> str:
    entry, usd, api = bound.option.entry, bound.offer.per_million, bound.asked.api
    assert api is not None  # else nothing is settled
    return (
        f"Serving {show.markdown(entry.label)} on {show.markdown(bound.option.target)} costs "
        f"**more than {show.markdown(api.provider)}, however good the server**: "
        f"[at least {show.usd(usd.low_usd)} per million tokens](#serving) at the lowest price of "
        f"the machine and {show.share(bound.offer.utilization)} utilisation, by the roofline, "
        f"against {show.usd(bound.api_per_million)}."
    )


def table(panels: Sequence[Panel]) -> pd.DataFrame:
    lines = []
    for bound in every(panels):
        usd, load = bound.offer.per_million, bound.load
        line = {
            "model": bound.option.entry.model,
            "method": bound.option.entry.method,
            "dataset": bound.option.panel.dataset,
            "target": bound.option.target,
            "at once": str(load.concurrency),
            "tokens, in + out": f"{load.prompt_tokens // load.concurrency} + "
            f"{load.new_tokens // load.concurrency}",
            "tokens/s, at most": show.number(load.tokens_per_s),
            "USD per M tokens, at least": show.number(usd.usd),
            "price range": show.between(usd.low_usd, usd.high_usd),
        }
        if bound.api_per_million is not None:
            line["API, USD per M"] = show.number(bound.api_per_million)
            line["API cheaper"] = "in any case" if bound.settled else "open"
        lines.append(line)
    return frame(lines)
