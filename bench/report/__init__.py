"""From results/ to a decision: a page, Markdown, tables and charts.  Never imports torch or starts
a run.

rows         one Row a cell: all numbers, with their evidence
plans, serving   the readers of plan.json and serve.json
compare      seeds together, one panel per dataset × target, Pareto sets
pairs        paired tests of a panel's entries, and their verdicts
options, advice  what can be chosen, what to take under constraints, and why nothing else
answer       the advice in words
fits         what fits where, predicted beside measured
apis         what models behind an API answered, used and cost
claims       published figures against what was found
changes      two suites against each other; export: one row a cell for other programs
tables, differences, speeds, datasets, summary   frames of plain text (frames writes them)
charts/      one file a chart
sections     what the report says, in order; markdown and page (svg, templates/) write it
parallel     pieces of work in processes, for thousands of cells
build        all of it

python -m bench.report quick
"""
