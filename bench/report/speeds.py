"""How fast, how much faster than the reference, and how long a whole epoch would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

import numpy as np
import pandas as pd

from bench.report import show
from bench.report.compare import Entry, Panel
from bench.report.frames import frame
from bench.report.measures import Estimate, pooled
from bench.report.rows import Row
from bench.score.energy import Energy
from bench.score.resample import FloatArray
from bench.score.speed import Interval, Setting, epoch_s, ratio, unlike


def reference(panel: Panel, entry: Entry) -> Entry | None:
    """What an entry's speed is held against: the suite's reference, of the same model, with the
    same micro-batch where there is one."""
    name = panel.comparison.reference
    found = [e for e in panel.entries if e.model == entry.model and e.cell.method.name == name]
    own = entry.cell.budget.micro_batch
    timed = sorted(filter(_timed, found), key=lambda e: e.cell.budget.micro_batch != own)
    return next(iter(timed), None)


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


def efficiency(panel: Panel) -> pd.DataFrame:
    """How much of the GPUs was used, and what that took; entries of which something is known."""
    lines = [_used(entry) for entry in panel.entries if _timed(entry)]
    return frame(line for line in lines if set(list(line.values())[2:]) != {show.NONE})


def _used(entry: Entry) -> dict[str, str]:
    trainings = [row.training for row in _timed(entry) if row.training]
    found = [training.energy for training in trainings if training.energy]
    return {
        "model": entry.model,
        "method": entry.method,
        "MFU": show.share(_fmean([training.mfu for training in trainings])),
        "GPU utilisation": show.share(_fmean([one.utilization for one in found])),
        "power of all GPUs, W": _mean([one.power_w for one in found]),
        "Wh per million tokens": _wh(found),
        "kWh of a run": _mean([row.kwh for row in _timed(entry)]),
        "hottest, °C": show.number(
            max((t for one in found if (t := one.temperature_c) is not None), default=None)
        ),
        "clocks held back": "; ".join(_held_back(found)) or show.NONE,
    }


def _wh(found: Sequence[Energy]) -> str:
    """Mean over seeds, within the widest of their intervals."""
    whole = pooled(
        Estimate(one.wh_per_million_tokens, one.low, one.high, one.n_steps) for one in found
    )
    if whole is None:
        return show.NONE
    bounds = show.between(whole.low, whole.high)
    return show.number(whole.value) + (f" ({bounds})" if bounds else "")


def _held_back(found: Sequence[Energy]) -> Iterator[str]:
    for name in sorted({name for one in found for name in one.slowed}):
        share = fmean(one.slowed.get(name, 0.0) for one in found)
        yield f"{name}: {show.share(share)} of readings"


def _ratio(panel: Panel, entry: Entry) -> str:
    other = reference(panel, entry)
    if other is None:
        return "not compared: no such run"
    return told(entry, other)


def told(entry: Entry, other: Entry) -> str:
    """The ratio with its interval, `~` where a speed is unstable, or why there is none."""
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
    return show.number(_fmean(values))


def _fmean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
