"""summary.csv's rows with their types, as Parquet or CSV, for other people's dashboards."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from bench.errors import UserError
from bench.report import details, frames
from bench.report.external import externals
from bench.report.rows import rows
from bench.report.summary import summary
from bench.store import read_suite


def table(results: Path, suite: str) -> pd.DataFrame:
    """One row a cell.  Raises UserError where results/ holds nothing of the suite."""
    found = read_suite(results, suite)
    extra = externals((result.cell.dataset for result in found), project=results.resolve().parent)
    return summary(rows(found, extra))


def scores(results: Path, suite: str) -> pd.DataFrame:
    """One row a test row of every cell: see `bench/score/rowwise.py`."""
    return details.row_table(read_suite(results, suite))


def parquet(made: pd.DataFrame, file: Path) -> None:
    """Raises UserError without pyarrow, which `adaptbench[train]` brings along."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        made.convert_dtypes().to_parquet(file, index=False)
    except ImportError:
        raise UserError("Parquet needs pyarrow: pip install pyarrow, or use --csv") from None


def csv(made: pd.DataFrame, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(frames.csv(made), encoding="utf-8", newline="\n")
