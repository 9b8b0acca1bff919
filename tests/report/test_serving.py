"""Serving in the report: sums that can be redone in the head, and sentences that follow them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.record import LoadEvent, RequestEvent, ServedVariant, ServeRecord, Status
from bench.report import compare, ownership, pairs
from bench.report.advice import Advice
from bench.report.build import advices, build
from bench.report.rows import rows
from bench.spec import Constraints, Serving, TokenPrice
from bench.store import append_line, read_suite, write_json

from .made import Run, add, cell

API = TokenPrice(
    provider="Some API",
    usd_per_million_input=1.0,
    usd_per_million_output=1.0,
    source="https://example.com",
    date="2026-11-01",
)
# The made machine costs $0.36 an hour: 100 tokens/s, all used, are $1 per million tokens.
SERVING = Serving(utilization=1.0, api=API)


def serve(
    folder: Path,
    tokens_per_s: dict[int, float],
    first_s: float = 0.1,
    variant: str = "plain",
    status: Status = Status.OK,
    reason: str | None = None,
) -> None:
    """Add a serve phase: ten requests of 90 + 10 tokens at each concurrency."""
    attempt = folder / "attempt-001"
    append_line(attempt / "events.jsonl", {"event": "phase_start", "phase": "serve", "t": 0.0})
    for at_once, speed in tokens_per_s.items():
        for number in range(10):
            request: dict[str, Any] = {"variant": variant, "concurrency": at_once}
            request |= {"row": str(number), "first_token_s": first_s * at_once, "t": 1.0}
            request |= {"total_s": first_s * at_once + 0.9, "prompt_tokens": 90, "new_tokens": 10}
            append_line(attempt / "events.jsonl", RequestEvent.model_validate(request))
        load = LoadEvent(t=2.0, variant=variant, concurrency=at_once, seconds=1000 / speed)
        append_line(attempt / "events.jsonl", load)
    found = ServedVariant(
        name=variant, status=status, reason=reason, engine="transformers", stored_bytes=10**9
    )
    record = ServeRecord(
        status=status,
        reason=reason and f"{variant}: {reason}",
        started_at="2026-10-01T12:00:00Z",
        wall_s=60.0,
        variants=[found],
    )
    write_json(attempt / "serve.json", record)


def made(results: Path, method: str, right: float, asked: Serving = SERVING, **more: Any) -> Path:
    return add(results, cell("m", method, serve=asked, **more), Run(right=right, rows=60))


def advice(results: Path, asked: Constraints | None = None) -> Advice:
    panels = pairs.tested(compare.panels(rows(read_suite(results, "made"))))
    (found,) = advices(panels, asked)
    return found


def told(results: Path, asked: Constraints | None = None) -> str:
    return " ".join(ownership.sentences(advice(results, asked)))


def test_better_but_dearer_than_the_api_is_found(tmp_path: Path) -> None:
    made(tmp_path, "base", right=0.2)
    serve(made(tmp_path, "lora", right=0.8), {1: 50.0})
    text = told(tmp_path)
    assert "**lora** reaches +0.6" in text and "over the untuned model" in text
    assert "**but serving it costs more than Some API**: $2.00 per million tokens" in text
    assert "2.00 times Some API's $1.00 for the same mix, at any volume" in text
    assert "even a machine that is always full would be dearer" in text


def test_a_utilisation_that_would_pay_is_named(tmp_path: Path) -> None:
    asked = SERVING.model_copy(update={"utilization": 0.25})
    serve(made(tmp_path, "lora", 0.8, asked), {1: 200.0})
    assert "utilisation would have to be 50 %" in told(tmp_path)


def test_cheaper_than_the_api_from_a_volume_on(tmp_path: Path) -> None:
    """$262.8 a month for a machine, $1 a million tokens: 263 million, of 526 that it answers."""
    serve(made(tmp_path, "lora", right=0.8), {1: 100.0, 4: 200.0})
    text = told(tmp_path)
    assert "4 at once" in text and "$0.500 per million tokens" in text
    assert "9.00 : 1 of input to output" in text
    expected = (
        "up to 263 million (131 million to 526 million by the machine's price) tokens a month"
    )
    assert expected in text
    assert "12 months at 526 million tokens a month" in text and "1 machine that runs" in text
    assert "$3,154" in text and "Some API: $6,307" in text


def test_a_stated_volume_counts_whole_machines_and_storage(tmp_path: Path) -> None:
    asked = SERVING.model_copy(update={"storage_usd_per_gb_month": 0.5})
    serve(made(tmp_path, "lora", 0.8, asked), {1: 100.0})
    found = advice(tmp_path, Constraints(monthly_tokens=6e8))
    assert found.take
    usd = found.take.serving_usd(found.constraints)
    assert usd == pytest.approx(3 * 0.36 * 730 + 0.5)
    assert "3 machines that run all the time, storage." in told(
        tmp_path, Constraints(monthly_tokens=6e8)
    )


def test_a_latency_limit_picks_another_concurrency(tmp_path: Path) -> None:
    serve(made(tmp_path, "lora", right=0.8), {1: 100.0, 8: 400.0})
    free = advice(tmp_path)
    quick = advice(tmp_path, Constraints(max_latency_ms=200))
    none = advice(tmp_path, Constraints(max_latency_ms=50))
    assert free.take and quick.take
    wide, narrow = free.take.served(free.constraints), quick.take.served(quick.constraints)
    assert wide and wide.load.concurrency == 8 and narrow and narrow.load.concurrency == 1
    assert none.take is None
    assert "first token after 100 ms (p95), more than 50 ms" in none.rejected[0].reasons[0]


def test_serving_can_turn_the_advice(tmp_path: Path) -> None:
    """full scores a little higher and can't be told apart; lora is cheaper to run, dearer to own"""
    for method, right, speed in (("full", 0.8, 400.0), ("lora", 0.8, 50.0)):
        walls = Run(right=right, rows=60, wall_s=(200.0 if method == "full" else 20.0, 10.0))
        asked = cell("m", method, serve=SERVING, comparison={"margin": 0.2})
        serve(add(tmp_path, asked, walls), {1: speed})
    cheap = advice(tmp_path)
    served = advice(tmp_path, Constraints(monthly_tokens=1e9))
    assert cheap.take and cheap.take.entry.method == "lora"
    assert served.take and served.take.entry.method == "full"


