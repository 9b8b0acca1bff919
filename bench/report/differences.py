"""Tables of differences: pairs of entries, gains of groups, and where the noise comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from bench.report import compare, pairs, show
from bench.report.compare import Entry, Pair, Panel
from bench.report.frames import frame, six_digits
from bench.score.components import components
from bench.score.significance import Difference
from bench.score.spread import spread

ON_THE_PAGE = frozenset({"trivial", "base", "reference", "API", "best", "best is A"})
FEW = 10  # differing rows; with 4, all one way, an interval excludes 0 at an exact p of 0.125


def shown(panel: Panel, metric: str) -> list[Pair]:
    """Pairs with a reference, the base or the best; all of them where there are few."""
    found = [pair for pair in panel.pairs if pair.metric == metric]
    return found if len(found) <= 12 else [p for p in found if ON_THE_PAGE & set(p.roles)]


# ---------------------------------------------------------------- pairs


def table(panel: Panel, metric: str) -> pd.DataFrame:
    """Each pair in one line, printed."""
    several = len({entry.model for entry in panel.entries}) > 1
    return frame([_line(pair, several) for pair in shown(panel, metric)])


def _line(pair: Pair, several: bool) -> dict[str, str]:
    line = {
        "A": _label(pair.a, several),
        "B": _label(pair.b, several),
        "B is the": ", ".join(role for role in pair.roles if role != "best is A") or "",
    }
    found, verdict = pair.difference, pair.verdict
    if found is None or verdict is None:
        return line | {"verdict on A": f"not compared: {pair.reason or ''}"}
    groups = f" in {show.many(found.units, 'group')}" if found.clustered else ""
    return line | {
        "A − B": show.difference(found.value),
        "95 % interval": _interval(found),
        "p": show.p_value(verdict.p),
        "verdict on A": verdict.words,
        "rows": show.count(found.n) + groups,
        "that differ": show.count(found.differing),
        "seeds": f"{found.seeds[0]}, {found.seeds[1]}",
        "rows needed": _needed(found),
    }


def _interval(found: Difference) -> str:
    """A tilde where a bootstrap of so few differing rows is too hopeful."""
    bounds = show.between(found.low, found.high, show.difference)
    return ("~" if 0 < found.differing < FEW else "") + bounds if bounds else show.NONE


def _needed(found: Difference) -> str:
    if found.rows_needed is not None:
        return show.count(found.rows_needed)
    reason = found.rows_needed_reason or ""
    return "more seeds" if "seeds" in reason else show.NONE


def _label(entry: Entry, several: bool) -> str:
    return entry.label if several else entry.method


def everything(panels: Sequence[Panel]) -> pd.DataFrame:
    """All pairs and metrics for programs: differences.csv."""
    lines = [_record(panel, pair) for panel in panels for pair in panel.pairs]
    return pd.DataFrame(lines, dtype=object)


def _record(panel: Panel, pair: Pair) -> dict[str, Any]:
    found, verdict = pair.difference, pair.verdict
    names = ("value", "low", "high", "p", "p_rows", "p_equivalent", "se_rows", "se_seeds")
    counts = ("n", "units", "differing", "margin", "rows_needed")
    return {
        "dataset": panel.dataset,
        "target": panel.target,
        "metric": pair.metric,
        "a_model": pair.a.model,
        "a_method": pair.a.method,
        "b_model": pair.b.model,
        "b_method": pair.b.method,
        "roles": " ".join(role.replace(" ", "_") for role in pair.roles),
        **{name: six_digits(getattr(found, name, None)) for name in names},
        **{name: getattr(found, name, None) for name in counts},
        "seeds_a": found.seeds[0] if found else None,
        "seeds_b": found.seeds[1] if found else None,
        "scope": found.scope if found else None,
        "family": pair.family,
        "p_holm": six_digits(verdict.p) if verdict else None,
        "p_equivalent_holm": six_digits(verdict.p_equivalent) if verdict else None,
        "verdict": verdict.words if verdict else None,
        "reason": pair.reason or (found.rows_needed_reason if found else None),
    }


# ---------------------------------------------------------------- groups


def gains(panel: Panel, metric: str) -> pd.DataFrame:
    """Each adapted entry's gain over its base: in each group, lowest, spread."""
    lines = []
    for entry in (e for e in panel.entries if e.cell.method.needs_model):
        found = pairs.gains(panel, entry, metric)
        over = spread(found)
        if over is None:
            continue
        worst = over.lowest if compare.sign(metric) > 0 else over.highest
        if not over.gap:
            worst = show.NONE  # all alike
        lines.append(
            {"model": entry.model, "method": entry.method}
            | {group: _gain(found.get(group)) for group in panel.groups}
            | {
                "worst": worst,
                "spread": show.score(over.gap),
                "p, all alike": show.p_value(over.p_alike),
            }
        )
    return frame(lines)


def _gain(found: Difference | None) -> str:
    if found is None:
        return show.NONE
    bounds = show.between(found.low, found.high, show.difference)
    return show.difference(found.value) + (f" ({bounds})" if bounds else "")


# ---------------------------------------------------------------- noise


def noise(panel: Panel) -> pd.DataFrame:
    """How far a score moves with other rows and with other seeds; entries with several seeds."""
    lines = []
    for entry in panel.entries:
        for metric in panel.first_metrics:
            shared = pairs.common_rows([entry], metric)
            if isinstance(shared, str):
                continue
            found = components(pairs.side(entry, metric, shared).seeds)
            if found:
                lines.append(
                    {
                        "model": entry.model,
                        "method": entry.method,
                        "metric": metric,
                        "seeds": str(found.n_seeds),
                        "rows": show.count(found.n),
                        "± other rows": show.score(found.sd_rows),
                        "± another seed": show.score(found.sd_seeds),
                    }
                )
    return frame(lines)
