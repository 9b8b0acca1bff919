"""What `bench check SUITE --data` found about the rows: a table, and the warnings in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from bench.report import show
from bench.report.compare import Panel
from bench.report.frames import frame
from bench.score.hygiene import Hygiene, Lengths, Split, specification

BARS = " ▁▂▃▄▅▆▇█"
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
        **{
            f"{what} words, rows by doubling": histogram(number)
            for what in ("prompt", "answer")
            if (number := split.lengths.get(f"{what}_words"))
        },
    }


def lines(found: Hygiene) -> list[str]:
    """For a terminal: each split's rows and lengths, then the rows of each label in each split."""
    told = []
    for name, split in found.splits.items():
        shapes = [
            f"{key.replace('_', ' ')} {histogram(lengths)}"
            for key, lengths in split.lengths.items()
        ]
        counts = f"{split.rows} rows, {split.repeated} of them repeated, {len(split.groups)} groups"
        told.append(f"{found.dataset} {name}: {'; '.join([counts, *shapes])}")
    order = " / ".join(found.splits)
    for field, labels in found.splits["test"].labels.items():
        counted = (
            f"{label} " + " / ".join(str(s.labels[field][label]) for s in found.splits.values())
            for label in labels
        )
        told.append(f"{found.dataset} {field} ({order}): {', '.join(counted)}")
    return told


def histogram(lengths: Lengths) -> str:
    """`4 to 31 ▂█▁`: a bar for each doubling, as high as its share of the fullest."""
    first = next((power for power, rows in enumerate(lengths.bins) if rows), 0)
    kept = lengths.bins[first:]
    highest = max(kept, default=0) or 1
    bars = "".join(BARS[-(-rows * (len(BARS) - 1) // highest)] for rows in kept)
    return f"{2**first} to {2 ** len(lengths.bins) - 1} {bars}"


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
