"""The same answer for every prompt, the best one that train knows: a floor for every score.

A method that isn't clearly better has learnt nothing from the prompts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from bench.score.answers import format_answer, text_options, true_label
from bench.score.text import rouge_l
from bench.spec import DatasetSpec, Field_
from bench.worker.data import Row

COMPARED = 150  # train texts that the medoid is sought among: 150² ROUGE-Ls take about a second


def answerer(dataset: DatasetSpec, train: Sequence[Row]) -> Callable[[Row], str]:
    """The most frequent label, the most central text, no entity; in the dataset's format."""
    values = {field.name: _value(field, train) for field in dataset.answer}
    answer = format_answer(values, dataset)
    return lambda row: answer


def _value(field: Field_, train: Sequence[Row]) -> Any:
    values = [row.answer[field.name] for row in train]
    if field.type == "entities":
        return {}
    if field.type == "label":
        counts = Counter(true_label(value, field) for value in values)
        return max(field.labels, key=lambda label: counts[label])  # of equals the first listed
    return medoid([text_options(value)[0] for value in values])


def medoid(texts: Sequence[str]) -> str:
    """The text with the highest mean ROUGE-L against the others: the best constant answer.

    Repeated texts weigh as often as they occur, so a canned reply wins.  Of equals the first.
    """
    some = list(texts)
    if len(some) > COMPARED:
        some = random.Random(0).sample(some, COMPARED)
    weights = Counter(some)
    return max(
        weights,
        key=lambda text: sum(n * rouge_l(text, [other]) for other, n in weights.items()),
    )
