"""What serving a planned cell costs at least, in the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.report import bounds, compare
from bench.report.build import advices, build
from bench.report.rows import rows
from bench.spec import Cell, Serving, TokenPrice
from bench.store import read_suite

from . import scale
from .made import cell, dataset, gpu_target, model

LENGTHS = {"mean": 200, "longest": 400, "prompt_longest": 200, "rows": 9, "source": "made"}
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
    "hidden_size": 4096,
}  # fmt: skip
PEAKS: dict[str, Any] = {"bf16_dense_tflops": 300, "memory_gbs": 2000}


def planned(folder: Path, usd: float, **more: Any) -> Cell:
    api = TokenPrice(
        provider="Some API",
        usd_per_million_input=usd,
        usd_per_million_output=usd,
        source="s",
        date="d",
    )
    seven = model("7b").model_copy(update={"params": 7 * 10**9, "config": CONFIG})
    made = cell(
        "7b", "lora", target=gpu_target(**PEAKS), dataset=dataset(lengths=LENGTHS),
        serve=Serving(utilization=0.5, api=api),
    ).model_copy(update={"model": seven} | more)  # fmt: skip
    scale.write(folder, made, run=False)
    return made


@pytest.mark.parametrize(("usd", "settled"), [(0.001, True), (100.0, False)])
def test_an_api_that_is_cheaper_in_any_case(tmp_path: Path, usd: float, settled: bool) -> None:
    planned(tmp_path, usd)
    panels = compare.panels(rows(read_suite(tmp_path, "made")))
    (bound,) = bounds.every(panels)
    # No more than the peak allows: 4 × 300 TFLOP/s over 14 GFLOP a token; at $0.18 to $0.72
    most = 4 * 300e12 / 14e9
    assert bound.load.tokens_per_s < most
    assert bound.offer.per_million.low_usd > 4 * 0.18 / (most * 3600 * 0.5) * 1e6
    assert bound.settled is settled
    (advice,) = advices(panels)
    told = " ".join(bounds.sentences(advice))
    assert ("more than Some API, however good the server" in told) is settled
    report = build(tmp_path, "made").read_text(encoding="utf-8")
    assert "What was not served costs at least" in report
    assert ("in any case" if settled else "open") in report


def test_what_is_not_known_has_no_bound(tmp_path: Path) -> None:
    planned(tmp_path, 1.0, dataset=dataset())
    assert not bounds.every(compare.panels(rows(read_suite(tmp_path, "made"))))
