"""Below the metrics: labels, entity types, answers that couldn't count, groups; and scores.csv."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from bench.report import compare, show
from bench.report.compare import Entry, Panel
from bench.report.frames import frame, six_digits
from bench.report.measures import Estimate, pooled
from bench.score.quality import Metric, Quality
from bench.score.rates import share_interval
from bench.score.resample import Sums
from bench.score.rowwise import row_scores
from bench.store import CellResult

MANY = 40  # entries of a panel from which these tables are left to scores.csv and `bench export`
MOST_LINES = 20_000  # of scores.csv: what a repository can carry


def _name(entry: Entry) -> dict[str, str]:
    return {"model": entry.model, "method": entry.method}


def _scores(entry: Entry) -> list[Quality]:
    return [row.quality for row in entry.good if row.quality]


# ---------------------------------------------------------------- labels and entity types


def classes(panel: Panel) -> pd.DataFrame:
    """F1 of each label, with the test rows that have it."""
    lines = []
    for entry in _few(panel):
        for field, label in _keys(q.per_class for q in _scores(entry)):
            found = _pooled([q.per_class[field][label] for q in _scores(entry)])
            lines.append(
                _name(entry)
                | {"field": field, "label": label, "rows": show.count(found.n)}
                | {"F1": show.score(found.value), "95 % interval": _bounds(found)}
            )
    return frame(lines)


def types(panel: Panel) -> pd.DataFrame:
    """Strict and partial F1 of each entity type that the test rows have."""
    lines = []
    for entry in _few(panel):
        for field, kind in _keys(q.per_type for q in _scores(entry)):
            scored = [q for q in _scores(entry) if kind in q.per_type[field]]
            strict = _pooled([q.per_type[field][kind] for q in scored])
            partial = _pooled([q.per_type_partial[field][kind] for q in scored])
            if not strict.n:  # a type that only the model came up with: counted in the metric
                continue
            lines.append(
                _name(entry)
                | {"field": field, "type": kind, "entities": show.count(strict.n)}
                | {"F1, exact": show.score(strict.value), "95 % interval": _bounds(strict)}
                | {"F1, shared words": show.score(partial.value), "its interval": _bounds(partial)}
            )
    return frame(lines)


def _few(panel: Panel) -> Sequence[Entry]:
    return panel.entries if len(panel.entries) <= MANY else ()


def _keys(parts: Any) -> list[tuple[str, str]]:
    found = {(field, key): None for part in parts for field, keys in part.items() for key in keys}
    return list(found)


def _pooled(metrics: Sequence[Metric]) -> Estimate:
    return pooled(Estimate(m.value, m.low, m.high, m.n) for m in metrics) or Estimate(
        None, n=metrics[0].n if metrics else None
    )


def _bounds(found: Estimate) -> str:
    return show.between(found.low, found.high, show.score) or show.NONE


# ---------------------------------------------------------------- answers that could not count


def rates(panel: Panel) -> pd.DataFrame:
    """No valid label, empty, cut off: shares of the rows, with their exact interval."""
    lines = []
    for entry in panel.entries:
        scored = _scores(entry)
        line = _name(entry) | {"rows": show.count(scored[0].n if scored else None)}
        for name in dict.fromkeys(name for q in scored for name in q.invalid_rate):
            invalid = [(q.invalid_rate.get(name), q.n) for q in scored]
            line[f"{name}: no valid label"] = _rate(invalid)
        line["empty"] = _rate([(q.empty_rate, q.n) for q in scored])
        line["cut off"] = _rate([(q.truncated_rate, q.n) for q in scored])
        lines.append(line)
    return frame(lines)


def _rate(shares: Sequence[tuple[float | None, int]]) -> str:
    """The mean over seeds, within the widest interval of any seed."""
    found = []
    for value, n in shares:
        low, high = (value is not None and share_interval(round(value * n), n)) or (None, None)
        found.append(Estimate(value, low, high, n))
    over = pooled(found)
    if over is None:
        return show.NONE
    bounds = show.between(over.low, over.high, show.share)
    return show.share(over.value) + (f" ({bounds})" if bounds else "")


# ---------------------------------------------------------------- groups


def groups(panel: Panel, metric: str) -> pd.DataFrame:
    """A metric in each group with its interval over the group's rows, and behind it the gain over
    the untuned model."""
    lines = []
    for entry in panel.entries:
        line = _name(entry)
        for group in panel.groups:
            n = compare.group_rows(panel, group)
            title = group + (f" (n = {n})" if n is not None else "")
            gain = compare.group_gain(panel, entry, group, metric)
            found = entry.group(group, metric)
            text = show.score(found.value if found else None)
            if bounds := _group_bounds(panel, entry, group, metric):
                text += f" ({bounds})"
            line[title] = f"{text}, {show.signed(gain)}" if _adapted(entry, gain) else text
        lines.append(line)
    return frame(lines)


def _adapted(entry: Entry, gain: float | None) -> bool:
    return entry.cell.method.trains and gain is not None


def _group_bounds(panel: Panel, entry: Entry, group: str, metric: str) -> str:
    """The widest interval of any seed; nothing where there are too many entries to read them."""
    if len(panel.entries) > MANY:
        return ""
    found = []
    for row in entry.good:
        if row.answers is None or metric not in row.answers.sums:
            continue
        whole = row.answers.sums[metric]
        chosen = [index for index, name in enumerate(row.answers.groups) if name == group]
        low, high = Sums(whole.rows[chosen], whole.finish, scale=whole.scale).interval() or (
            None,
            None,
        )
        found.append(Estimate(whole.value(chosen), low, high, len(chosen)))
    over = pooled(found)
    return show.between(over.low, over.high, show.score) if over else ""


# ---------------------------------------------------------------- how metrics are defined


def signatures(panels: Sequence[Panel]) -> list[str]:
    """`field.metric: signature`, as each was computed here."""
    found: dict[str, dict[str, None]] = {}
    for panel in panels:
        for row in panel.rows:
            metrics: Mapping[str, Metric] = row.quality.metrics if row.quality else {}
            for name, metric in metrics.items():
                if metric.signature:
                    found.setdefault(name, {})[metric.signature] = None
    return [f"{name} `{' / '.join(texts)}`" for name, texts in found.items()]


# ---------------------------------------------------------------- scores.csv


def row_table(results: Sequence[CellResult]) -> pd.DataFrame:
    """One line a test row of every cell that can be scored; for programs."""
    return pd.DataFrame(list(_lines(results)), dtype=object)


def _lines(results: Sequence[CellResult]) -> Iterator[dict[str, Any]]:
    for result in results:
        attempt = result.latest
        if attempt is None:
            continue
        cell = result.cell
        names = {
            "cell": result.path.name,
            "model": cell.model.name,
            "method": cell.method.name,
            "dataset": cell.dataset.name,
            "target": cell.target.name,
            "seed": cell.seed,
        }
        try:
            rows = row_scores(cell.dataset, attempt.predictions)
        except ValueError:  # the report says so, with the reason
            continue
        yield from (names | {key: six_digits(value) for key, value in row.items()} for row in rows)


def count_rows(results: Sequence[CellResult]) -> int:
    """Lines that scores.csv would have, by the cells' own records: reading rows takes long."""
    records = [result.latest.generate for result in results if result.latest]
    return sum(record.rows for record in records if record)
