"""The first section: which option to take, what it costs, and what would change that answer.

Sentences are inline Markdown; links with # lead to places on the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from bench.report import compare, show
from bench.report.advice import MONTHS, Advice, hours
from bench.report.frames import Link, frame
from bench.report.options import Against, Option, reference
from bench.spec import Constraints

SHOWN = 12  # lines of the table that stand open; the rest is folded
NAMED = 4


def sentences(advice: Advice) -> list[str]:
    """The answer in words, first sentence first."""
    if not advice.measured:
        return list(_predicted(advice))
    if advice.take is None:
        return [
            f"On **{show.markdown(advice.dataset)}** nothing can be recommended: of "
            f"{show.many(len(advice.rejected), 'option')} none {_keeps(advice.constraints)}. "
            "The table says why for each."
        ]
    return list(_taken(advice, advice.take))


def _keeps(asked: Constraints) -> str:
    told = constraints(asked)
    return f"worked and keeps to {told}" if told else "worked and has a score"


def constraints(asked: Constraints) -> str:
    """What was asked for, in words; empty where nothing was."""
    told = [
        f"at most {show.usd(asked.max_usd)} a run" if asked.max_usd is not None else "",
        f"at most {hours(asked.max_hours)} a run" if asked.max_hours is not None else "",
        f"on {show.listed(list(asked.targets), 'or')}" if asked.targets else "",
        f"a score of {show.score(asked.min_score)}" if asked.min_score is not None else "",
        f"at most {show.score(asked.max_loss_vs_full)} lost against the reference"
        if asked.max_loss_vs_full is not None
        else "",
        f"{asked.monthly_tokens:,.0f} tokens served a month" if asked.monthly_tokens else "",
        f"a first token within {asked.max_latency_ms:g} ms" if asked.max_latency_ms else "",
    ]
    return show.listed([part for part in told if part])


# ---------------------------------------------------------------- measured


def _taken(advice: Advice, take: Option) -> Iterator[str]:
    told = constraints(advice.constraints)
    where = f"On **{show.markdown(advice.dataset)}**"
    if not take.entry.is_api:
        where += f", on **{show.markdown(take.target)}**"
    costs = f"[costs {_cost(take)}](#cost) and takes {hours(take.hours)} for one run, all phases."
    if take.entry.is_api:
        costs = f"[costs {_answers(take)}](#cost); nothing is trained."
    yield (
        f"{where}{f', with {told}' if told else ''}: **take {name(take, advice)}**. "
        f"It scores [{_scored(take)}](#quality) by {show.markdown(advice.metric)}{_on_rows(take)}, "
        f"{costs}"
    )
    yield from _reference(advice, take)
    if take is not advice.best and advice.best:
        yield (
            f"{_capital(name(advice.best, advice))} has the higher score "
            f"({_scored(advice.best)}), but the test shows no difference larger than the margin, "
            f"and {name(take, advice)} is cheaper."
        )
    yield from _open(advice, take)
    yield from _second(advice, take)


def _reference(advice: Advice, take: Option) -> Iterator[str]:
    """Loses or gains Q ± q against full fine-tuning."""
    other = reference(take, advice.everything)
    if other is None and take.entry.is_api:
        return
    if other is None:
        method = show.markdown(take.panel.comparison.reference)
        yield f"There is no run of {method} of this model here to hold it against."
        return
    if other is take:
        base = take.panel.base(take.entry)
        found = take.against(Option(base, take.panel)) if base else None
        if found and base:
            yield f"Against the untuned model: {_difference(found)}."
        return
    found = take.against(other)
    if found:
        yield f"Against {name(other, advice)}: {_difference(found)}."
    elif not other.measured:
        yield (
            f"It can't be held against {name(other, advice)}, which has no result "
            f"({show.markdown(other.entry.status)}, see [What failed](#failures))."
        )


def _open(advice: Advice, take: Option) -> Iterator[str]:
    tested = [o for o in advice.open if o.against(take)]
    untested = [o for o in advice.open if not o.against(take)]
    if tested:
        names = show.listed(_few([name(o, advice) for o in tested]))
        yield (
            f"**Not settled:** these test rows can't tell it from {names} "
            "([paired tests](#differences))."
        )
    if untested:
        places = [f" on {show.markdown(o.target)}" * (o.target != take.target) for o in untested]
        named = [name(o, advice) + place for o, place in zip(untested, places, strict=True)]
        names = show.listed(_few(named))
        yield f"Not tested against it (another machine, or no common rows): {names}."


def _second(advice: Advice, take: Option) -> Iterator[str]:
    second = advice.second
    if second is None:
        return
    found = second.against(take)
    how = "The cheaper" if _cheaper(second, take) else "The"
    ratio = _ratio(second, take)
    told = f"{how} second choice is **{name(second, advice)}**: {_scored(second)} for "
    told += _cost(second) + (f", {ratio}" if ratio else "")
    yield told + (f". Against the choice: {_difference(found)}." if found else ".")


def _cheaper(one: Option, other: Option) -> bool:
    a = one.usd.value if one.usd else None
    b = other.usd.value if other.usd else None
    return a is not None and b is not None and a < b


def _ratio(one: Option, other: Option) -> str:
    a = one.usd.value if one.usd else None
    b = other.usd.value if other.usd else None
    if not a or not b:
        return ""
    share = abs(a / b - 1)
    return f"{show.share(share)} {'less' if a < b else 'more'}"


def _difference(found: Against) -> str:
    """+0.430 (+0.345 to +0.516), corrected p < 0.001: better"""
    bounds = show.between(found.low, found.high, show.difference)
    text = show.difference(found.value) + (f" ({bounds})" if bounds else "")
    p = show.p_value(found.p)
    margin = "the margin" if found.margin is None else f"{found.margin:g}"
    words = {
        "equivalent": f"no difference larger than {margin}",
        "not resolved": "not resolved, which isn't the same as equal",
    }.get(found.outcome, found.outcome)
    sign = "" if p.startswith("<") else "= "
    tested = "no p" if found.p is None else f"corrected p {sign}{p}"
    return f"{text}, {tested}: {words}".replace("<", "&lt;")


# ---------------------------------------------------------------- predicted


def _predicted(advice: Advice) -> Iterator[str]:
    data = show.markdown(advice.dataset)
    yield (
        f"On **{data}** nothing has been run yet, so **quality is unknown**: what follows is "
        "predicted, training and generation: [what fits](#fit) and what it costs, "
        "not what is best."
    )
    if not advice.accepted:
        asked = constraints(advice.constraints)
        yield f"Nothing {f'keeps to {asked}' if asked else 'is predicted to fit'}; see the table."
        return
    models = dict.fromkeys(option.entry.model for option in advice.everything)
    for model in list(models)[:NAMED]:
        yield _model(advice, model)
    if len(models) > NAMED:
        yield f"{len(models) - NAMED} more models stand in the table."


def _model(advice: Advice, model: str) -> str:
    """What fits of one model: cheapest first; what doesn't, and why."""
    fits = [option for option in advice.accepted if option.entry.model == model]
    if not fits:
        trained = [
            r
            for r in advice.rejected
            if r.option.entry.model == model and r.option.entry.cell.method.trains
        ]
        reason = f" (e.g. {_short(trained[0].reasons[0])})" if trained else ""
        return f"**{show.markdown(model)}**: nothing to recommend{reason}."
    first = fits[0]
    others = {option.entry.method: option for option in reversed(fits)}
    others.pop(first.entry.method)
    told = [f"{_where(option)} for {_cost(option)}" for option in reversed(others.values())]
    more = f" Other methods: {show.listed(told)}." if told else " No other method fits."
    return (
        f"**{show.markdown(model)}**: cheapest that fits is {_where(first)}, {_cost(first)} and "
        f"{hours(first.hours)} a run.{more}"
    )


