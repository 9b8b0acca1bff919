"""The report's tables, as pandas frames.

`summary` is for programs: one row a cell, units in the column names, empty where unknown.  The
others are for people: one row an entry (all seeds of a question), already printed, as text.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from bench.report import compare, show
from bench.report.compare import Entry, Panel
from bench.report.measures import Estimate, Peak
from bench.report.rows import Row

PHASES = ("train", "generate")
COUNTERS = ("reserved", "allocated", "device", "host", "host_above_baseline")


def markdown(frame: pd.DataFrame) -> str:
    """A frame of text as a Markdown table: names to the left, numbers to the right."""
    sides = ["right" if _numeric(frame[column]) else "left" for column in frame.columns]
    return str(frame.to_markdown(index=False, disable_numparse=True, colalign=sides))


_NUMBER = re.compile(r"[~+−$]?\d[\d.,]*( %| to [\d.,]+| \([+−]?[\d.]+\))?")


def _numeric(values: Iterable[str]) -> bool:
    known = [value for value in values if value not in ("", show.NONE)]
    return bool(known) and all(_NUMBER.fullmatch(value) for value in known)


# ---------------------------------------------------------------- summary.csv


def summary(rows: Sequence[Row]) -> pd.DataFrame:
    """One row a cell, everything in it; written to summary.csv."""
    metrics = sorted({name for row in rows if row.quality for name in row.quality.metrics})
    labels = sorted({name for row in rows if row.quality for name in row.quality.invalid_rate})
    lines = [
        _identity(row)
        | _quality(row, metrics, labels)
        | _training(row)
        | _memory(row)
        | _money(row)
        | _proof(row)
        for row in rows
    ]
    # Six digits; and object, else pandas makes floats of counts beside unknowns.
    rounded = [{key: _six_digits(value) for key, value in line.items()} for line in lines]
    return pd.DataFrame(rounded, dtype=object)


def _six_digits(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def csv(frame: pd.DataFrame) -> str:
    return str(frame.to_csv(index=False, lineterminator="\n"))


def _identity(row: Row) -> dict[str, Any]:
    cell = row.cell
    return {
        "cell": row.id,
        "model": cell.model.name,
        "method": cell.method.name,
        "dataset": cell.dataset.name,
        "target": cell.target.name,
        "devices": cell.target.devices * cell.target.nodes,
        "strategy": cell.strategy.name,
        "seed": cell.seed,
        "status": row.outcome,
        "stage": row.stage,
        "reason": None if row.comparable else show.plain(row.why),
        "compared": row.comparable,
        "source": "measured",
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
    training, reached = row.training, row.convergence
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
        "training_steps_s": training.train_s if training and training.steps else None,
        "target_loss_nats": reached.target_loss if reached else None,
        "time_to_target_s": reached.reached.train_s if reached and reached.reached else None,
        "train_wall_s": row.wall_s.get("train"),
        "generate_wall_s": row.wall_s.get("generate"),
    }


def _memory(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for phase in PHASES:
        for counter in COUNTERS:
            peak = row.highest(phase, operator.attrgetter(counter))
            found[f"{phase}_peak_{counter}_gib"] = None if peak is None else peak / show.GIB
    return found


def _money(row: Row) -> dict[str, Any]:
    cost, price = row.cost, row.cell.target.price
    steps = cost.train if cost else None
    return {
        "cost_usd": cost.job.usd if cost else None,
        "cost_low_usd": cost.job.low_usd if cost else None,
        "cost_high_usd": cost.job.high_usd if cost else None,
        "training_steps_cost_usd": steps.usd if steps else None,
        "device_hours": cost.device_hours if cost else None,
        "usd_per_device_hour": price.usd_per_device_hour,
        "price_date": price.date,
    }


def _proof(row: Row) -> dict[str, Any]:
    audit = row.audit
    return {
        "total_params": audit.total_params if audit else None,
        "trainable_share": row.trainable_share,
        "quantized_share": row.quantized_share,
        "attempt": row.attempt,
        "attempts": row.attempts,
        "events": evidence(row, "events.jsonl"),
        "predictions": evidence(row, "predictions.jsonl"),
    }


def evidence(row: Row, name: str) -> str | None:
    """A file's path relative to the report's folder, if the file is there."""
    paths = (f"../{row.id}/{path}" for path in row.evidence if path.endswith(f"/{name}"))
    return next(paths, None)


# ---------------------------------------------------------------- tables for people


def entries(panel: Panel) -> pd.DataFrame:
    """The main table of a panel: what each entry reached, took and cost."""
    front = {id(entry) for entry in compare.pareto(panel)}
    metric = panel.metric
    return _frame(
        _name(entry)
        | {
            "status": entry.status,
            metric: _scored(entry.quality(metric)),
            "95 % interval": _bounds(entry.quality(metric)),
            "cost, USD": _number(entry.cost),
            "price range": _bounds(entry.cost, show.number),
            "peak, GiB": peak_text(entry),
            "tokens/s": ("~" if entry.unstable else "") + _number(entry.speed),
            "Pareto": "yes" if id(entry) in front else "",
        }
        for entry in panel.entries
    )


def quality(panel: Panel) -> pd.DataFrame:
    """Every metric with its interval, and each seed's value."""
    lines = []
    for entry in panel.entries:
        for metric in panel.metrics if entry.good else [panel.metric]:
            found = entry.quality(metric)
            seeds = entry.seeds(metric)
            lines.append(
                _name(entry)
                | {
                    "metric": show.markdown(metric),
                    "value": _scored(found),
                    "95 % interval": _bounds(found),
                    "rows": show.count(found.n if found else None),
                    "each seed": ", ".join(f"{seed}: {show.score(v)}" for seed, v in seeds),
                    "note": show.markdown("; ".join(notes(entry, metric))),
                }
            )
    return _frame(lines)


