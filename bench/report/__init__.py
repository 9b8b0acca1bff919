"""Tables, charts and a page from what results/ holds.  Never imports torch or starts a run.

rows      one Row a cell: all numbers, with their evidence
compare   seeds together, one panel per dataset × target, Pareto sets
tables    summary.csv and the tables of the page
charts/   one file a chart
markdown  report.md: headline, tables, charts, threats, footer
build     all of it

python -m bench.report quick
"""
