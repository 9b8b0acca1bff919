"""How fast, how much faster than the reference, and how long a whole epoch would take."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pandas as pd

from bench.report import show
from bench.report.compare import Entry, Panel
from bench.report.frames import frame
from bench.report.rows import Row
from bench.score.resample import FloatArray
from bench.score.speed import Interval, Setting, epoch_s, ratio, unlike


def reference(panel: Panel, entry: Entry) -> Entry | None:
    """What an entry's speed is held against: the suite's reference, of the same model."""
    for other in panel.entries:
        named = other.cell.method.name == panel.comparison.reference
        if other.model == entry.model and named and _timed(other):
            return other
    return None


def _timed(entry: Entry) -> list[Row]:
    return [row for row in entry.good if row.training and row.training.counted]


def compared(entry: Entry, other: Entry) -> Interval | list[str]:
    """How many times faster, or why that can't be said."""
    ours, theirs = _timed(entry), _timed(other)
    reasons = [why for a in ours for b in theirs for why in unlike(_setting(a), _setting(b))]
    if reasons:
        return list(dict.fromkeys(reasons))
    return ratio(_rates(ours), _rates(theirs)) or ["no step was counted"]


def _setting(row: Row) -> Setting:
    training = row.training
    assert training is not None  # chosen by _timed
    return Setting(training.environment, training.threads, training.timing_protocol)


def _rates(rows: Sequence[Row]) -> list[FloatArray]:
    steps = [row.training.counted for row in rows if row.training]
    return [np.array([event.tokens / event.seconds for event in run]) for run in steps]


def epoch(entry: Entry) -> Interval | None:
    """Predicted for the whole train split: the mean over seeds, within the widest interval."""
    found = []
    for row in _timed(entry):
        assert row.training is not None  # chosen by _timed
        found.append(epoch_s(row.training.counted, row.training.epoch_rows))
    known = [one for one in found if one]
    if not known or len(known) < len(found):
        return None
    lows = [one.low for one in known if one.low is not None]
    highs = [one.high for one in known if one.high is not None]
    return Interval(
        value=fmean(one.value for one in known),
        low=min(lows, default=None),
        high=max(highs, default=None),
        n_steps=tuple(count for one in known for count in one.n_steps),
    )


def table(panel: Panel) -> pd.DataFrame:
    """Trained entries that have steps."""
    lines = [_line(panel, entry) for entry in panel.entries if _timed(entry)]
    return frame(lines)


def _line(panel: Panel, entry: Entry) -> dict[str, str]:
    speeds = [row.training.speed for row in _timed(entry) if row.training]
    whole, part = epoch(entry), _share_of_epoch(entry)
    return {
        "model": entry.model,
        "method": entry.method,
        "counted steps": show.count(sum(speed.n_steps for speed in speeds)),
        "samples/s": _mean([speed.sequences_per_s for speed in speeds]),
        "supervised tokens/s": _mean([speed.supervised_tokens_per_s for speed in speeds]),
        f"speed ÷ {panel.comparison.reference}'s": _ratio(panel, entry),
        "epoch, s (predicted)": _interval(whole),
        "of it run": show.share(part),
    }


def _ratio(panel: Panel, entry: Entry) -> str:
    other = reference(panel, entry)
    if other is None:
        return "not compared: no such run"
    if other is entry:
        return "1"
    found = compared(entry, other)
    if isinstance(found, list):
        return f"not compared: {'; '.join(found)}"
    return ("~" if entry.unstable or other.unstable else "") + _interval(found)


def _interval(found: Interval | None) -> str:
    if found is None:
        return show.NONE
    bounds = show.between(found.low, found.high)
    return show.number(found.value) + (f" ({bounds})" if bounds else "")


def _share_of_epoch(entry: Entry) -> float | None:
    """Sequences that were trained on ÷ rows of the whole split; above 1 after several epochs."""
    shares = []
    for row in _timed(entry):
        assert row.training is not None  # chosen by _timed
        if not row.training.epoch_rows:
            return None
        shares.append(row.training.sequences / row.training.epoch_rows)
    return fmean(shares) if shares else None


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return show.number(fmean(known) if known else None)