def _where(option: Option) -> str:
    return f"{show.markdown(option.entry.method)} on {show.markdown(option.target)}"


def _short(text: str) -> str:
    return show.markdown(show.plain(text, 120))


# ---------------------------------------------------------------- what would change it


def changes(advice: Advice) -> list[str]:
    """What would have to be otherwise for another answer; from the data, not from a template."""
    if not advice.measured:
        return list(_to_run(advice))
    take = advice.take
    if take is None:
        return []
    return [
        *_rows(advice, take),
        *_tolerance(advice, take),
        *_volume(advice),
        *_margin(advice, take),
    ]


def _rows(advice: Advice, take: Option) -> Iterator[str]:
    needed = [
        (name(option, advice), found.rows_needed)
        for option in advice.open
        if (found := option.against(take)) and found.rows_needed
    ]
    for who, rows in needed[:NAMED]:
        yield f"More test rows: about {rows:,} would settle it against {who}."
    single = len(take.good) == 1 and take.entry.cell.method.trains
    if single and advice.open:
        yield (
            "More seeds: each run has one, so how much another seed would move the scores is "
            "unknown."
        )


def _tolerance(advice: Advice, take: Option) -> Iterator[str]:
    """A loss that buys something."""
    found = []
    for option in advice.accepted:
        against = option.against(take)
        if not against or not _cheaper(option, take) or not option.entry.cell.method.trains:
            continue
        loss = -compare.sign(advice.metric) * against.value
        if loss > 0:
            found.append((loss, option))
    for loss, option in sorted(found, key=lambda pair: pair[0])[:3]:
        yield (
            f"If losing {show.score(loss)} by {show.markdown(advice.metric)} is acceptable: "
            f"{name(option, advice)}, at {_ratio(option, take)} cost."
        )
    usd = take.usd
    if usd and usd.value and usd.high and usd.low and usd.high > usd.low:
        yield (
            f"Prices: at those found, its run costs {show.usd(usd.low)} to {show.usd(usd.high)}; "
            "a price moves all options of one machine alike."
        )


