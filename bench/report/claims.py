"""Published figures against what was measured or predicted here, with a verdict for each.

    confirmed               every figure found here lies within the claim's bounds
    contradicted            none does
    partly                  some do
    can't be tested here    no figure, or none that settles it; the reason stands beside it

Measured figures count before predicted ones.  suites/claims/*.yaml hold the claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from bench.document import read_yaml, validate
from bench.report import compare, show
from bench.report.compare import Panel
from bench.report.fits import Fit
from bench.report.frames import Link, frame
from bench.report.options import Option, options
from bench.spec import Claim, ClaimFile, Constraints, Measure

Verdict = Literal["confirmed", "contradicted", "partly", "can't be tested here"]
Source = Literal["measured", "predicted"]
UNSHARDED = ("single", "ddp")
UNITS = {
    "device_gib": "GiB",
    "weights_gb": "GB",
    "hours": "h",
    "tokens_per_s": "tokens/s",
    "usd": "USD",
    "serving_usd_per_million_tokens": "USD",
}


@dataclass(frozen=True)
class Figure:
    """One figure found here.  `holds`: does it lie within the claim; None where it can't tell."""

    value: float | None
    source: Source
    where: str
    holds: bool | None
    words: str


@dataclass(frozen=True)
class Finding:
    claim: Claim
    publication: ClaimFile
    verdict: Verdict
    figures: tuple[Figure, ...] = ()
    reason: str = ""


def read(folder: Path) -> list[ClaimFile]:
    """Every claims file of a folder.  Raises UserError with file and line."""
    return [validate(ClaimFile, read_yaml(path)) for path in sorted(folder.glob("*.yaml"))]


def judge(files: Sequence[ClaimFile], panels: Sequence[Panel]) -> list[Finding]:
    found = list(options(panels))
    return [_finding(claim, file, found) for file in files for claim in file.claims]


def _finding(claim: Claim, file: ClaimFile, every: Sequence[Option]) -> Finding:
    about = [option for option in every if _about(claim, option)]
    if not about:
        elsewhere = tuple(_elsewhere(claim, every))
        return Finding(claim, file, "can't be tested here", elsewhere, _missing(claim, every))
    figures = [figure for option in about for figure in _best(claim, option, every)]
    if not figures:
        what = claim.measure.what.replace("_", " ")
        reason = f"no cell has it: {what} was neither measured nor predicted"
        return Finding(claim, file, "can't be tested here", reason=reason)
    if claim.untestable:
        return Finding(claim, file, "can't be tested here", tuple(figures), claim.untestable)
    told = [figure.holds for figure in figures if figure.holds is not None]
    if not told:
        reason = "these rows can't tell"
        return Finding(claim, file, "can't be tested here", tuple(figures), reason)
    verdict: Verdict = "confirmed" if all(told) else "partly" if any(told) else "contradicted"
    return Finding(claim, file, verdict, tuple(figures))


def _about(claim: Claim, option: Option) -> bool:
    cell = option.entry.cell
    return (
        cell.method.kind == claim.measure.method
        and (not claim.models or cell.model.name in claim.models)
        and (not claim.targets or cell.target.name in claim.targets)
    )


def _elsewhere(claim: Claim, every: Sequence[Option]) -> Iterator[Figure]:
    """Ratios of other models: no verdict on the claim, but our figure beside it."""
    if claim.measure.against and not claim.targets:
        anywhere = claim.model_copy(update={"models": ()})
        for option in every:
            if _about(anywhere, option):
                yield from _figures(anywhere, option, every)


def _missing(claim: Claim, every: Sequence[Option]) -> str:
    cells = [option.entry.cell for option in every]
    if claim.models and not any(cell.model.name in claim.models for cell in cells):
        return f"this suite has no {show.listed(list(claim.models), 'or')}"
    if claim.targets and not any(cell.target.name in claim.targets for cell in cells):
        return f"this suite has no {show.listed(list(claim.targets), 'or')}"
    return f"this suite has no {claim.measure.method} of it"


