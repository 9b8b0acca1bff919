"""results/<suite>/ → results/<suite>/report/: index.html, report.md, CSVs and charts.

Reads results/ and the claims to test, nothing else; the same input gives the same bytes.

    python -m bench.report quick
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from bench.report import claims, compare, details, differences, markdown, page, pairs, summary
from bench.report.advice import Advice, advise
from bench.report.charts import draw_all
from bench.report.compare import Panel
from bench.report.external import externals
from bench.report.frames import csv
from bench.report.rows import rows
from bench.report.sections import Report, sections
from bench.spec import Constraints
from bench.store import read_hygiene, read_suite

CLAIMS = Path("suites/claims")


def build(
    results: Path,
    suite: str,
    constraints: Constraints | None = None,
    claims_folder: Path | None = None,
) -> Path:
    """Redraw a suite's report; returns the path of report.md.

    `constraints`: instead of the suite's own.  Raises UserError where results/ holds nothing of the
    suite, or a cell.json or a claims file is damaged.
    """
    found = read_suite(results, suite)
    extra = externals((result.cell.dataset for result in found), project=results.resolve().parent)
    made = rows(found, extra)
    panels = pairs.tested(compare.panels(made))
    folder = results / suite / "report"
    charts = draw_all(panels, folder / "charts")
    _write(folder / "summary.csv", csv(summary.summary(made)))
    _write(folder / "differences.csv", csv(differences.everything(panels)))
    few = 0 < details.count_rows(found) <= details.MOST_LINES
    (folder / "scores.csv").unlink(missing_ok=True)
    if few:
        _write(folder / "scores.csv", csv(details.row_table(found)))
    parts = sections(
        Report(
            suite=suite,
            panels=panels,
            charts=charts,
            advice=advices(panels, constraints),
            checked=read_hygiene(results, suite),
            claims=claims.judge(claims.read(claims_folder), panels) if claims_folder else (),
            row_scores=few,
        )
    )
    _write(folder / "index.html", page.render(suite, parts, folder / "charts"))
    path = folder / "report.md"
    _write(path, markdown.report(suite, parts))
    return path


def advices(panels: Sequence[Panel], asked: Constraints | None = None) -> list[Advice]:
    """One a dataset; under the suite's newest constraints unless others are asked for."""
    found = []
    for _, group in itertools.groupby(panels, key=lambda panel: panel.dataset):
        same = list(group)
        newest = max((r.cell for p in same for r in p.rows), key=lambda cell: cell.suite_version)
        found.append(advise(same, asked or newest.constraints))
    return found


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