def notes(entry: Entry, metric: str) -> list[str]:
    """Why a value is missing."""
    if not entry.good:
        return [entry.status]
    found = []
    for row in entry.good:
        score = row.quality.metrics.get(metric) if row.quality else None
        if score is None:
            found.append(row.no_quality or "not scored")
        elif score.value is None and score.reason:
            found.append(score.reason)
    return list(dict.fromkeys(found))


def rates(panel: Panel) -> pd.DataFrame:
    """Answers that could not count: no valid label, empty, cut off."""
    lines = []
    for entry in panel.entries:
        scored = [row.quality for row in entry.good if row.quality]
        fields = list(dict.fromkeys(name for q in scored for name in q.invalid_rate))
        line = _name(entry)
        for name in fields:
            line[f"{name}: no valid label"] = _share([q.invalid_rate.get(name) for q in scored])
        line["empty"] = _share([q.empty_rate for q in scored])
        line["cut off"] = _share([q.truncated_rate for q in scored])
        lines.append(line)
    return _frame(lines)


def groups(panel: Panel, metric: str) -> pd.DataFrame:
    """A metric in each group, and its gain over the untuned model."""
    lines = []
    for entry in panel.entries:
        line = _name(entry)
        for group in panel.groups:
            n = compare.group_rows(panel, group)
            title = show.markdown(group) + (f" (n = {n})" if n is not None else "")
            gain = compare.group_gain(panel, entry, group, metric)
            text = _scored(entry.group(group, metric))
            line[title] = f"{text} ({show.signed(gain)})" if _adapted(entry, gain) else text
        lines.append(line)
    return _frame(lines)


def _adapted(entry: Entry, gain: float | None) -> bool:
    return entry.cell.method.trains and gain is not None


def memory(panel: Panel) -> pd.DataFrame:
    """Peaks of each phase: every counter that there is, and what the deciding one leaves free."""
    cuda = panel.cell.target.device == "cuda"
    counters = COUNTERS if cuda else COUNTERS[-2:]
    lines = []
    for entry in panel.entries:
        for phase in PHASES:
            peaks = {c: _highest(entry, phase, c) for c in counters}
            if all(peak is None for peak in peaks.values()):
                continue
            worst = [peak for row in entry.rows if (peak := row.peak(phase))]
            lines.append(
                _name(entry)
                | {"phase": phase, "status": entry.status}
                | {f"{c.replace('_', ' ')}, GiB": show.gib(peak) for c, peak in peaks.items()}
                | {"limit, GiB": show.number(_limit(panel))}
                | {"highest in": _stage(worst, panel.cell.target.device)}
            )
    return _frame(lines)


def _limit(panel: Panel) -> float | None:
    """What the deciding counter must stay under."""
    cell = panel.cell
    if cell.target.device == "cuda":
        return cell.target.device_memory_gib
    return cell.budget.host_memory_limit_gib or cell.target.host_ram_gib


def _highest(entry: Entry, phase: str, counter: str) -> int | None:
    """Over all seeds, the failed ones too: that is where memory ran out."""
    peaks = [row.highest(phase, operator.attrgetter(counter)) for row in entry.rows]
    return max((peak for peak in peaks if peak is not None), default=None)


def _stage(peaks: Sequence[Peak], device: str) -> str:
    highest = max(peaks, key=lambda peak: peak.counted(device) or 0, default=None)
    return highest.stage if highest else show.NONE


