"""Length histograms as text."""

from __future__ import annotations

import pytest

from bench.report.datasets import histogram
from bench.score.hygiene import Lengths


@pytest.mark.parametrize(
    ("bins", "text"),
    [([0, 0, 57, 423], "4 to 15 ▂█"), ([40], "1 to 1 █"), ([1, 0, 800], "1 to 7 ▁ █")],
)
def test_a_bar_for_each_doubling_and_none_invisible(bins: list[int], text: str) -> None:
    lengths = Lengths(minimum=1, median=1, p95=1, maximum=1, bins=bins)
    assert histogram(lengths) == text
