"""results/<suite>/ → results/<suite>/report/: report.md, summary.csv and charts.

Reads results/ and nothing else; the same results give the same bytes.

    python -m bench.report quick
"""

from __future__ import annotations

from pathlib import Path

from bench.report import compare, markdown, tables
from bench.report.charts import draw_all
from bench.report.external import externals
from bench.report.rows import rows
from bench.store import read_suite


def build(results: Path, suite: str) -> Path:
    """Redraw a suite's report; returns the path of report.md.

    Raises UserError where results/ holds nothing of the suite, or a cell.json is damaged.
    """
    found = read_suite(results, suite)
    extra = externals((result.cell.dataset for result in found), project=results.resolve().parent)
    made = rows(found, extra)
    panels = compare.panels(made)
    folder = results / suite / "report"
    charts = draw_all(panels, folder / "charts")
    _write(folder / "summary.csv", tables.csv(tables.summary(made)))
    path = folder / "report.md"
    _write(path, markdown.report(suite, panels, charts))
    return path


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
