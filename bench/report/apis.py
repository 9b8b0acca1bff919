"""Models behind an API: what answered, what it used and cost, and what speaks against it.

Counted on the responses that predictions.jsonl holds, whole as they were received.  An API proves
less than weights do: the name that it gives itself, and the tokens that it bills.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bench.record import ApiPrediction, Prediction
from bench.report import show
from bench.report.frames import frame
from bench.spec import ModelSpec

if TYPE_CHECKING:
    from bench.report.rows import Row
    from bench.score.cost import Cost

REFUSED = {
    "content_filter": "refused by the server's filter",
    "context_length": "too long for the model",
}


@dataclass(frozen=True)
class Asked:
    """A cell's answers.  Tokens are None where one response reports no usage."""

    rows: int
    models: Mapping[str, int]  # the name that each response gives, and how many did
    fingerprints: Mapping[str, int]
    input_tokens: int | None
    output_tokens: int | None
    refused: Mapping[str, int]  # content_filter, context_length
    retries: int
    latency_s: tuple[float, float]  # median, 95th percentile

    def usd_a_token(self, cost: Cost | None) -> float | None:
        """Dollars of input and output alike, at the mix that these rows had."""
        if cost is None or not self.input_tokens or self.output_tokens is None:
            return None
        return cost.job.usd / (self.input_tokens + self.output_tokens)


def asked(predictions: Sequence[Prediction]) -> Asked | None:
    """None where no row was answered by an API."""
    found = [p for p in predictions if isinstance(p, ApiPrediction)]
    if not found:
        return None
    finishes = Counter(str(p.finish_reason) for p in found)
    latencies = np.percentile([p.latency_s for p in found], [50, 95])
    return Asked(
        rows=len(found),
        models=_said(found, "model"),
        fingerprints=_said(found, "system_fingerprint"),
        input_tokens=_sum([p.prompt_tokens for p in found]),
        output_tokens=_sum([p.new_tokens for p in found]),
        refused={name: finishes[name] for name in REFUSED if finishes[name]},
        retries=sum(p.retries for p in found),
        latency_s=(float(latencies[0]), float(latencies[1])),
    )


def _said(answers: Sequence[ApiPrediction], name: str) -> dict[str, int]:
    values = (answer.response.get(name) for answer in answers)
    return dict(sorted(Counter(str(value) for value in values if value).items()))


def _sum(tokens: Sequence[int | None]) -> int | None:
    known = [count for count in tokens if count is not None]
    return sum(known) if len(known) == len(tokens) else None


def is_asked_one(asked_for: str, reported: str) -> bool:
    """The same name, or a dated snapshot or revision of it: gpt-x-2026-01-31, org/model@main."""
    rest = reported.removeprefix(asked_for)
    return rest != reported and (not rest or rest[0] in "-@:")


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """One line a cell that an API answered."""
    return frame(_line(row, row.asked) for row in rows if row.asked)


def _line(row: Row, found: Asked) -> dict[str, str]:
    endpoint = row.cell.model.endpoint
    assert endpoint is not None  # it has answers of one
    usd = row.cost.job.usd if row.cost else None
    median, high = found.latency_s
    return {
        "cell": row.id,
        "asked for": show.plain(endpoint.model),
        "at": show.plain(endpoint.base_url),
        "answered": _counts(found.models),
        "fingerprint": _counts(found.fingerprints),
        "rows": show.count(found.rows),
        "input tokens": show.count(found.input_tokens),
        "output tokens": show.count(found.output_tokens),
        "USD": show.number(usd),
        "USD per 1,000 answers": show.number(None if usd is None else 1000 * usd / found.rows),
        "latency, s: median (p95)": f"{show.number(median)} ({show.number(high)})",
        "retries": show.count(found.retries),
        "without an answer": _counts({REFUSED[k]: n for k, n in found.refused.items()}),
    }


def _counts(found: Mapping[str, int]) -> str:
    """The name alone where there is one; else how many rows each."""
    if len(found) == 1 and found.keys().isdisjoint(REFUSED.values()):
        return show.plain(next(iter(found)))
    return "; ".join(f"{show.plain(name)}: {n}" for name, n in found.items())


def warnings(rows: Sequence[Row]) -> Iterator[str]:
    """What speaks against each cell that an API answered."""
    for row in rows:
        if row.asked and row.cell.model.endpoint:
            who = show.markdown(f"{row.cell.model.name} × {row.cell.method.name}")
            yield from _against(who, row.asked, row.cell.model.endpoint.model)


def _against(who: str, found: Asked, asked_for: str) -> Iterator[str]:
    others = [name for name in found.models if not is_asked_one(asked_for, name)]
    if others:
        names = show.markdown(show.listed(others))
        yield f"{who}: asked for {show.markdown(asked_for)}, but {names} answered."
    elif len(found.models) > 1 or len(found.fingerprints) > 1:
        yield (
            f"{who}: what answered changed between rows ({len(found.models)} names, "
            f"{len(found.fingerprints)} fingerprints), so its score is of a mixture."
        )
    for kind, count in found.refused.items():
        yield (
            f"{who}: {count} of {show.many(found.rows, 'row')} got no answer, {REFUSED[kind]}; "
            "they count as wrong."
        )
    if found.input_tokens is None or found.output_tokens is None:
        yield f"{who}: the server didn't report the tokens of every row, so its cost is unknown."


def price(model: ModelSpec) -> str:
    """A line for the footer; empty for a model with weights."""
    if model.endpoint is None:
        return ""
    found = model.endpoint.price
    name = show.markdown(model.name)
    if found is None:
        return f"Price of {name}: not given, so its cost is unknown."
    cached = found.usd_per_million_cached_input
    told = "" if cached is None else f", {show.usd(cached)} of cached input"
    return (
        f"Price of {name}: {show.usd(found.usd_per_million_input)} per million tokens of input, "
        f"{show.usd(found.usd_per_million_output)} of output{told}, "
        f"{show.markdown(found.provider)}, {show.markdown(found.date)}, "
        f"{show.source(found.source)}"
    )