def _volume(advice: Advice) -> Iterator[str]:
    if advice.constraints.monthly_tokens is None and any(o.entry.is_api for o in advice.accepted):
        yield (
            "Volume: an API is paid for every answer, and only the test's are counted here. "
            f"`--monthly-tokens …` weighs {MONTHS} months of serving too."
        )


def _margin(advice: Advice, take: Option) -> Iterator[str]:
    if take.panel.comparison.delta(advice.metric) is None and advice.open:
        yield (
            "A margin: the suite states no loss that wouldn't matter to you "
            "(`comparison: {margin: …}`), so nothing cheaper may count as good enough."
        )
    if not constraints(advice.constraints):
        yield (
            "Constraints: none were stated. `bench report SUITE --max-usd … --max-loss-vs-full …` "
            "redraws this answer under yours."
        )


def _to_run(advice: Advice) -> Iterator[str]:
    if not advice.everything:
        return
    suite = advice.everything[0].panel.cell.suite
    yield (
        "Measured quality: run the cheapest ones first, "
        f"`bench run {suite} --only model=…,method=…`, then draw this report again."
    )
    narrow = [
        option
        for option in advice.accepted
        if option.plan and any("narrow" in note for note in option.plan.notes)
    ]
    if narrow:
        names = show.listed(_few([f"{name(o, advice)} on {o.target}" for o in narrow]))
        yield (
            f"Memory: within the prediction's error of the limit are {names}: "
            "a run begins with a probe."
        )
    helped = [r.option for r in advice.rejected if r.option.plan and r.option.plan.changes]
    for option in helped[:3]:
        plan = option.plan
        assert plan is not None  # chosen above
        yield (
            f"{name(option, advice)} on {show.markdown(option.target)} would fit with: "
            f"{show.markdown(plan.changes[0])}."
        )


# ---------------------------------------------------------------- the table


def table(advice: Advice) -> pd.DataFrame:
    """Every option, ranked: those that may be taken, then the others with the reasons."""
    metric = advice.metric
    lines = [_line(option, advice, metric) for option in _ranked(advice)]
    lines += [
        _line(found.option, advice, metric) | {"verdict": "no: " + "; ".join(found.reasons)}
        for found in advice.rejected
    ]
    return frame(lines)


