"""The tables for people: one row an entry (all seeds of a question), as plain text.

A cell is text or a Link; `bench/report/frames.py` writes it as Markdown, the page as HTML.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pandas as pd

from bench.report import compare, show
from bench.report.compare import Entry, Panel
from bench.report.frames import Link, frame
from bench.report.measures import Estimate, Peak
from bench.report.rows import COUNTERS, PHASES, Row


def entries(panel: Panel) -> pd.DataFrame:
    """The main table of a panel: what each entry reached, took and cost."""
    front = {id(entry) for entry in compare.pareto(panel)}
    metric = panel.metric
    return frame(
        _name(entry)
        | {
            "status": entry.status,
            metric: _scored(entry.quality(metric)),
            "95 % interval": _bounds(entry.quality(metric)),
            "cost, USD": _number(entry.cost),
            "price range": _bounds(entry.cost, show.number),
            "peak, GiB": peak_text(entry),
            "tokens/s": _speed(entry),
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
                    "metric": metric,
                    "value": _scored(found),
                    "95 % interval": _bounds(found),
                    "rows": show.count(found.n if found else None),
                    "each seed": ", ".join(f"{seed}: {show.score(v)}" for seed, v in seeds),
                    "note": "; ".join(notes(entry, metric)),
                }
            )
    return frame(lines)


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
    return frame(lines)


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
                "tokens/s": _speed(entry),
                "95 % interval": _bounds(entry.speed, show.number),
                "cost, USD": _mean([row.cost.job.usd if row.cost else None for row in rows]),
                "of it steps, USD": _mean([_steps_usd(row) for row in rows]),
            }
        )
    return frame(lines)


def _steps_s(row: Row) -> float | None:
    return row.training.train_s if row.training and row.training.steps else None


def _steps_usd(row: Row) -> float | None:
    return row.cost.train.usd if row.cost and row.cost.train else None


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
                "optimizer": audit.optimizer or show.NONE,
                "attention": audit.attention or show.NONE,
                "warnings": "; ".join(audit.warnings),
            }
        )
    return frame(lines)


def failures(rows: Sequence[Row]) -> pd.DataFrame:
    """Every cell that enters no comparison, and why."""
    return frame(
        {
            "cell": _linked(row, "log.txt", row.id),
            "seed": str(row.cell.seed),
            "status": row.outcome,
            "in": row.stage or show.NONE,
            "why": show.plain(row.why),
            "attempt": f"{row.attempt or show.NONE} (of {row.attempts})",
        }
        for row in rows
        if row.failed
    )


def sources(rows: Sequence[Row]) -> pd.DataFrame:
    """The files that each cell's numbers come from."""
    names = ["events.jsonl", "predictions.jsonl", "train.json", "generate.json", "audit.json"]
    names += ["serve.json"] if any(row.served for row in rows) else []
    return frame(
        {"cell": Link(row.id, f"../{row.id}/cell.json"), "attempt": _attempt(row)}
        | {(short := name.partition(".")[0]): _linked(row, name, short) for name in names}
        for row in rows
    )


def _attempt(row: Row) -> str:
    resumed = f", resumed from step {row.resumed.resumed_from_step}" if row.resumed else ""
    return f"{row.attempt or show.NONE}{resumed}"


def _linked(row: Row, name: str, text: str) -> str | Link:
    path = row.link(name)
    return Link(text, path) if path else (text if text == row.id else show.NONE)


# ---------------------------------------------------------------- cells of a table


def _name(entry: Entry) -> dict[str, str]:
    return {"model": entry.model, "method": entry.method}


def _scored(estimate: Estimate | None) -> str:
    return show.score(estimate.value if estimate else None)


def _number(estimate: Estimate | None) -> str:
    return show.number(estimate.value if estimate else None)


def _speed(entry: Entry) -> str:
    known = entry.speed and entry.speed.value is not None
    return ("~" if known and entry.unstable else "") + _number(entry.speed)


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
