"""summary.csv: one row a cell for programs, units in the column names, empty where unknown."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pandas as pd

from bench.report import show
from bench.report.frames import six_digits
from bench.report.plans import Planned
from bench.report.rows import COUNTERS, PHASES, PLANNED, Row


def summary(rows: Sequence[Row]) -> pd.DataFrame:
    """One row a cell, everything in it; written to summary.csv."""
    apis = any(row.cell.model.endpoint for row in rows)
    metrics = sorted({name for row in rows if row.quality for name in row.quality.metrics})
    labels = sorted({name for row in rows if row.quality for name in row.quality.invalid_rate})
    served = any(row.served for row in rows)
    lines = [
        _identity(row)
        | _quality(row, metrics, labels)
        | _training(row)
        | _memory(row)
        | _money(row)
        | _plan(row)
        | _proof(row)
        | (_serving(row) if served else {})
        | (_asked(row) if apis else {})
        for row in rows
    ]
    # Six digits; and object, else pandas makes floats of counts beside unknowns.
    rounded = [{key: six_digits(value) for key, value in line.items()} for line in lines]
    return pd.DataFrame(rounded, dtype=object)


def _identity(row: Row) -> dict[str, Any]:
    cell = row.cell
    return {
        "cell": row.id,
        "model": cell.model.name,
        "method": cell.method.name,
        "dataset": cell.dataset.name,
        "target": cell.target.name,
        "devices": None if cell.model.endpoint else cell.target.devices * cell.target.nodes,
        "strategy": cell.strategy.name,
        "seed": cell.seed,
        "status": row.outcome,
        "stage": row.stage,
        "reason": None if row.comparable else show.plain(row.why),
        "compared": row.comparable,
        "source": "predicted" if row.status == PLANNED else "measured",
    }


def _quality(row: Row, metrics: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    scores = row.quality
    found: dict[str, Any] = {}
    for name in metrics:
        metric = scores.metrics.get(name) if scores else None
        found[name] = metric.value if metric else None
        found[f"{name}_low"] = metric.low if metric else None
        found[f"{name}_high"] = metric.high if metric else None
    found["test_rows_scored"] = scores.n if scores else None
    found["test_rows"] = row.answered[1]
    for label in labels:
        found[f"{label}_invalid_share"] = scores.invalid_rate.get(label) if scores else None
    found["empty_share"] = scores.empty_rate if scores else None
    found["truncated_share"] = scores.truncated_rate if scores else None
    return found


def _training(row: Row) -> dict[str, Any]:
    training = row.training
    speed = training.speed if training else None
    return {
        "first_validation_loss_nats": training.first_validation if training else None,
        "last_validation_loss_nats": training.last_validation if training else None,
        "steps": training.steps if training else None,
        "tokens": training.tokens if training else None,
        "supervised_tokens": training.supervised_tokens if training else None,
        "tokens_per_s": speed.tokens_per_s if speed else None,
        "tokens_per_s_low": speed.low if speed else None,
        "tokens_per_s_high": speed.high if speed else None,
        "tokens_per_s_per_device": speed.tokens_per_s_per_device if speed else None,
        "speed_unstable": speed.unstable if speed else None,
        "step_s": speed.step_s if speed else None,
        "padding_share": speed.padding_share if speed else None,
        **_efficiency(row),
        "training_steps_s": training.train_s if training and training.steps else None,
        **_to_target(row),
        "train_wall_s": row.wall_s.get("train"),
        "generate_wall_s": row.wall_s.get("generate"),
    }


def _efficiency(row: Row) -> dict[str, Any]:
    training = row.training
    energy = training.energy if training else None
    return {
        "mfu": training.mfu if training else None,
        "gpu_utilization": energy.utilization if energy else None,
        "gpu_power_w": energy.power_w if energy else None,
        "wh_per_million_tokens": energy.wh_per_million_tokens if energy else None,
        "wh_per_million_tokens_low": energy.low if energy else None,
        "wh_per_million_tokens_high": energy.high if energy else None,
        "gpu_kwh": row.kwh,
    }


def _to_target(row: Row) -> dict[str, Any]:
    """`time_to_target_s`: as measured, at the first evaluation that meets it."""
    found = row.convergence
    goal = found.goal if found else None
    reached, between = (found.reached, found.interpolated) if found else (None, None)
    spent = found.spent if found else None
    return {
        "target_measure": goal.measure if goal else None,
        "target_loss_nats": goal.value if goal and goal.falls else None,
        "target_score": goal.value if goal and not goal.falls else None,
        "time_to_target_s": reached.train_s if reached else None,
        "time_to_target_interpolated_s": between.train_s if between else None,
        "steps_to_target_interpolated": between.step if between else None,
        "tokens_to_target_interpolated": between.tokens if between else None,
        "followed_s": spent.train_s if spent else None,
    }


def _memory(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for phase in PHASES:
        for counter in COUNTERS:
            peak = row.highest(phase, operator.attrgetter(counter))
            found[f"{phase}_peak_{counter}_gib"] = None if peak is None else peak / show.GIB
    return found


def _money(row: Row) -> dict[str, Any]:
    cost, endpoint = row.cost, row.cell.model.endpoint
    steps = cost.train if cost else None
    price = None if endpoint else row.cell.target.price
    dated = endpoint.price if endpoint else price
    return {
        "cost_usd": cost.job.usd if cost else None,
        "cost_low_usd": cost.job.low_usd if cost else None,
        "cost_high_usd": cost.job.high_usd if cost else None,
        "training_steps_cost_usd": steps.usd if steps else None,
        "device_hours": cost.device_hours if cost else None,
        "usd_per_device_hour": price.usd_per_device_hour if price else None,
        "price_date": dated.date if dated else None,
    }


def _asked(row: Row) -> dict[str, Any]:
    """Of cells that an API answered; other suites lack these columns."""
    found, endpoint = row.asked, row.cell.model.endpoint
    price = endpoint.price if endpoint else None
    return {
        "api_base_url": endpoint.base_url if endpoint else None,
        "api_model": endpoint.model if endpoint else None,
        "api_answered": "; ".join(found.models) if found else None,
        "api_input_tokens": found.input_tokens if found else None,
        "api_output_tokens": found.output_tokens if found else None,
        "usd_per_million_input": price.usd_per_million_input if price else None,
        "usd_per_million_output": price.usd_per_million_output if price else None,
        "api_latency_median_s": found.latency_s[0] if found else None,
        "api_latency_p95_s": found.latency_s[1] if found else None,
    }


def _plan(row: Row) -> dict[str, Any]:
    plan = row.plan or Planned()
    sizes = {"device": plan.device_bytes, "host": plan.host_bytes}
    return {
        "planned_fits": plan.fits,
        "planned_strategy": plan.strategy,
        **{f"planned_{k}_gib": None if v is None else v / show.GIB for k, v in sizes.items()},
        "planned_hours": plan.hours,
        "planned_usd": plan.usd,
    }


def _serving(row: Row) -> dict[str, Any]:
    """At the concurrency with the highest throughput, of the variants that are what they say."""
    point = row.served.best() if row.served else None
    load, usd = (point.load, point.offer.per_million) if point else (None, None)
    first, each = (load.first_token, load.per_token) if load else (None, None)
    return {
        "serve_status": str(row.served.record.status) if row.served else None,
        "serve_variant": point.variant.name if point else None,
        "serve_concurrency": load.concurrency if load else None,
        "serve_requests": load.requests if load else None,
        "first_token_p50_s": first.p50 if first else None,
        "first_token_p95_s": first.p95 if first else None,
        "per_token_p50_s": each.p50 if each else None,
        "per_token_p95_s": each.p95 if each else None,
        "served_tokens_per_s": load.tokens_per_s if load else None,
        "serve_usd_per_million_tokens": usd.usd if usd else None,
        "serve_usd_per_million_tokens_low": usd.low_usd if usd else None,
        "serve_usd_per_million_tokens_high": usd.high_usd if usd else None,
    }


def _proof(row: Row) -> dict[str, Any]:
    audit = row.audit
    return {
        "total_params": audit.total_params if audit else None,
        "trainable_share": row.trainable_share,
        "quantized_share": row.quantized_share,
        "attempt": row.attempt,
        "attempts": row.attempts,
        "events": row.link("events.jsonl"),
        "predictions": row.link("predictions.jsonl"),
    }
