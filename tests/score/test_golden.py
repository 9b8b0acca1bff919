"""Values computed by other programs.  Users don't have the file; the other tests hold copies of
the values that matter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.score import cost, labels, text, throughput
from bench.score.answers import parse_label
from bench.score.plain import strip_thinking
from bench.score.quality import score
from bench.spec import Price

from .made import dataset, field, prediction, step

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "metrics.json"
Case = dict[str, Any]


def cases(*metrics: str) -> list[Any]:
    if not CASES.exists():
        skip = pytest.mark.skip(reason="shared/cases is not here")
        return [pytest.param({}, marks=skip, id=",".join(metrics))]
    found = json.loads(CASES.read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["id"]) for case in found if case["metric"] in metrics]


def near(value: float) -> Any:
    return pytest.approx(value, abs=1e-6)


def test_every_case_has_a_test() -> None:
    if not CASES.exists():
        pytest.skip("shared/cases is not here")
    kinds = {case["metric"] for case in json.loads(CASES.read_text(encoding="utf-8"))}
    tested = {"rouge_l", "rouge_lsum", "bleu", "f1", "tokens", "tokens_per_s", "cost"}
    assert kinds <= tested


@pytest.mark.parametrize("case", cases("rouge_l", "rouge_lsum", "bleu"))
def test_text(case: Case) -> None:
    also = {name: value for name, value in case.get("also", {}).items() if name in ("rouge_l",)}
    wanted = {case["metric"]: case["expected"], **also}
    made = dataset(field("reply", "text", *wanted), language=case["language"])
    rows = [
        prediction(answer, {"reply": reference}, id=str(index))
        for index, (answer, reference) in enumerate(
            zip(case["predictions"], case["references"], strict=True)
        )
    ]
    found = score(made, rows)
    for name, value in wanted.items():
        assert found.metrics[f"reply.{name}"].value == near(value)
    if "truncated_rate" in case.get("also", {}):
        assert found.truncated_rate == near(case["also"]["truncated_rate"])
        assert [strip_thinking(row.prediction)[0] for row in rows] == case["also"]["answers"]


@pytest.mark.parametrize("case", cases("bleu"))
def test_bleu_alone(case: Case) -> None:
    references = [[r] if isinstance(r, str) else r for r in case["references"]]
    found = text.corpus_bleu(case["predictions"], references, case["language"])
    assert found.value() == near(case["expected"])


@pytest.mark.parametrize("case", cases("f1"))
def test_labels(case: Case) -> None:
    parsed = [parse_label(answer, case["labels"]) for answer in case["predictions"]]
    assert parsed == case["parsed"]
    scores = labels.label_scores(parsed, case["references"], case["labels"])
    per_class = case["expected"].pop("per_class")
    assert scores["per_class"] == {name: near(value) for name, value in per_class.items()}
    assert {name: scores[name] for name in case["expected"]} == {  # type: ignore[literal-required]
        name: near(value) for name, value in case["expected"].items()
    }


@pytest.mark.parametrize("case", cases("tokens"))
def test_padding(case: Case) -> None:
    tokens, padded = throughput.padded_batch(case["lengths"])
    share = throughput.padding_share(tokens, padded)
    wanted = case["expected"]
    assert (tokens, padded) == (wanted["tokens"], wanted["padded_tokens"])
    assert share == near(wanted["padding_share"])


@pytest.mark.parametrize("case", cases("tokens_per_s"))
def test_throughput(case: Case) -> None:
    steps = [step(i, s, case["tokens_per_step"]) for i, s in enumerate(case["step_seconds"])]
    inside = {int(i): s for i, s in case["evaluation_seconds_inside"].items()}
    steps = throughput.without_evaluation(steps, inside)
    found = throughput.throughput(steps, warmup_steps=case["warmup_steps"])
    assert found.tokens_per_s == near(case["expected"])
    assert found.overall_tokens_per_s == near(case["expected"])
    assert found.n_steps == 5


@pytest.mark.parametrize("case", cases("cost"))
def test_cost(case: Case) -> None:
    usd = case["usd_per_gpu_hour"]
    price = Price(
        usd_per_device_hour=usd, low_usd=usd, high_usd=usd, provider="x", date="x", source="x"
    )
    train_s = case["hours"]["train"] * 3600
    found = cost.job_cost(
        {name: hours * 3600 for name, hours in case["hours"].items()},
        price,
        devices=case["gpus"],
        train_s=train_s,
        tokens=int(case["tokens_per_s_all_gpus"] * train_s),
    )
    wanted = case["expected"]
    assert found.job.usd == near(wanted["job_usd"])
    assert found.train is not None and found.train.usd == near(wanted["train_usd"])
    million = found.per_million_training_tokens
    assert million is not None and million.usd == near(wanted["usd_per_million_training_tokens"])
    assert cost.pareto_frontier([tuple(p) for p in case["points"]]) == wanted["frontier"]
