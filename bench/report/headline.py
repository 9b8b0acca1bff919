"""The first paragraph: what was best, what was cheapest, and what the intervals leave open.

Neutral on purpose: it repeats measured numbers, and of differences only what the paired tests say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.report import compare, show
from bench.report.compare import Entry, Panel
from bench.report.measures import Estimate
from bench.report.rows import PLANNED, Row
from bench.score.verdicts import Verdict

NAMED = 4


def headline(panels: Sequence[Panel]) -> str:
    rows = [row for panel in panels for row in panel.rows]
    return "\n".join(["\n".join(f"- {sentence(panel)}" for panel in panels), "", outcomes(rows)])


def outcomes(rows: Sequence[Row]) -> str:
    """How many cells worked, and what became of the others."""
    counts = Counter(row.outcome for row in rows)
    planned = counts.pop(PLANNED, 0)
    begun = len(rows) - planned
    if not begun:
        return f"{show.many(planned, 'cell')} planned, none run. Every number is predicted."
    waiting = f" {show.many(planned, 'cell')} more are planned, not run." if planned else ""
    return _ended(counts, begun) + waiting


def _ended(counts: Counter[str], begun: int) -> str:
    good = counts.pop("ok", 0)
    total = show.many(begun, "cell")
    if not counts:
        return f"All {total} worked. Every number is measured."
    others = show.listed([f"{n} {status}" for status, n in sorted(counts.items())])
    return f"{good} of {total} worked, the others did not: {others} (reasons below)."


def sentence(panel: Panel) -> str:
    """One panel in a few sentences."""
    where = f"**{show.markdown(panel.dataset)} on {show.markdown(panel.target)}**"
    metric = f"{show.markdown(panel.metric)}"
    ranked = compare.ranked(panel, panel.metric)
    if not ranked:
        return f"{where}: nothing to compare, no cell has a value of {metric}."
    (best, quality), *others = ranked
    if panel.metric != panel.cell.dataset.primary_metric:
        metric += f" ({show.markdown(panel.cell.dataset.primary_metric)} has no value)"
    parts = [f"{where}, by {metric}: best is {_told(panel, best, quality)}."]
    cheapest = _cheapest(panel, ranked)
    if cheapest and cheapest[0] is not best:
        parts.append(f"Cheapest model run is {_told(panel, *cheapest)}.")
    front = compare.pareto(panel)
    if len(front) > 1:
        names = show.listed([_label(panel, entry) for entry in front])
        parts.append(f"Nothing measured is both better and cheaper than {names} (Pareto set).")
    parts += _against(panel, best, others)
    untested = [pair for pair in others if not _verdict(panel, pair[0], best)]
    parts += _open(panel, quality, untested)
    return " ".join(parts)


def _told(panel: Panel, entry: Entry, quality: Estimate) -> str:
    """lora with 0.412 (0.39 to 0.43) at $0.02"""
    text = f"{_label(panel, entry)} with {show.score(quality.value)}"
    if bounds := show.between(quality.low, quality.high, show.score):
        text += f" ({bounds})"
    if panel.priced and entry.cost:
        what = "for its answers" if entry.is_api else "a run"
        text += f" at {show.usd(entry.cost.value)} {what}"
    elif entry.device_hours:
        text += f" in {show.number(entry.device_hours.value)} device-hours"
    return text


def _label(panel: Panel, entry: Entry) -> str:
    several = len({other.model for other in panel.entries}) > 1
    return show.markdown(entry.label if several else entry.method)


def _cheapest(
    panel: Panel, ranked: Sequence[tuple[Entry, Estimate]]
) -> tuple[Entry, Estimate] | None:
    costs = [
        (panel.effort(entry), entry, quality)
        for entry, quality in ranked
        if entry.cell.method.needs_model
    ]
    known = [(c.value, e, q) for c, e, q in costs if c is not None and c.value is not None]
    if not known:
        return None
    _, entry, quality = min(known, key=lambda found: found[0])
    return entry, quality


def _verdict(panel: Panel, entry: Entry, best: Entry) -> Verdict | None:
    pair = panel.pair(entry, best, panel.metric)
    return pair.verdict if pair else None


def _against(panel: Panel, best: Entry, others: Sequence[tuple[Entry, Estimate]]) -> list[str]:
    """What the paired tests say of the others against the best."""
    found: dict[str, list[str]] = {}
    needed: list[int] = []
    for entry, _ in others:
        if verdict := _verdict(panel, entry, best):
            found.setdefault(verdict.outcome, []).append(_label(panel, entry))
            if verdict.outcome == "not resolved" and verdict.difference.rows_needed:
                needed.append(verdict.difference.rows_needed)
    margin = panel.comparison.delta(panel.metric)
    told = []
    if behind := found.get("better", []) + found.get("worse", []):
        told.append(f"It is better than {show.listed(_few(behind))}.")
    if alike := found.get("equivalent"):
        told.append(f"{show.listed(_few(alike))}: no difference from it larger than {margin:g}.")
    if unsure := found.get("not resolved"):
        rows = f" (to resolve {margin:g} takes about {max(needed):,} test rows)" if needed else ""
        told.append(f"Not resolved against it: {show.listed(_few(unsure))}{rows}.")
    return told


def _open(panel: Panel, best: Estimate, others: Sequence[tuple[Entry, Estimate]]) -> list[str]:
    """Which entries' intervals share values with the best one's."""
    overlaps = [(entry, compare.overlap(best, quality)) for entry, quality in others]
    near = [_label(panel, entry) for entry, shared in overlaps if shared]
    unknown = [_label(panel, entry) for entry, shared in overlaps if shared is None]
    found = []
    if near:
        one = len(near) == 1
        found.append(
            f"The {'interval' if one else 'intervals'} of {show.listed(_few(near))} "
            f"{'overlaps' if one else 'overlap'} with the best one's, so that order is open."
        )
    elif others and not unknown:
        found.append("No other interval overlaps with the best one's.")
    if unknown:
        found.append(f"Without an interval to compare: {show.listed(_few(unknown))}.")
    return found


def _few(names: list[str]) -> list[str]:
    """The first ones and how many more: a paragraph is no table."""
    return names if len(names) <= NAMED + 1 else [*names[:NAMED], f"{len(names) - NAMED} others"]
