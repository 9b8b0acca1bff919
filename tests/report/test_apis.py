"""What an API answered stands in the same tables, priced by its tokens, and is told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import store
from bench.record import ApiPrediction
from bench.report import answer, apis, compare, fits, pairs, tables
from bench.report.advice import advise
from bench.report.build import advices, build
from bench.report.compare import Panel
from bench.report.rows import Row, rows
from bench.report.sections import Report
from bench.report.threats import threats
from bench.score.cost import api_cost
from bench.spec import Cell, Constraints, TokenPrice

from .made import TOKEN_PRICE, Run, add, api_cell, cell, gpu_target

TARGETS = ("1xl40s", "4xa100-80gb")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model on two machines, and an API that is better than its base, worse than full."""
    folder = tmp_path_factory.mktemp("apis")
    for name in TARGETS:
        place = gpu_target(name, devices=1)
        add(folder, cell("m", "base", target=place), Run(right=0.1, rows=200))
        add(folder, cell("m", "full", target=place), Run(right=0.9, rows=200))
    add(folder, api_cell(), Run(right=0.5, rows=200, wall_s=(0.0, 7.0)))
    return folder


@pytest.fixture(scope="module")
def made(results: Path) -> list[Row]:
    return rows(store.read_suite(results, "made"))


@pytest.fixture(scope="module")
def panels(made: list[Row]) -> list[Panel]:
    return pairs.tested(compare.panels(made))


def of_api(made: list[Row]) -> Row:
    (row,) = [row for row in made if row.cell.model.endpoint]
    return row


def test_it_costs_its_tokens_and_no_device_hours(made: list[Row]) -> None:
    row = of_api(made)
    assert row.cost and row.cost.job.usd == pytest.approx(200 * (30 * 10 + 20 * 30) / 1e6)
    assert row.cost.device_hours is None and row.cost.train is None
    assert row.asked and (row.asked.input_tokens, row.asked.output_tokens) == (6000, 4000)
    assert row.asked.models == {"gpt-x": 200} and row.asked.retries == 100
    assert row.asked.latency_s[0] == pytest.approx(1.995)
    assert row.peaks == () and row.environments == ()  # of the machine that asked


def test_cached_input_has_its_own_price() -> None:
    usage = {"prompt_tokens_details": {"cached_tokens": 20}}
    answered = ApiPrediction(
        id="1", prediction="", reference={}, finish_reason="stop", prompt_tokens=30, new_tokens=20,
        response={"usage": usage}, latency_s=1.0,
    )  # fmt: skip
    price = TokenPrice.model_validate(TOKEN_PRICE | {"usd_per_million_cached_input": 1.0})
    found = api_cost(price, [answered])
    assert found and found.job.usd == pytest.approx((10 * 10 + 20 * 1 + 20 * 30) / 1e6)
    assert api_cost(price, [answered.model_copy(update={"new_tokens": None})]) is None
    assert api_cost(None, [answered]) is None


def test_it_stands_in_every_panel_and_counts_once(panels: list[Panel]) -> None:
    assert [panel.target for panel in panels] == list(TARGETS)
    for panel in panels:
        assert [entry.model for entry in panel.entries] == ["m", "m", "gpt-x"]
        roles = {(p.a.label, p.b.label): p.roles for p in panel.pairs if p.metric == panel.metric}
        assert roles["m × base", "gpt-x × base"] == ("API",)  # neither of them is the best
        line = tables.entries(panel).iloc[-1]
        assert line["cost, USD"] == "0.180" and line["peak, GiB"] == "–" == line["tokens/s"]
    assert len(Report("made", panels).rows) == 5
    assert {fit.cell.cell.model.name for fit in fits.fits(panels)} == {"m"}


def test_advice_weighs_it_like_the_others(panels: list[Panel]) -> None:
    (found,) = advices(panels)
    assert [o.target for o in found.everything if o.entry.is_api] == ["api"]
    assert found.take and found.take.entry.method == "full"
    bullets = " ".join(answer.changes(found))
    assert "an API is paid for every answer" in bullets
    # It needs none of the machines, and is held against the best run of the reference method.
    one = Constraints(targets=("elsewhere",))
    assert advise(panels, one).take is not None
    text = answer.sentences(advise(panels, one))[0]
    assert "take gpt-x × base" in text and "on **api**" not in text
    assert "$0.180 for the 200 answers of the test, $0.900 per 1,000" in text
    strict = advise(panels, Constraints(max_loss_vs_full=0.1))
    why = {r.option.entry.label: r.reasons for r in strict.rejected}["gpt-x × base"]
    assert "loses 0.400 against full, more than 0.100" in why


