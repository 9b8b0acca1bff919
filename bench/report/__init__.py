"""Tables, charts and a page from what results/ holds.  Never imports torch or starts a run.

rows      one Row a cell: all numbers, with their evidence
compare   seeds together, one panel per dataset × target, Pareto sets
pairs     paired tests of a panel's entries, and their verdicts
tables    summary.csv and the tables of the page
charts/   one file a chart
differences  tables of pairs, of groups' gains, of noise; differences.csv
markdown  report.md: headline, tables, charts, threats, footer
build     all of it

python -m bench.report quick
"""
