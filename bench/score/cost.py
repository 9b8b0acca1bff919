"""What a job costs, and which methods are worth it.

A rental bills wall time of every device, loading and evaluation included; the training part stands
apart so that methods can be compared.  An API bills tokens, as it counts them itself.

    python -m pytest tests/score/test_cost.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from bench.record import ApiPrediction
from bench.spec import Price, TokenPrice


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Usd(_Frozen):
    """Dollars at the price found, and at the lowest and highest price found."""

    usd: float
    low_usd: float
    high_usd: float


class Cost(_Frozen):
    """A job's cost; None where seconds or tokens are unknown, and of devices that nobody rents."""

    device_hours: float | None
    job: Usd
    train: Usd | None
    per_million_training_tokens: Usd | None


def rental(wall_s: float, price: Price, *, devices: int, nodes: int = 1) -> Usd:
    """Wall seconds ÷ 3600 × devices per node × nodes × price per device-hour."""
    device_hours = wall_s / 3600 * devices * nodes
    return Usd(
        usd=device_hours * price.usd_per_device_hour,
        low_usd=device_hours * price.low_usd,
        high_usd=device_hours * price.high_usd,
    )


def job_cost(
    phase_wall_s: Mapping[str, float],
    price: Price,
    *,
    devices: int,
    nodes: int = 1,
    train_s: float | None = None,
    tokens: int | None = None,
) -> Cost:
    """Cost of all phases.  `train_s` (steps only) and `tokens` (non-padding) price the training
    part; the price of a million tokens leaves loading and evaluation out."""
    wall_s = sum(phase_wall_s.values())
    train = None if train_s is None else rental(train_s, price, devices=devices, nodes=nodes)
    return Cost(
        device_hours=wall_s / 3600 * devices * nodes,
        job=rental(wall_s, price, devices=devices, nodes=nodes),
        train=train,
        per_million_training_tokens=_scaled(train, 1e6 / tokens) if train and tokens else None,
    )


def token_usd(
    price: TokenPrice, input_tokens: int, output_tokens: int, cached_tokens: int = 0
) -> float:
    """Dollars of one request; `cached_tokens` are those of the input that the server had cached."""
    cached = price.usd_per_million_cached_input
    whole, cached_usd = input_tokens, 0.0
    if cached is not None:
        whole, cached_usd = input_tokens - cached_tokens, cached_tokens * cached
    paid = whole * price.usd_per_million_input + output_tokens * price.usd_per_million_output
    return (paid + cached_usd) / 1e6


def answer_usd(price: TokenPrice, answered: ApiPrediction) -> float | None:
    """Dollars of one answer by the server's own usage; None where it reported none."""
    if answered.prompt_tokens is None or answered.new_tokens is None:
        return None
    usage = answered.response.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return token_usd(price, answered.prompt_tokens, answered.new_tokens, cached)


def api_cost(price: TokenPrice | None, answers: Sequence[ApiPrediction]) -> Cost | None:
    """All answers of a cell; None without a price, or where one answer's usage is unknown."""
    if price is None:
        return None
    each = [answer_usd(price, answered) for answered in answers]
    if any(usd is None for usd in each):
        return None
    usd = sum(usd for usd in each if usd is not None)
    job = Usd(usd=usd, low_usd=usd, high_usd=usd)
    return Cost(device_hours=None, job=job, train=None, per_million_training_tokens=None)


def _scaled(cost: Usd, factor: float) -> Usd:
    return Usd(
        usd=cost.usd * factor, low_usd=cost.low_usd * factor, high_usd=cost.high_usd * factor
    )


def pareto_frontier(points: Sequence[tuple[str, float | None, float | None]]) -> list[str]:
    """Names of (name, cost, score) that no other point beats: best score first, ties by name.

    Beaten: another point is no dearer and no worse, and better in one of the two.  A point without
    cost or score is never on the frontier; equal points are both kept.
    """
    known = [
        (name, cost, score)
        for name, cost, score in points
        if cost is not None and score is not None and not math.isnan(cost + score)
    ]
    kept = [
        (name, cost, score)
        for name, cost, score in known
        if not any(
            other_cost <= cost
            and other_score >= score
            and (other_cost, other_score) != (cost, score)
            for _, other_cost, other_score in known
        )
    ]
    return [name for name, _, _ in sorted(kept, key=lambda point: (-point[2], point[0]))]