# ---------------------------------------------------------------- figures


def _best(claim: Claim, option: Option, every: Sequence[Option]) -> list[Figure]:
    """What was measured of an option; else what was predicted."""
    found = list(_figures(claim, option, every))
    return [figure for figure in found if figure.source == "measured"] or found


def _figures(claim: Claim, option: Option, every: Sequence[Option]) -> Iterator[Figure]:
    measure = claim.measure
    other = _other(option, every, measure.against)
    if measure.against and other is None:
        return
    if measure.what == "same_score":
        yield from _same(claim, option, other)
    elif measure.what == "fits":
        yield from _fits(claim, option)
    else:
        for source, value in VALUES[measure.what](option, measure):
            figure = _combined(claim, option, other, source, value)
            if figure:
                yield figure


def _combined(
    claim: Claim, option: Option, other: Option | None, source: Source, value: float
) -> Figure | None:
    measure = claim.measure
    words = _printed(value, measure)
    if other is not None:
        theirs = dict(VALUES[measure.what](other, measure)).get(source)
        if theirs is None or (measure.combine == "ratio" and not theirs):
            return None
        words = f"{words} against {_printed(theirs, measure)}"
        value = value / theirs if measure.combine == "ratio" else value - theirs
        words += f": {'×' if measure.combine == 'ratio' else ''}{show.number(value)}"
    expect = claim.expect
    low_ok = expect.low is None or value >= expect.low
    high_ok = expect.high is None or value <= expect.high
    return Figure(value, source, _where(option), low_ok and high_ok, words)


def _printed(value: float, measure: Measure) -> str:
    unit = UNITS.get(measure.what, "")
    return f"{show.number(value)} {unit}".strip()


def _other(option: Option, every: Sequence[Option], kind: str | None) -> Option | None:
    for other in every:
        cell = other.entry.cell
        same = other.panel is option.panel and cell.model.name == option.entry.model
        if same and cell.method.kind == kind:
            return other
    return None


def _where(option: Option) -> str:
    return f"{option.entry.model} on {option.target}, {option.panel.dataset}"


def _same(claim: Claim, option: Option, other: Option | None) -> Iterator[Figure]:
    """A difference that is shown contradicts; equivalence confirms; unresolved tells nothing."""
    metric = _metric(option, claim.measure)
    pair = option.panel.pair(option.entry, other.entry, metric) if other and metric else None
    if pair is None or pair.verdict is None or pair.difference is None:
        return
    holds = {"equivalent": True, "better": False, "worse": False}.get(pair.verdict.outcome)
    said = f"{show.difference(pair.difference.value)}, {pair.verdict.words}"
    yield Figure(pair.difference.value, "measured", _where(option), holds, said)


def _fits(claim: Claim, option: Option) -> Iterator[Figure]:
    fit = Fit((option.entry,))
    if fit.answer == "unknown":
        return
    measured = fit.measured_bytes is not None or fit.ran_out is not None
    source: Source = "measured" if measured else "predicted"
    yes = fit.answer != "does not fit"
    strategy = option.plan.strategy if option.plan else None
    wanted = claim.measure.strategy
    if wanted and strategy != wanted:
        return
    size = fit.measured_bytes if measured else fit.predicted_bytes
    words = f"{fit.answer}, {show.gib(size)} GiB" + (f", {strategy}" if strategy else "")
    yield Figure(float(yes), source, _where(option), yes == claim.expect.holds, words)


Values = Iterator[tuple[Source, float]]


def _device_gib(option: Option, measure: Measure) -> Values:
    plan, strategy = option.plan, option.entry.cell.strategy.name
    fit = Fit((option.entry,))
    cuda = option.entry.cell.target.device == "cuda"
    if cuda and fit.measured_bytes is not None and (not measure.unsharded or strategy == "single"):
        yield "measured", fit.measured_bytes / show.GIB
    whole = plan is not None and (not measure.unsharded or plan.strategy in UNSHARDED)
    if plan and whole and plan.device_bytes is not None:
        yield "predicted", plan.device_bytes / show.GIB


