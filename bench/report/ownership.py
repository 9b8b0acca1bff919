"""What it costs to own: a training run, its storage, and serving it, against paying an API.

Sentences for the answer, tables for the section on cost.  Everything served is priced at the
utilisation that the suite states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from bench.record import Status
from bench.report import answer, compare, show
from bench.report.advice import MONTHS, Advice
from bench.report.compare import Entry, Panel
from bench.report.frames import frame
from bench.report.options import Option
from bench.report.rows import Row
from bench.report.serving import Point, Variant
from bench.score import serving
from bench.score.cost import Usd
from bench.spec import Constraints


def sentences(advice: Advice) -> list[str]:
    """Of the option to take: what serving it costs, whether an API is cheaper, a year's sum."""
    asked = advice.constraints
    told = []
    for option in _told_of(advice):
        point = option.served(asked)
        if point is None:
            continue
        if option is advice.take:
            told.append(_price(point))
        told += _against_api(option, point, answer.name(option, advice))
        if option is advice.take:
            told.append(_year(option, point, asked.monthly_tokens))
    return told


def _told_of(advice: Advice) -> list[Option]:
    """The option to take; then the best of each model, where it is another one."""
    if advice.take is None or not advice.measured:
        return []
    found = {advice.take.entry.model: advice.take}
    best = [advice.take]
    for option in advice.accepted:  # best score first
        first = found.setdefault(option.entry.model, option)
        if first is option and option is not advice.take:
            best.append(option)
    if advice.best and advice.best not in best:
        best.insert(1, advice.best)
    return best[: answer.NAMED]


def _price(point: Point) -> str:
    load, per_million = point.load, point.offer.per_million
    ends = show.between(per_million.low_usd, per_million.high_usd, show.usd)
    first = load.first_token
    waits = (
        f" and the first token comes within {show.milliseconds(first.p95)} ms (p95, n = {first.n})"
        if first
        else ""
    )
    return (
        f"Served ({_how(point)}), it does {show.number(load.tokens_per_s)} tokens/s{waits}: "
        f"[{show.usd(per_million.usd)} per million tokens](#serving) ({ends} by the machine's "
        f"price) at {show.share(point.offer.utilization)} utilisation, "
        f"{_mix(point)} of input to output."
    )


def _how(point: Point) -> str:
    variant = point.variant
    engine = f"{variant.engine} {variant.engine_version or ''}".strip()
    words = {"plain": "as evaluated", "merged": "adapter merged"}.get(variant.name, variant.name)
    return f"{show.markdown(engine)}, {words}, {point.load.concurrency} at once"


def _mix(point: Point) -> str:
    return f"{show.number(point.load.prompt_tokens / max(1, point.load.new_tokens))} : 1"


def _against_api(option: Option, point: Point, name: str) -> Iterator[str]:
    """The sentence that decides: better, and still dearer than paying per token; or from when."""
    api, price = point.asked.api, point.api_per_million
    if api is None or price is None:
        return
    own = point.offer.per_million.usd
    gained = _gain(option, name)
    named = show.markdown(api.provider)
    times = f"{show.number(own / price)} times {named}'s {show.usd(price)}" if price else named
    if own > price:
        yield (
            f"{gained}**but serving it costs more than {named}**: {show.usd(own)} per million "
            f"tokens, {times} for the same mix, at any volume; {_needed(point, own, price)}."
        )
        return
    yield (
        f"{gained}and serving it costs {show.usd(own)} per million tokens, {times} for the same "
        f"mix, where its machines are used as stated; but a machine costs the same when it idles: "
        f"**up to {_volumes(point)} tokens a month {named} is cheaper**."
    )


def _needed(point: Point, own: float, price: float) -> str:
    """How full the machines would have to be to cost what the API asks."""
    needed = point.offer.utilization * own / price if price else 2.0
    if needed > 1:
        return "even a machine that is always full would be dearer"
    return f"utilisation would have to be {show.share(needed)}"


