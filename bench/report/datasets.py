"""What `bench check SUITE --data` found about the rows: a table, and the warnings in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from bench.report import show
from bench.report.compare import Panel
from bench.report.frames import frame
from bench.score.hygiene import Hygiene, Split, specification

Found = Mapping[str, Hygiene]


def table(found: Found) -> pd.DataFrame:
    """One line a split."""
    lines = [
        {"dataset": name, "split": split} | _line(hygiene.splits[split])
        for name, hygiene in sorted(found.items())
        for split in hygiene.splits
    ]
    return frame(lines)


def _line(split: Split) -> dict[str, str]:
    return {
        "rows": show.count(split.rows),
        "repeated prompts": show.count(split.repeated),
        "groups": show.count(len(split.groups)),
        "labels, fewest to most rows": "; ".join(
            f"{name} {min(counts.values())} to {max(counts.values())}"
            for name, counts in split.labels.items()
        ),
        **{
            f"{what} words, median (longest)": f"{number.median:g} ({number.maximum})"
            for what in ("prompt", "answer")
            if (number := split.lengths.get(f"{what}_words"))
        },
    }


def warnings(panels: Sequence[Panel], found: Found) -> list[str]:
    """Sentences for Threats to validity; also that a dataset wasn't checked."""
    told = []
    for name, panel in {panel.dataset: panel for panel in panels}.items():
        hygiene, shown = found.get(name), show.markdown(name)
        command = f"`bench check {panel.cell.suite} --data`"
        if hygiene is None:
            told.append(f"{shown}: its rows were not checked for duplicates or leaks: {command}.")
            continue
        if hygiene.fingerprint != specification(panel.cell.dataset):
            told.append(f"{shown}: its rows were checked before its file was changed: {command}.")
        told += [f"{shown}: {show.markdown(warning)}." for warning in hygiene.warnings]
    return told