def time(panel: Panel) -> pd.DataFrame:
    """Where time and money went; means over the seeds that worked."""
    lines = []
    for entry in panel.entries:
        rows = entry.good or entry.bad
        lines.append(
            _name(entry)
            | {
                "status": entry.status,
                "training, s": _mean([row.wall_s.get("train") for row in rows]),
                "of it steps, s": _mean([_steps_s(row) for row in rows]),
                "generation, s": _mean([row.wall_s.get("generate") for row in rows]),
                "step, s": _mean([r.training.speed.step_s if r.training else None for r in rows]),
                "padding": _share(
                    [r.training.speed.padding_share if r.training else None for r in rows]
                ),
                "tokens/s": ("~" if entry.unstable else "") + _number(entry.speed),
                "95 % interval": _bounds(entry.speed, show.number),
                "to target, s": _to_target(rows),
                "cost, USD": _mean([row.cost.job.usd if row.cost else None for row in rows]),
                "of it steps, USD": _mean([_steps_usd(row) for row in rows]),
            }
        )
    return _frame(lines)


def _steps_s(row: Row) -> float | None:
    return row.training.train_s if row.training and row.training.steps else None


def _steps_usd(row: Row) -> float | None:
    return row.cost.train.usd if row.cost and row.cost.train else None


def _to_target(rows: Sequence[Row]) -> str:
    """Mean seconds if every seed reached the target; else how many did."""
    known = [row.convergence for row in rows if row.convergence]
    reached = [found.reached.train_s for found in known if found.reached]
    if not known or all(found.target_loss is None for found in known):
        return show.NONE
    if len(reached) == len(known):
        return _mean(list(reached))
    return "not reached" if not reached else f"{len(reached)} of {len(known)} seeds"


def weights(rows: Sequence[Row]) -> pd.DataFrame:
    """What the audit counted on the model that ran."""
    lines = []
    for row in rows:
        audit = row.audit
        if audit is None:
            continue
        held = sorted(audit.bytes_by_dtype.items())
        lines.append(
            {
                "cell": row.id,
                "parameters": show.count(audit.total_params),
                "trainable": show.share(row.trainable_share),
                "quantised": show.share(row.quantized_share),
                "weights held, GiB": ", ".join(f"{dtype} {show.gib(n)}" for dtype, n in held),
                "optimizer": show.markdown(audit.optimizer or show.NONE),
                "attention": show.markdown(audit.attention or show.NONE),
                "warnings": show.markdown("; ".join(audit.warnings)),
            }
        )
    return _frame(lines)


def failures(rows: Sequence[Row]) -> pd.DataFrame:
    """Every cell that enters no comparison, and why."""
    return _frame(
        {
            "cell": _linked(row, "log.txt", row.id),
            "seed": str(row.cell.seed),
            "status": row.outcome,
            "in": row.stage or show.NONE,
            "why": show.markdown(row.why),
            "attempt": f"{row.attempt or show.NONE} (of {row.attempts})",
        }
        for row in rows
        if not row.comparable
    )


def sources(rows: Sequence[Row]) -> pd.DataFrame:
    """The files that each cell's numbers come from."""
    names = ("events.jsonl", "predictions.jsonl", "train.json", "generate.json", "audit.json")
    return _frame(
        {"cell": f"[{row.id}](../{row.id}/cell.json)", "attempt": row.attempt or show.NONE}
        | {(short := name.partition(".")[0]): _linked(row, name, short) for name in names}
        for row in rows
    )


def _linked(row: Row, name: str, text: str) -> str:
    path = evidence(row, name)
    return f"[{text}]({path})" if path else (text if text == row.id else show.NONE)


# ---------------------------------------------------------------- cells of a table


def _frame(lines: Any) -> pd.DataFrame:
    """Columns in the order they first appear; a dash where a line lacks one."""
    return pd.DataFrame(list(lines), dtype=object).fillna(show.NONE)


def _name(entry: Entry) -> dict[str, str]:
    return {"model": show.markdown(entry.model), "method": show.markdown(entry.method)}


def _scored(estimate: Estimate | None) -> str:
    return show.score(estimate.value if estimate else None)


def _number(estimate: Estimate | None) -> str:
    return show.number(estimate.value if estimate else None)


def _bounds(estimate: Estimate | None, printed: Any = show.score) -> str:
    return (show.between(estimate.low, estimate.high, printed) if estimate else "") or show.NONE


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return show.number(sum(known) / len(known) if known else None)


def _share(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return show.share(sum(known) / len(known) if known else None)


def peak_text(entry: Entry) -> str:
    """The deciding counter's highest over phases and seeds that worked."""
    device = entry.cell.target.device
    peaks = [row.peak(phase) for row in entry.good for phase in PHASES]
    counted = [peak.counted(device) for peak in peaks if peak]
    return show.gib(max((c for c in counted if c is not None), default=None))