def _weights_gb(option: Option, measure: Measure) -> Values:
    for row in option.good:
        if row.audit:
            yield "measured", sum(row.audit.bytes_by_dtype.values()) / 1e9
            break
    if option.plan and option.plan.weights_bytes is not None:
        yield "predicted", option.plan.weights_bytes / 1e9


def _hours(option: Option, measure: Measure) -> Values:
    """Of `rows` examples: step seconds × rows ÷ global batch."""
    batch = option.entry.cell.budget.global_batch
    rows = measure.rows
    if option.plan and option.plan.step_s is not None and rows:
        yield "predicted", option.plan.step_s * rows / batch / 3600


def _tokens_per_s(option: Option, measure: Measure) -> Values:
    if option.entry.speed and option.entry.speed.value is not None:
        yield "measured", option.entry.speed.value
    if option.plan and option.plan.tokens_per_s is not None:
        yield "predicted", option.plan.tokens_per_s


def _usd(option: Option, measure: Measure) -> Values:
    if option.entry.cost and option.entry.cost.value:
        yield "measured", option.entry.cost.value
    if option.plan and option.plan.usd:
        yield "predicted", option.plan.usd


def _score(option: Option, measure: Measure) -> Values:
    metric = _metric(option, measure)
    found = option.entry.quality(metric) if metric else None
    if found and found.value is not None:
        yield "measured", found.value


def _metric(option: Option, measure: Measure) -> str | None:
    """The dataset's first metric, or its first one of that name."""
    if measure.metric is None:
        return option.panel.metric
    names = [m for m in option.panel.metrics if m.rpartition(".")[2] == measure.metric]
    return next(iter(names), None)


def _group_gain(pick: Callable[[Sequence[float]], float]) -> Callable[[Option, Measure], Values]:
    def value(option: Option, measure: Measure) -> Values:
        metric = _metric(option, measure)
        if metric is None:
            return
        panel, entry = option.panel, option.entry
        gains = [compare.group_gain(panel, entry, group, metric) for group in panel.groups]
        known = [gain for gain in gains if gain is not None]
        if known:
            yield "measured", pick(known)

    return value


def _serving(option: Option, measure: Measure) -> Values:
    point = option.served(Constraints())
    if point:
        yield "measured", point.offer.per_million.usd


VALUES: dict[str, Callable[[Option, Measure], Values]] = {
    "device_gib": _device_gib,
    "weights_gb": _weights_gb,
    "hours": _hours,
    "tokens_per_s": _tokens_per_s,
    "usd": _usd,
    "score": _score,
    "lowest_group_gain": _group_gain(min),
    "highest_group_gain": _group_gain(max),
    "serving_usd_per_million_tokens": _serving,
}


# ---------------------------------------------------------------- told


def summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.verdict for finding in findings)
    told = show.listed([f"{count} {verdict}" for verdict, count in sorted(counts.items())])
    return f"Of {show.many(len(findings), 'published claim')}: {told}."


def table(findings: Sequence[Finding]) -> pd.DataFrame:
    return frame(_line(finding) for finding in findings)


def _line(finding: Finding) -> dict[str, str | Link]:
    source = finding.publication.source
    title = show.plain(source.title, 60)
    return {
        "claim": show.plain(finding.claim.text),
        "verdict": finding.verdict,
        "here": _here(finding.figures),
        "why not": show.plain(finding.reason),
        "source": Link(title, source.url) if source.url else title,
    }


def _here(figures: Sequence[Figure]) -> str:
    """At most three figures, and how many more."""
    told = [f"{figure.source} {figure.words} ({figure.where})" for figure in figures[:3]]
    more = len(figures) - len(told)
    return "; ".join(told) + (f"; {more} more" if more > 0 else "") or show.NONE
