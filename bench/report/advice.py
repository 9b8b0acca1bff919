"""Which option to take under a person's constraints, and why none of the others.  Pure.

The rule, in this order:

1. An option must have worked, be what it is called, have a score, and keep every constraint.
   What a constraint asks about and nobody measured counts as not kept.
2. Best: the highest score of those.
3. Take: the cheapest among the best and all that the paired test calls equivalent to it (δ is the
   suite's `comparison: {margin: …}`); without a margin nothing is equivalent, so the best.
4. What isn't resolved against it stays in the list as open, never as worse.

Where nothing was measured, plans rank what fits by predicted cost, and the answer says that quality
is unknown.

    python -m pytest tests/report/test_advice.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.report import compare, show
from bench.report.compare import Panel
from bench.report.options import Option, options, reference
from bench.spec import Constraints

MONTHS = 12  # of serving that count beside one training run, where a monthly volume is stated


@dataclass(frozen=True)
class Rejected:
    option: Option
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """The answer for one dataset.

    `accepted` keeps every constraint, best score first (planned ones: cheapest first).  `open` are
    those of them that the tests can't tell from `take`.
    """

    dataset: str
    metric: str
    constraints: Constraints
    accepted: tuple[Option, ...]
    rejected: tuple[Rejected, ...]
    take: Option | None = None
    best: Option | None = None
    second: Option | None = None
    open: tuple[Option, ...] = ()
    measured: bool = True

    @property
    def everything(self) -> list[Option]:
        return [*self.accepted, *(found.option for found in self.rejected)]


def advise(panels: Sequence[Panel], constraints: Constraints) -> Advice:
    """The answer from all panels of one dataset."""
    every = list(options(panels))
    wanted = [option for option in every if option.entry.cell.method.needs_model]
    measured = any(option.score for option in wanted)
    accepted, rejected = [], []
    for option in wanted:
        reasons = tuple(_against_it(option, every, constraints, measured))
        if reasons:
            rejected.append(Rejected(option, reasons))
        else:
            accepted.append(option)
    panel = panels[0]
    if not measured:
        accepted.sort(key=lambda option: price(option, constraints))
        take = accepted[0] if accepted else None
        found = Advice(panel.dataset, panel.metric, constraints, tuple(accepted), tuple(rejected))
        return replace(found, take=take, measured=False)
    return _measured(panel, constraints, accepted, rejected)


def _measured(
    panel: Panel, constraints: Constraints, accepted: list[Option], rejected: list[Rejected]
) -> Advice:
    sign = compare.sign(panel.metric)

    def dear(option: Option) -> float:
        return price(option, constraints)

    accepted.sort(key=lambda option: (-sign * _score(option), dear(option)))
    found = Advice(panel.dataset, panel.metric, constraints, tuple(accepted), tuple(rejected))
    if not accepted:
        return found
    best = accepted[0]
    alike = [other for other in accepted[1:] if _outcome(other, best) == "equivalent"]
    take = min([best, *alike], key=dear)
    unsure = [o for o in accepted if o is not take and _outcome(o, take) in (None, "not resolved")]
    cheaper = [o for o in accepted if o is not take and dear(o) < dear(take)]
    second = next((o for o in cheaper if _teaches(o)), None)
    if second is None:
        second = next((o for o in accepted if o is not take and _teaches(o)), None)
    return replace(found, take=take, best=best, second=second, open=tuple(unsure))


def _teaches(option: Option) -> bool:
    """The untuned model is no second choice beside adapted ones: it stays in the table.  An API
    may have been tuned by whoever runs it."""
    return option.entry.cell.method.trains or option.entry.is_api


def _score(option: Option) -> float:
    return option.score.value if option.score and option.score.value is not None else -math.inf


def price(option: Option, asked: Constraints) -> float:
    """Dollars of one run, and of a year's serving where a volume is stated.

    Hours where nobody named a price; what is unknown is dearest.
    """
    usd = option.usd.value if option.usd else None
    if not usd and option.entry.is_api:
        return math.inf  # nobody named its price; its hours are no measure
    if not usd:
        return option.hours if option.hours is not None else math.inf
    if asked.monthly_tokens is None:
        return usd
    return usd + MONTHS * (option.serving_usd(asked) or 0.0)


def _outcome(option: Option, other: Option) -> str | None:
    found = option.against(other)
    return found.outcome if found else None


# ---------------------------------------------------------------- why not


def _against_it(
    option: Option, every: Sequence[Option], asked: Constraints, measured: bool
) -> Iterator[str]:
    """Every reason that speaks against an option; none for one that may be taken."""
    machine = not option.entry.is_api  # an API can be asked from any
    if asked.targets and machine and option.target not in asked.targets:
        yield f"{option.target} is not among your machines"
    if measured:
        if not option.measured or option.score is None or option.score.value is None:
            yield _what_happened(option)
    else:
        yield from _not_planned(option)
    yield from _too_dear(option, asked)
    yield from _too_bad(option, every, asked)
    yield from _too_slow(option, asked)


def _what_happened(option: Option) -> str:
    if option.planned:
        return "planned only: its quality was not measured"
    if option.measured:
        return f"no score: {option.good[0].no_quality or 'not scored'}"
    row = option.entry.bad[0]
    return show.plain(f"{option.entry.status}: {row.why}", 160)


def _not_planned(option: Option) -> Iterator[str]:
    plan = option.plan
    if not option.planned:
        yield _what_happened(option)
    elif option.entry.is_api:
        yield "behind an API: quality and cost are known once it was asked"
    elif not option.entry.cell.method.trains:
        yield "trains nothing: a base to compare with, its quality not measured"
    elif plan is None or plan.fits is None:
        yield "whether it fits is unknown" + _note(option)
    elif not plan.fits:
        yield "does not fit: " + show.plain(plan.breaks or "no reason was recorded", 160)


def _note(option: Option) -> str:
    notes = option.plan.notes if option.plan else ()
    return f": {show.plain(notes[0], 120)}" if notes else ""


def _too_dear(option: Option, asked: Constraints) -> Iterator[str]:
    if asked.max_usd is not None:
        usd = option.usd.value if option.usd else None
        if usd is None:
            yield "its cost is unknown"
        elif usd > asked.max_usd:
            yield f"{show.usd(usd)} a run is more than {show.usd(asked.max_usd)}"
    if asked.max_hours is not None:
        if option.hours is None:
            yield "its time is unknown"
        elif option.hours > asked.max_hours:
            yield f"{hours(option.hours)} a run is more than {hours(asked.max_hours)}"


def _too_bad(option: Option, every: Sequence[Option], asked: Constraints) -> Iterator[str]:
    sign = compare.sign(option.panel.metric)
    value = option.score.value if option.score else None
    if asked.min_score is not None:
        if value is None:
            yield f"whether it reaches {show.score(asked.min_score)} was not measured"
        elif sign * value < sign * asked.min_score:
            yield f"{show.score(value)} does not reach {show.score(asked.min_score)}"
    if asked.max_loss_vs_full is not None:
        yield from _loses(option, reference(option, every), asked.max_loss_vs_full, sign)


def _loses(option: Option, other: Option | None, most: float, sign: int) -> Iterator[str]:
    """More than `most` worse than the reference, or nobody knows."""
    if other is option:
        return
    if other is None:
        yield f"no run of {option.panel.comparison.reference} to compare its loss with"
        return
    found = option.against(other)
    if found is None:
        yield f"its loss against {other.entry.method} was not measured"
    elif -sign * found.value > most:
        loss = show.score(-sign * found.value)
        yield f"loses {loss} against {other.entry.method}, more than {show.score(most)}"


def _too_slow(option: Option, asked: Constraints) -> Iterator[str]:
    if asked.max_latency_ms is not None:
        point = option.served(asked)
        found = point.first_token_p95_ms if point else None
        if found is None:
            yield "its latency was not measured"
        elif found > asked.max_latency_ms:
            yield f"first token after {found:.0f} ms (p95), more than {asked.max_latency_ms:g} ms"
    if asked.monthly_tokens is not None and option.serving_usd(asked) is None:
        yield "its cost of serving was not measured" + _why_not_served(option)


def _why_not_served(option: Option) -> str:
    told = [row.served.record.reason for row in option.good if row.served]
    return next((f": {show.plain(reason, 120)}" for reason in told if reason), "")


def hours(value: float | None) -> str:
    """3.2 h, or minutes and seconds where hours would be a small fraction."""
    if value is None:
        return show.NONE
    if value >= 1:
        return f"{show.number(value)} h"
    return f"{show.number(60 * value)} min" if value * 60 >= 1 else f"{show.number(3600 * value)} s"