def test_other_weights_are_never_priced(tmp_path: Path) -> None:
    folder = made(tmp_path, "lora", right=0.8)
    serve(folder, {1: 1000.0}, variant="merged", status=Status.INVALID, reason="not the model")
    found = advice(tmp_path)
    assert found.take and found.take.served(found.constraints) is None
    report = build(tmp_path, "made").read_text(encoding="utf-8")
    assert "merged: invalid" in report and "m × lora, merged: invalid: not the model" in report
    assert "Cost of ownership" not in report
    priced = advice(tmp_path, Constraints(monthly_tokens=1e6))
    reasons = priced.rejected[0].reasons[0]
    assert reasons == "its cost of serving was not measured: merged: not the model"


def test_an_interrupted_measurement_counts_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path, "lora", right=0.8)
    serve(folder, {1: 900.0})  # of a process that was interrupted
    serve(folder, {1: 100.0})
    (row,) = rows(read_suite(tmp_path, "made"))
    assert row.served and [p.load.requests for p in row.served.points()] == [10]
    assert row.served.points()[0].load.tokens_per_s == pytest.approx(100)


def test_without_serving_the_report_says_so(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"))
    report = build(tmp_path, "made").read_text(encoding="utf-8")
    assert "Serving was not measured" in report and "charts/serving" not in report


def test_charts_and_tables_are_drawn_twice_alike(tmp_path: Path) -> None:
    made(tmp_path, "base", right=0.2)
    serve(made(tmp_path, "lora", right=0.8), {1: 50.0})
    serve(made(tmp_path, "full", right=0.9), {1: 300.0})
    report = build(tmp_path, "made")
    first = {p.name: p.read_bytes() for p in report.parent.rglob("*") if p.is_file()}
    assert {"serving.desk.svg", "serving-quality.desk.svg"} <= first.keys()
    build(tmp_path, "made")
    assert first == {p.name: p.read_bytes() for p in report.parent.rglob("*") if p.is_file()}
    text = first["report.md"].decode()
    assert "| m       | lora     | plain, 1 at once |" in text and "no volume" in text
    assert "serve.json" in text
    table = pd.read_csv(report.with_name("summary.csv")).set_index("method")
    assert table.loc["lora", "serve_usd_per_million_tokens"] == pytest.approx(2.0)
    assert table.loc["full", "served_tokens_per_s"] == pytest.approx(300)
    assert pd.isna(table.loc["base", "serve_status"])
