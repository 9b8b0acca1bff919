"""The first paragraph: what was best, what was cheapest, and what the intervals leave open.

Neutral on purpose: it repeats measured numbers.  It calls no difference significant, since that
takes a test on paired rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.report import compare, show
from bench.report.compare import Entry, Panel
from bench.report.measures import Estimate
from bench.report.rows import Row

NAMED = 4


def headline(panels: Sequence[Panel]) -> str:
    rows = [row for panel in panels for row in panel.rows]
    return "\n".join(["\n".join(f"- {sentence(panel)}" for panel in panels), "", outcomes(rows)])


def outcomes(rows: Sequence[Row]) -> str:
    """How many cells worked, and what became of the others."""
    counts = Counter(row.outcome for row in rows)
    good = counts.pop("ok", 0)
    total = show.many(len(rows), "cell")
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
        parts.append(f"Cheapest is {_told(panel, *cheapest)}.")
    front = compare.pareto(panel)
    if len(front) > 1:
        names = show.listed([_label(panel, entry) for entry in front])
        parts.append(f"Nothing measured is both better and cheaper than {names} (Pareto set).")
    parts += _open(panel, quality, others)
    return " ".join(parts)


def _told(panel: Panel, entry: Entry, quality: Estimate) -> str:
    """lora with 0.412 (0.39 to 0.43) at $0.02"""
    text = f"{_label(panel, entry)} with {show.score(quality.value)}"
    if bounds := show.between(quality.low, quality.high, show.score):
        text += f" ({bounds})"
    if panel.priced and entry.cost:
        text += f" at {show.usd(entry.cost.value)} a run"
    elif entry.device_hours:
        text += f" in {show.number(entry.device_hours.value)} device-hours"
    return text


def _label(panel: Panel, entry: Entry) -> str:
    several = len({other.model for other in panel.entries}) > 1
    return show.markdown(entry.label if several else entry.method)


def _cheapest(
    panel: Panel, ranked: Sequence[tuple[Entry, Estimate]]
) -> tuple[Entry, Estimate] | None:
    costs = [(panel.effort(entry), entry, quality) for entry, quality in ranked]
    known = [(c.value, e, q) for c, e, q in costs if c is not None and c.value is not None]
    if not known:
        return None
    _, entry, quality = min(known, key=lambda found: found[0])
    return entry, quality


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