def _gain(option: Option, name: str) -> str:
    """lora reaches +0.43 (+0.35 to +0.52) over the untuned model, …"""
    panel, entry = option.panel, option.entry
    base = panel.base(entry)
    found = option.against(Option(base, panel)) if base and base is not entry else None
    if found is None:
        how = "works" if entry.cell.method.trains else "needs no training"
        return f"**{name}** {how}, "
    bounds = show.between(found.low, found.high, show.difference)
    gain = show.difference(found.value) + (f" ({bounds})" if bounds else "")
    return f"**{name}** reaches {gain} by {show.markdown(panel.metric)} over the untuned model, "


def _volumes(point: Point) -> str:
    """The break-even volume, and its range over the machine's prices."""
    hour = point.offer.usd_per_hour
    middle, low, high = (point.break_even(usd) for usd in (hour.usd, hour.low_usd, hour.high_usd))
    if high is None:
        ends = f"{show.tokens(low)} at the machine's lowest price, any at its highest"
        return f"{show.tokens(middle)} ({ends})"
    return (
        f"{show.tokens(middle)} ({show.tokens(low)} to {show.tokens(high)} by the machine's price)"
    )


def _year(take: Option, point: Point, asked: float | None) -> str:
    """Training, storage and serving together; at a stated volume, else at one machine's."""
    tokens = asked or point.offer.capacity
    total, run = _total(take, point, tokens), _run(take)
    machines = point.offer.machines(tokens)
    stored = point.asked.storage_usd_per_gb_month is not None
    api = point.api_per_million
    beside = (
        f" {show.markdown(point.asked.api.provider)}: {show.usd(MONTHS * api * tokens / 1e6)}."
        if (api is not None and point.asked.api)
        else ""
    )
    volume = f"{show.tokens(tokens)} tokens a month" + ("" if asked else ", all that one answers")
    return (
        f"Cost of ownership, {MONTHS} months at {volume}: **{show.usd(total.usd)}** "
        f"({show.between(total.low_usd, total.high_usd, show.usd)}): the run "
        f"{show.usd(run.usd)}, {show.many(machines, 'machine')} that "
        f"{'runs' if machines == 1 else 'run'} all the time, "
        f"{'storage' if stored else 'storage not priced'}.{beside}"
    )


def _run(option: Option) -> Usd:
    cost = option.entry.cost
    value = cost.value if cost and cost.value is not None else 0.0
    low = cost.low if cost and cost.low is not None else value
    high = cost.high if cost and cost.high is not None else value
    return Usd(usd=value, low_usd=low, high_usd=high)


def _total(option: Option, point: Point, tokens: float) -> Usd:
    return serving.ownership(_run(option), point.offer.monthly(tokens), MONTHS)


# ---------------------------------------------------------------- tables


def table(panel: Panel) -> pd.DataFrame:
    """Every measurement: each variant of each cell at each concurrency; and what failed."""
    several = any(len(entry.rows) > 1 for entry in panel.entries)
    lines = []
    for entry in panel.entries:
        for row in entry.rows:
            if row.served is None:
                continue
            seed = {"seed": str(row.cell.seed)} if several else {}
            name = {"model": entry.model, "method": entry.method} | seed
            if not row.served.variants:
                lines.append(name | {"served": str(row.served.record.status)})
            for variant in row.served.variants:
                lines += [name | line for line in _lines(row, variant)]
    return frame(lines)


