"""One cell, run twice: does the second attempt say what the first one said?

    bench rerun CELL --compare

Losses are compared step by step, answers row by row, scores by the paired tests of the report,
speeds and peaks by their ratio.  What decides are the results (losses, answers, scores); time and
memory are told beside them, as other work on a machine moves them and not the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from bench.report import environments, pairs, show, speeds
from bench.report.compare import Entry, Panel
from bench.report.frames import frame
from bench.report.rows import Row, rows
from bench.score.resample import SEED, percentile_interval
from bench.score.significance import Difference
from bench.score.significance import compare as difference
from bench.score.speed import block_draws
from bench.score.verdicts import judge
from bench.store import Attempt, CellResult

Verdict = Literal["identical", "within noise", "differs", "not compared"]
DRIFT = 1e-3  # losses whose means are this close (relative) differ by rounding alone
SAME_PEAK = 0.05  # peaks that differ by less are called the same: allocators round


@dataclass(frozen=True)
class Line:
    """One thing held against itself.  `result`: it decides whether the attempts agree."""

    what: str
    first: str
    second: str
    verdict: Verdict
    told: str = ""
    result: bool = True


@dataclass(frozen=True)
class Repeat:
    """`chance`: operations of either attempt that torch calls non-deterministic; None: unknown."""

    cell: str
    attempts: tuple[str, str]
    lines: tuple[Line, ...]
    environment: tuple[str, ...]
    chance: tuple[str, ...] | None

    @property
    def agrees(self) -> bool:
        return all(line.verdict != "differs" for line in self.lines if line.result)

    @property
    def words(self) -> str:
        first, second = self.attempts
        decisive = [line for line in self.lines if line.result]
        if all(line.verdict == "identical" for line in decisive):
            return f"{second} is {first} again, to the last digit"
        if self.agrees:
            return f"{second} agrees with {first} within noise"
        parts = show.listed([line.what for line in decisive if line.verdict == "differs"])
        return f"{second} does not agree with {first}: {parts}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"agrees": self.agrees, "words": self.words}


def repeat(found: CellResult, first: Attempt, second: Attempt) -> Repeat:
    """`second` against `first`, two attempts of one cell."""
    a, b = (_row(found, attempt) for attempt in (first, second))
    lines = [_outcome(a, b), *_rows_used(a, b), *_losses(a, b), *_answers(first, second)]
    lines += _scores(a, b)
    if any(line.verdict == "differs" for line in lines if line.what.startswith("score")):
        lines = [replace(one, verdict="differs") if one.what == "answers" else one for one in lines]
    lines += [*_speed(a, b), *_peaks(a, b)]
    return Repeat(
        cell=found.cell.id,
        attempts=(first.path.name, second.path.name),
        lines=tuple(lines),
        environment=tuple(environments.differences(a.environments, b.environments)),
        chance=_chance(a, b),
    )


@dataclass(frozen=True)
class _One(CellResult):
    """A cell as if it had this attempt alone."""

    attempt: Attempt

    @cached_property
    def attempts(self) -> list[Attempt]:
        return [self.attempt]


def _row(found: CellResult, attempt: Attempt) -> Row:
    return rows([_One(found.cell, found.path, attempt)])[0]


# ---------------------------------------------------------------- what decides


def _outcome(a: Row, b: Row) -> Line:
    same = a.outcome == b.outcome
    told = "; ".join(dict.fromkeys(row.why for row in (a, b) if not row.comparable))
    return Line("outcome", a.outcome, b.outcome, "identical" if same else "differs", told)


def _rows_used(a: Row, b: Row) -> Iterator[Line]:
    for index, what in enumerate(("training rows", "test rows")):
        one, two = a.fingerprints[index], b.fingerprints[index]
        if one and two:
            yield Line(what, one, two, "identical" if one == two else "differs")


def _losses(a: Row, b: Row) -> Iterator[Line]:
    if a.training is None or b.training is None:
        return
    for what, one, two in (
        ("step losses", a.training.curve, b.training.curve),
        ("validation losses", a.training.validation, b.training.validation),
    ):
        if one and two:
            yield _curve(what, [loss for _, loss in one], [loss for _, loss in two])


def _curve(what: str, one: Sequence[float], two: Sequence[float]) -> Line:
    """Identical, or where they part, by how much, and whether one lies above the other.

    The mean difference is tested over blocks of neighbours, as a run that has parted stays apart
    for some steps (`bench/score/speed.py` draws the same way).
    """
    ends = f"{one[-1]:.6g}", f"{two[-1]:.6g}"
    if len(one) != len(two):
        return Line(what, *ends, "differs", f"{len(one)} against {len(two)} of them")
    gaps = np.array(two) - np.array(one)
    if not gaps.any():
        return Line(what, *ends, "identical", f"all {len(one)}")
    mean = float(gaps.mean())
    drawn = gaps[block_draws(len(gaps), np.random.default_rng(SEED))].mean(axis=1)
    low, high = percentile_interval(drawn) or (mean, mean)
    told = (
        f"part at {int(np.flatnonzero(gaps)[0]) + 1} of {len(gaps)}; largest difference "
        f"{np.abs(gaps).max():.2g}, mean {mean:+.2g} ({low:+.2g} to {high:+.2g})"
    )
    near = abs(mean) <= DRIFT * float(np.mean(np.abs(one))) or low <= 0 <= high
    return Line(what, *ends, "within noise" if near else "differs", told)


def _answers(first: Attempt, second: Attempt) -> Iterator[Line]:
    one, two = ({p.id: p.prediction for p in side.predictions} for side in (first, second))
    if not one or not two:
        return
    shared = [name for name in one if name in two]
    other = [name for name in shared if one[name] != two[name]]
    counts = show.count(len(one)), show.count(len(two))
    if len(shared) < max(len(one), len(two)):
        yield Line("answers", *counts, "differs", f"{len(shared)} rows in both")
    elif not other:
        yield Line("answers", *counts, "identical", "word for word")
    else:
        told = f"{len(other)} of {len(shared)} are other words, e.g. {', '.join(other[:3])}"
        yield Line("answers", *counts, "within noise", told)  # the scores say whether it matters


def _scores(a: Row, b: Row) -> list[Line]:
    """Every metric with its paired test, Holm-corrected over all of them."""
    one, two = Entry((a,)), Entry((b,))
    panel = Panel((one, two))
    tested: list[tuple[str, Difference]] = []
    for metric in panel.metrics:
        shared = pairs.common_rows([two, one], metric)
        if isinstance(shared, str):
            continue
        asked = replace(pairs.question(panel, metric, ()), clusters=None)
        ours, theirs = (pairs.side(entry, metric, shared) for entry in (two, one))
        if found := difference(ours, theirs, asked):
            tested.append((metric, found))
    verdicts = judge([found for _, found in tested])
    lines = []
    for (metric, found), verdict in zip(tested, verdicts, strict=True):
        values = _score(one, metric), _score(two, metric)
        bounds = show.between(found.low, found.high, show.difference)
        told = f"{show.difference(found.value)} ({bounds}), p {show.p_value(verdict.p)}"
        word: Verdict = "differs" if verdict.outcome in ("better", "worse") else "within noise"
        if not found.differing:
            word, told = "identical", f"on all {show.count(found.n)} rows"
        lines.append(Line(f"score {metric}", *values, word, told))
    return lines


def _score(entry: Entry, metric: str) -> str:
    found = entry.quality(metric)
    return show.score(found.value if found else None)


# ---------------------------------------------------------------- what is told beside it


def _speed(a: Row, b: Row) -> Iterator[Line]:
    one, two = Entry((a,)), Entry((b,))
    if one.speed is None or two.speed is None:
        return
    values = show.number(one.speed.value), show.number(two.speed.value)
    found = speeds.compared(two, one)
    if isinstance(found, list):
        yield Line("tokens/s", *values, "not compared", "; ".join(found), result=False)
        return
    bounds = show.between(found.low, found.high)
    same = found.low is None or found.high is None or found.low <= 1 <= found.high
    told = f"×{show.number(found.value)}" + (f" ({bounds})" if bounds else "")
    yield Line("tokens/s", *values, "within noise" if same else "differs", told, result=False)


def _peaks(a: Row, b: Row) -> Iterator[Line]:
    device = a.cell.target.device
    for phase in dict.fromkeys(peak.phase for peak in a.peaks):
        tops = [row.peak(phase) for row in (a, b)]
        one, two = (top.counted(device) if top else None for top in tops)
        if not one or not two:
            continue
        word: Verdict = "within noise" if abs(two / one - 1) <= SAME_PEAK else "differs"
        word = "identical" if one == two else word
        told = f"×{show.number(two / one)}"
        yield Line(f"peak of {phase}, GiB", show.gib(one), show.gib(two), word, told, result=False)


def _chance(a: Row, b: Row) -> tuple[str, ...] | None:
    known = [row.audit.nondeterministic_ops for row in (a, b) if row.audit]
    named = [ops for ops in known if ops is not None]
    return tuple(sorted({op for ops in named for op in ops})) if named else None


# ---------------------------------------------------------------- told


def table(found: Repeat) -> pd.DataFrame:
    first, second = found.attempts
    return frame(
        {
            "what": line.what,
            first: line.first,
            second: line.second,
            "verdict": line.verdict,
            "how far": line.told,
        }
        for line in found.lines
    )


def notes(found: Repeat) -> Iterator[str]:
    """What may explain a difference."""
    if found.environment:
        yield "environment: " + "; ".join(found.environment)
    else:
        yield "environment: the same machine, driver, versions and commit"
    if found.chance is None:
        yield "non-deterministic operations: not watched in these attempts"
    elif found.chance:
        yield f"non-deterministic operations (by torch): {', '.join(found.chance)}"
    else:
        yield "non-deterministic operations (by torch): none in the first step"