def test_a_year_of_it_costs_tokens(panels: list[Panel]) -> None:
    """$0.18 for 10,000 tokens: $18 a million."""
    found = advise(panels, Constraints(monthly_tokens=1e6))
    assert found.take and found.take.entry.is_api  # serving the others wasn't measured
    assert found.take.serving_usd(Constraints(monthly_tokens=1e6)) == pytest.approx(18.0)


def test_without_a_price_its_cost_is_unknown_and_it_is_never_the_cheapest(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "lora"), Run(right=0.7, rows=200))
    add(tmp_path, api_cell(price=None), Run(right=0.7, rows=200, wall_s=(0.0, 1.0)))
    made = rows(store.read_suite(tmp_path, "made"))
    (found,) = advices(pairs.tested(compare.panels(made)))
    assert of_api(made).cost is None
    assert found.take and found.take.entry.method == "lora"


def test_an_api_alone_has_a_panel_and_a_report(tmp_path: Path) -> None:
    add(tmp_path, api_cell(), Run(right=0.5))
    add(tmp_path, api_cell("gpt-y"), Run(right=0.7))
    text = build(tmp_path, "made").read_text(encoding="utf-8")
    assert "take gpt-y × base" in text and "desk on api" in text
    assert "Price of gpt-x: $10.0 per million tokens of input, $30.0 of output" in text
    assert "device-hour" not in text.partition("Prices, machines, versions")[2]


@pytest.mark.parametrize(
    ("said", "warned"),
    [
        ({}, ""),
        ({"model": "gpt-x-2026-01-31"}, ""),  # a dated snapshot of what was asked for
        ({"model": "gpt-xl"}, "asked for gpt-x, but gpt-xl answered"),
        ({"model": "llama"}, "asked for gpt-x, but llama answered"),
    ],
)
def test_who_answered(tmp_path: Path, said: dict[str, str], warned: str) -> None:
    add(tmp_path, api_cell(), Run(said=said))
    found = threats(compare.panels(rows(store.read_suite(tmp_path, "made"))))
    assert [line for line in found if "answered." in line] == (
        [f"gpt-x × base: {warned}."] if warned else []
    )


def test_refusals_and_changes_are_told(tmp_path: Path) -> None:
    folder = add(tmp_path, api_cell(), Run())
    lines = folder / "attempt-001" / "predictions.jsonl"
    found = store.read_lines(lines)
    found[0] |= {"finish_reason": "context_length", "prompt_tokens": None}
    found[1]["response"]["system_fingerprint"] = "fp_2"
    lines.unlink()
    for line in found:
        store.append_line(lines, line)
    made = rows(store.read_suite(tmp_path, "made"))
    told = " ".join(apis.warnings(made))
    assert "what answered changed between rows (1 names, 2 fingerprints)" in told
    assert "1 of 40 rows got no answer, too long for the model; they count as wrong" in told
    assert "its cost is unknown" in told and made[0].cost is None


def test_what_isn_t_asked_pays_for_no_second_answer() -> None:
    """Batch sizes, dtypes, patience and prices aren't what an API is asked."""

    def changed(cell: Cell, **parts: dict[str, object]) -> str:
        return Cell.model_validate(
            cell.model_dump() | {name: getattr(cell, name).model_dump() | new for name, new in
                                 parts.items()}
        ).id  # fmt: skip

    first = api_cell()
    assert changed(first, budget={"micro_batch": 2, "max_steps": 7}) == first.id
    assert changed(first, method={"dtype": "fp16"}) == first.id
    assert api_cell(price=None, timeout_s=3, concurrency=9, max_retries=0).id == first.id
    assert changed(first, budget={"max_new_tokens": 7}) != first.id
    assert changed(first, method={"shots": 2}) != first.id
    for asked in ({"temperature": 1.0}, {"model": "other"}, {"base_url": "http://elsewhere/v1"}):
        assert api_cell(**asked).id != first.id


def test_a_machine_without_a_price_is_not_free(tmp_path: Path) -> None:
    price = {"usd_per_device_hour": 0, "low_usd": 0, "high_usd": 0, "provider": "us", "date": "",
             "source": ""}  # fmt: skip
    add(tmp_path, cell("m", "base", target=gpu_target("ours", price=price)), Run())
    add(tmp_path, api_cell(), Run())
    told = threats(compare.panels(rows(store.read_suite(tmp_path, "made"))))
    assert any("No price is named for ours" in line for line in told)