def _lines(row: Row, variant: Variant) -> Iterator[dict[str, str]]:
    record = variant.record
    told = {"served": record.name if variant.ok else f"{record.name}: {record.status}"}
    if not variant.loads:
        yield told
    assert row.served is not None
    for load in variant.loads:
        point = row.served.point_of(variant, load)
        usd = point.offer.per_million
        yield told | {
            "at once": str(load.concurrency),
            "requests": str(load.requests) + (f" + {load.errors} failed" if load.errors else ""),
            "first token, ms (p50)": show.milliseconds(_p(load.first_token, 50)),
            "(p95)": show.milliseconds(_p(load.first_token, 95)),
            "per token, ms (p50)": show.milliseconds(_p(load.per_token, 50)),
            "per token (p95)": show.milliseconds(_p(load.per_token, 95)),
            "tokens/s": show.number(load.tokens_per_s),
            "of them new": show.number(load.new_tokens_per_s),
            "requests/s": show.number(load.requests_per_s),
            "USD per M tokens": show.number(usd.usd) if variant.ok else show.NONE,
            "price range": show.between(usd.low_usd, usd.high_usd) if variant.ok else show.NONE,
            "peak, GiB": show.gib(_peak(row, record.host_bytes, record.device_bytes)),
            "start, s": show.number(record.start_s),
            "same answers": show.share(record.same_answers)
            + (f" of {record.compared_rows}" if record.compared_rows else ""),
        }


def failures(rows: Sequence[Row]) -> list[str]:
    """What wasn't served as asked, and why.  Sentences."""
    told = []
    for row in rows:
        record = row.served.record if row.served else None
        if record is None or record.status is Status.OK:
            continue
        bad = [(v.name, v.status, v.reason) for v in record.variants if v.status is not Status.OK]
        for name, status, reason in bad or [("", record.status, record.reason)]:
            what = f"{show.markdown(row.cell.model.name)} × {show.markdown(row.cell.method.name)}"
            why = show.markdown(show.plain(reason or "no reason was recorded", 300))
            told.append(f"{what}{f', {name}' if name else ''}: {status}: {why}")
    return told


def _p(found: serving.Spread | None, which: int) -> float | None:
    if found is None:
        return None
    return found.p50 if which == 50 else found.p95


def _peak(row: Row, host: int | None, device: int | None) -> int | None:
    return device if row.cell.target.device == "cuda" else host


def costs(panel: Panel, asked: Constraints) -> pd.DataFrame:
    """Each entry at its best concurrency: what a month costs, and when an API is dearer."""
    lines = []
    for option, point in options(panel, asked):
        offer = point.offer
        tokens = asked.monthly_tokens or offer.capacity
        month, total = offer.monthly(tokens), _total(option, point, tokens)
        line = {
            "model": option.entry.model,
            "method": option.entry.method,
            "served": f"{point.variant.name}, {point.load.concurrency} at once",
            "USD per M tokens": show.number(offer.per_million.usd),
            "M tokens a month": show.number(tokens / 1e6),
            "machines": str(offer.machines(tokens)),
            "USD a month": show.number(month.usd),
            "of it storage": show.number(offer.storage_usd_per_month)
            if point.asked.storage_usd_per_gb_month is not None
            else show.NONE,
            "USD of the run": show.number(_run(option).usd),
            f"USD of {MONTHS} months": show.number(total.usd),
            "price range": show.between(total.low_usd, total.high_usd),
        }
        if point.asked.api:
            even = point.break_even(offer.usd_per_hour.usd)
            line["API, USD per M"] = show.number(point.api_per_million)
            line["cheaper than the API from"] = (
                f"{show.number(even / 1e6)} M tokens a month" if even else "no volume"
            )
        lines.append(line)
    return frame(lines)


def options(panel: Panel, asked: Constraints) -> list[tuple[Option, Point]]:
    """The entries that were served, each at its best."""
    every: Sequence[Entry] = panel.entries
    found = [(option, option.served(asked)) for option in (Option(e, panel) for e in every)]
    return [(option, point) for option, point in found if point]


def scored(panel: Panel, asked: Constraints) -> list[tuple[Option, Point, float]]:
    """Those of them that have a score, best first."""
    known = [
        (option, point, option.score.value)
        for option, point in options(panel, asked)
        if option.score and option.score.value is not None
    ]
    return sorted(known, key=lambda one: -compare.sign(panel.metric) * one[2])
