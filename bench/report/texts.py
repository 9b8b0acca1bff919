"""How to read each table: one place for the longer sentences of the report.  Inline Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from bench.report import show

SUMMARY = (
    "All measured. Score: the dataset's first metric, mean over seeds; its interval is the widest "
    "of any seed's. Cost: all phases of one run × devices × the target's price; the range is the "
    "price's. Peak: the counter that decides whether it fits. Pareto: nothing measured is both "
    "better and cheaper. –: not known."
)

FIT = (
    "Predicted: reserved by torch plus the CUDA context, on the fullest device; the second figure "
    "is the worst order of the data's lengths. Measured: reserved on a GPU; on a CPU the process "
    "above what it held before the model. Largest need over datasets and seeds. How far off "
    "predictions are: `docs/accuracy.md`."
)

PEAKS = (
    "Of one phase's process: the highest reading of all its stages, on the worst rank; with "
    "several seeds the largest. A maximum has no interval. How it is read: [Method](#method)."
)

TIMES = (
    "Seconds of whole phases: the wall clock of their processes, mean over seeds; tokens/s: median "
    "of the counted steps with its 95 % bootstrap interval. What counts: [Method](#method)."
)

QUALITY = (
    "Interval: 95 % percentile bootstrap over the test rows; with several seeds the value is their "
    "mean, the interval the widest of any seed's. Of a label or an entity type: over the rows that "
    "have it. Where no row varies: as far as 1 − 0.025^(1/n). Each metric's definition: "
    "[Method](#method)."
)

PREDICTED = (
    "One plan against the mean of its runs, so no interval; published runs tell how far off plans "
    "are: `docs/accuracy.md`."
)

CLAIMS = (
    "Every figure that this suite has on a claim, measured before predicted. Confirmed: all lie "
    "within the claim's bounds; contradicted: none; partly: some. Intervals of what was measured "
    "stand in the sections above."
)

SPEEDS = (
    "Speed ÷ reference's: ratio of the medians of tokens/s, with a 95 % interval over blocks of "
    "steps, only where machine, threads, versions and timing protocol agree. Epoch: step seconds "
    "for every row of the train split, predicted from the counted steps; evaluation, loading and "
    "saving come on top."
)

EFFICIENCY = (
    "MFU: what the counted steps have to compute (6 FLOPs a trained weight and token, 4 a frozen "
    "one, attention besides; of experts those in use) ÷ the GPUs' dense peak; recomputed "
    "activations don't count. Utilisation: share of time in which a kernel ran, whatever it did. "
    "Energy of the GPUs alone, by the driver's counter; that of a step is taken from samples about "
    "a second apart. Interval: blocks of steps. “kWh of a run” holds all phases."
)

NO_EFFICIENCY = (
    "*No energy, utilisation or MFU: no cell was run on an NVIDIA GPU whose sensors or peak are "
    "known.*"
)

SERVING = (
    "Closed loop: so many requests under way at once, test rows as prompts, answers streamed; "
    "warm-up isn't counted. First token: from sending to the first text. Per token: the rest of "
    "the time ÷ the rest of the tokens. tokens/s: input and output together ÷ the seconds from the "
    "first request to the last one's end. USD per M tokens: the machine's price ÷ tokens/s at the "
    "stated utilisation. A month: 730 hours of whole machines. Same answers: rows that the server "
    "answered just as the generate phase did. The run: training and evaluation; measuring the "
    "server is not in it."
)

BOUNDS = (
    "A bound, not a prediction: the roofline of the target's peaks at 100 % with every device at "
    "work, as fast as no server is; real ones reach half of it or less. It can show that an API is "
    "cheaper, not that it is dearer. Lengths: the dataset's stated ones."
)

DIFFERENCES = (
    "A minus B on the test rows that both answered. Interval: paired bootstrap; where both "
    "sides have several seeds (a method that trains nothing needs one), ± t × the errors of "
    "rows and seeds together. p: approximate randomisation, Holm-corrected over all pairs of "
    "this metric (those with a trivial baseline apart). *not resolved* isn't *equal*: it says "
    "that these rows can't tell. "
    "~: the answers differ on fewer than 10 rows, so the interval is too narrow: go by p. "
)

NO_MARGIN = (
    "The suite sets no margin (`comparison: {margin: …}`), so nothing is called equal, and "
    "rows needed are unknown. All pairs and metrics: [differences.csv](differences.csv)."
)

FIRST_ONLY = "*Not every metric was tested: of many pairs, only the first of each answer field.*"

NOISE = (
    "How far a score moves (one standard deviation) with other test rows, all seeds kept, "
    "and with another training seed, noise of rows taken out:"
)

RATES = (
    "Shares of the rows, with their exact 95 % interval (Clopper and Pearson). An answer without "
    "one valid label is wrong; how answers are read: `docs/numbers.md`."
)

SCORES = {
    True: "[scores.csv](scores.csv) one a test row.",
    False: "`bench export SUITE --scores FILE` writes one a test row.",
}

GROUPS = (
    "In brackets: 95 % interval over the group's rows; behind them: gain over the untuned model. "
)

GAINS = (
    "Gain over the untuned model on the same rows, with its 95 % interval (of each group alone, "
    "not corrected for their number). Spread: highest minus lowest gain; p: Cochran's Q, whether "
    "the groups' gains differ by more than their rows' noise."
)


def margin_text(margins: Sequence[float]) -> str:
    delta = show.listed([f"{margin:g}" for margin in margins], "or")
    return (
        f"*no difference larger than δ*: shown by two one-sided tests, δ = {delta} for the "
        "first metric. Rows needed: test rows with which a method as good as the other would "
        "be shown to be so in 4 of 5 cases, if rows vary as here. All pairs and metrics: "
        "[differences.csv](differences.csv)."
    )