def grid(advice: Advice) -> pd.DataFrame:
    """Model × method against target, where only plans are known: cost and time, or what breaks."""
    lines: dict[tuple[str, str], dict[str, str | Link]] = {}
    for option in advice.everything:
        if not option.entry.cell.method.trains:
            continue
        key = (option.entry.model, option.entry.method)
        line = lines.setdefault(key, {"model": key[0], "method": key[1]})
        line[option.target] = _in_grid(option, advice)
    order = [option.entry.model for option in advice.everything]
    return frame(sorted(lines.values(), key=lambda line: order.index(str(line["model"]))))


def _in_grid(option: Option, advice: Advice) -> str | Link:
    row = option.entry.rows[0]
    reasons = next((r.reasons for r in advice.rejected if r.option is option), ())
    fits = f"{_cost(option)}, {hours(option.hours)}"
    text = f"no: {'; '.join(reasons)}" if reasons else fits
    path = row.link("plan.json")
    return Link(text, path) if path else text


def _ranked(advice: Advice) -> Sequence[Option]:
    first = [option for option in (advice.take,) if option]
    return [*first, *(option for option in advice.accepted if option is not advice.take)]


def _line(option: Option, advice: Advice, metric: str) -> dict[str, str | Link]:
    row = (option.good or option.entry.rows)[0]
    found = option.against(advice.take) if advice.take and option is not advice.take else None
    line: dict[str, str | Link] = {
        "model": option.entry.model,
        "method": Link(option.entry.method, f"../{row.id}/cell.json"),
        "target": option.target,
        "verdict": _verdict(option, advice),
    }
    if advice.measured:
        bounds = option.score and show.between(option.score.low, option.score.high, show.score)
        line[metric] = show.score(option.score.value if option.score else None)
        line["95 % interval"] = bounds or show.NONE
        line["against the choice"] = show.difference(found.value) if found else show.NONE
    line["USD a run"] = show.number(option.usd.value if option.usd else None)
    line["time of a run"] = hours(option.hours)
    if advice.constraints.monthly_tokens:
        month = option.serving_usd(advice.constraints)
        year = None if month is None else MONTHS * month
        line[f"USD of {MONTHS} months' serving"] = show.number(year)
    line["source"] = "measured" if option.measured else "predicted" if option.plan else show.NONE
    return line


def _verdict(option: Option, advice: Advice) -> str:
    if not advice.measured:
        return "fits; quality unknown"
    if option is advice.take:
        return "take this"
    found = option.against(advice.take) if advice.take else None
    second = "second choice; " if option is advice.second else ""
    if found is None:
        return second + "not tested against the choice"
    words = {
        "equivalent": "as good, within the margin",
        "not resolved": "open: not resolved against the choice",
    }
    return second + words.get(found.outcome, f"{found.outcome} than the choice")


# ---------------------------------------------------------------- words


def name(option: Option, advice: Advice) -> str:
    """The method alone where there is one model; foreign text escaped."""
    several = len({other.entry.model for other in advice.everything}) > 1
    return show.markdown(option.entry.label if several else option.entry.method)


def _on_rows(option: Option) -> str:
    found = option.entry.quality(option.panel.metric)
    return f" on {show.many(found.n, 'test row')}" if found and found.n else ""


def _scored(option: Option) -> str:
    score = option.score
    bounds = show.between(score.low, score.high, show.score) if score else ""
    return show.score(score.value if score else None) + (f" ({bounds})" if bounds else "")


def _answers(option: Option) -> str:
    """$0.02 for the 120 answers of the test, $0.17 per 1,000"""
    found = option.good[0].asked
    usd = option.usd.value if option.usd else None
    rows = found.rows if found else 0
    each = f", {show.usd(1000 * usd / rows)} per 1,000" if usd is not None and rows else ""
    return f"{show.usd(usd)} for the {rows:,} answers of the test{each}"


def _cost(option: Option) -> str:
    usd = option.usd.value if option.usd else None
    if usd is None:
        return "an unknown sum"
    return show.usd(usd) + (" of answers" if option.entry.is_api else "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _few(names: list[str]) -> list[str]:
    return names if len(names) <= NAMED + 1 else [*names[:NAMED], f"{len(names) - NAMED} others"]
