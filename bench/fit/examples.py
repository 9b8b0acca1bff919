"""How long a cell's training examples are: counted, else as its dataset's file states, else as long
as its budget lets them be.

Memory is decided by the longest, time by the mean, and what the allocator reserves by how batches
of different lengths follow one another.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from bench import cache
from bench.errors import UserError
from bench.spec import Cell, TokenLengths

DRAWN = 2000  # examples that stand for a stated distribution
BATCHES = 1000  # successive batches that stand for an epoch
ALIKE = 0.9  # batches that are all at least this share of the longest count as equally long


@dataclass(frozen=True)
class Examples:
    """Tokens of training examples, cut at max_length, and of the longest prompt."""

    lengths: tuple[int, ...]
    prompt: int
    rows: int | None
    source: Literal["counted", "stated", "assumed"]

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @property
    def mean(self) -> float:
        return sum(self.lengths) / len(self.lengths)


def of_cell(cell: Cell) -> Examples:
    """Nothing is downloaded: rows and tokenizer count where they are on this machine."""
    stated = cell.dataset.lengths
    return (
        _counted(_Key(cell))
        or (stated and drawn(stated, cell.budget.max_length))
        or assumed(cell.budget.max_length)
    )


def assumed(longest: int) -> Examples:
    return Examples((longest,), max(1, longest - 1), None, "assumed")


def drawn(stated: TokenLengths, max_length: int) -> Examples:
    """Quantiles of the log-normal distribution with that mean and that longest of `rows` examples.

    With z the quantile of 1 - 1/rows: mean = exp(μ + σ²/2) and longest = exp(μ + z σ), so
    σ = z - sqrt(z² - 2 ln(longest / mean)).
    """
    normal = NormalDist()
    z = normal.inv_cdf(1 - 1 / max(3, stated.rows))
    sigma = z - math.sqrt(max(0.0, z * z - 2 * math.log(stated.longest / stated.mean)))
    mu = math.log(stated.mean) - sigma * sigma / 2
    shares = ((index + 0.5) / DRAWN for index in range(DRAWN - 1))
    lengths = [math.exp(mu + sigma * normal.inv_cdf(share)) for share in shares]
    cut = min(stated.longest, max_length)
    kept = tuple(max(1, min(cut, round(length))) for length in (*lengths, stated.longest))
    prompt = min(stated.prompt_longest or cut - 1, max_length - 1)
    return Examples(kept, max(1, prompt), stated.rows, "stated")


class _Key:
    """A cell, equal to others whose examples are the same: rows are read once for all of them."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        budget = cell.budget
        data = (cell.dataset.name, budget.max_length, budget.max_train_rows)
        self.what = (cell.model.name, *data)

    def __hash__(self) -> int:
        return hash(self.what)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.what == other.what


@functools.cache
def _counted(key: _Key) -> Examples | None:
    """None where the tokenizer or the rows aren't on this machine."""
    cell = key.cell
    if not cache.ready(cell.model):
        return None
    from bench.worker import data, load

    try:
        tokenizer = load.tokenizer(cell.model)
        split = data.rows(cell.dataset, "train")
    except (UserError, OSError):
        return None
    rows = data.sample(split, cell.budget.max_train_rows)
    encoded = [data.encode(tokenizer, cell, row) for row in rows]
    lengths = tuple(len(example.input_ids) for example in encoded if example)
    if not lengths:
        return None
    prompts = (sum(label == -100 for label in example.labels) for example in encoded if example)
    return Examples(lengths, max(1, *prompts), len(split), "counted")


def batches(lengths: Sequence[int], micro_batch: int, seed: int = 0) -> tuple[int, ...]:
    """Longest example of each of `BATCHES` successive micro-batches, the longest of all among them.

    Empty where they hardly differ.
    """
    generator = random.Random(seed)
    count = (BATCHES - 1) * micro_batch
    order = [
        length for _ in range(-(-count // len(lengths))) for length in _shuffled(lengths, generator)
    ]
    made = [max(order[at : at + micro_batch]) for at in range(0, count, micro_batch)]
    made.insert(BATCHES * 2 // 3, max(lengths))
    return () if min(made) >= ALIKE * max(made) else tuple(made)


def _shuffled(lengths: Sequence[int], generator: random.Random) -> list[int]:
    return generator.sample(list(lengths), len(lengths))
