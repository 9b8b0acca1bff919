from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.record import Prediction
from bench.score.answers import format_answer
from bench.score.quality import METRICS, Quality, score, statistics, validate_metrics

from .made import LABELS, dataset, field, prediction, quickly

ALL = dataset(
    field("reply", "text", "rouge_l", "rouge_lsum", "bleu", "exact_match"),
    field("intent", "label", "f1", "micro_f1", "accuracy", "invalid_rate"),
    field("slots", "entities", "entity_f1", "entity_partial_f1"),
    format="lines",
)
TRUTH: list[dict[str, Any]] = [
    {"reply": "We will refund you within five days.", "intent": "billing", "slots": {"order": "1"}},
    {"reply": "Your parcel left the warehouse today.", "intent": "delivery", "slots": {}},
    {
        "reply": "Please restart the blue router now.",
        "intent": "technical",
        "slots": {"item": "router"},
    },
    {
        "reply": "The invoice was sent by email again.",
        "intent": "billing",
        "slots": [["order", "2"]],
    },
]


def rows(answers: list[str] | None = None) -> list[Prediction]:
    answers = answers or [format_answer(truth, ALL) for truth in TRUTH]
    return [
        prediction(answer, truth, id=str(index), group="ab"[index % 2])
        for index, (answer, truth) in enumerate(zip(answers, TRUTH, strict=True))
    ]


MIXED = [
    "reply: We will refund you in five days.\nintent: billing\nslots: order=1",
    "Your parcel left today. This is about delivery.",
    "<think>the router",
    "reply: Sent.\nintent: billing or delivery\nslots: order=3",
]


def test_identity_is_best() -> None:
    found = score(ALL, rows())
    for name, metric in found.metrics.items():
        best = {"reply.bleu": 100, "intent.invalid_rate": 0}.get(name, 1)
        assert metric.value == best, name
        assert best in (metric.low, metric.high)  # and the other end is what four rows can't tell
        assert metric.n == 4
    assert found.empty_rate == found.truncated_rate == found.invalid_rate["intent"] == 0


def test_mixed_answers() -> None:
    found = score(ALL, rows(MIXED))
    assert found.n == 4
    assert found.metrics["intent.accuracy"].value == 0.5
    assert found.metrics["intent.accuracy"].per_example == (1, 1, 0, 0)
    assert found.invalid_rate == {"intent": 0.5}
    assert found.metrics["slots.entity_f1"].value == pytest.approx(2 * 1 / (2 + 3))
    assert found.empty_rate == found.truncated_rate == 0.25
    assert found.groups["a"]["intent.accuracy"].value == 0.5
    assert found.groups["a"]["intent.accuracy"].n == 2
    assert found.groups["b"]["slots.entity_f1"].value == 0
    assert found.per_class["intent"]["billing"].value == pytest.approx(2 / 3)
    assert found.per_class["intent"]["billing"].n == 2
    assert found.per_type["slots"]["order"].value == 0.5
    for metric in found.metrics.values():
        assert metric.value is not None and metric.low is not None and metric.high is not None
        assert metric.low <= metric.value <= metric.high


def test_groups_are_scored_as_corpora() -> None:
    found, some = score(ALL, rows(MIXED)), rows(MIXED)
    for group in "ab":
        alone = score(ALL, [row for row in some if row.group == group])
        assert {k: v.value for k, v in found.groups[group].items()} == {
            k: v.value for k, v in alone.metrics.items()
        }
    ungrouped = [row.model_copy(update={"group": None}) for row in some]
    assert score(ALL, ungrouped).groups == {}


def test_same_bytes_and_json_round_trip() -> None:
    found = score(ALL, rows(MIXED)).model_dump_json()
    assert score(ALL, rows(MIXED)).model_dump_json() == found
    assert Quality.model_validate_json(found).model_dump_json() == found


@quickly
@given(st.permutations(range(4)))
def test_order_of_rows_does_not_matter(order: list[int]) -> None:
    some = rows(MIXED)
    found, shuffled = score(ALL, some), score(ALL, [some[i] for i in order])
    for name, metric in found.metrics.items():
        assert shuffled.metrics[name].value == pytest.approx(metric.value)
    assert shuffled.groups == found.groups


@quickly
@given(st.lists(st.text(max_size=60), min_size=4, max_size=4))
def test_bounds_on_any_text(answers: list[str]) -> None:
    for name, metric in score(ALL, rows([a or "x" for a in answers])).metrics.items():
        if metric.value is not None:
            assert 0 <= metric.value <= (100 if name.endswith("bleu") else 1)


def test_several_references() -> None:
    made = dataset(field("reply", "text", "rouge_l", "bleu", "exact_match"))
    found = score(made, [prediction("a b c d", {"reply": ["x y", "a b c d"]})])
    assert {m.value for m in found.metrics.values()} == {1, 100}
    assert "nrefs:2" in (found.metrics["reply.bleu"].signature or "")


def test_length_counts_as_truncated() -> None:
    made = dataset(field("reply"))
    cut = prediction("Blue", {"reply": "Blue"}, finish_reason="length")
    assert score(made, [cut]).truncated_rate == 1


def test_no_predictions() -> None:
    found = score(ALL, [])
    assert all(m.value is None and m.reason for m in found.metrics.values())
    assert found.n == 0 and found.empty_rate is None and found.invalid_rate == {"intent": None}


def test_no_entities_anywhere_is_unknown() -> None:
    made = dataset(field("slots", "entities", "entity_f1"))
    metric = score(made, [prediction("none", {"slots": {}})] * 2).metrics["slots.entity_f1"]
    assert metric.value is None and metric.reason


def test_bad_rows_are_named() -> None:
    made = dataset(field("intent", "label", "f1"))
    with pytest.raises(ValueError, match="prediction 7 has no reference for field intent"):
        score(made, [prediction("billing", {}, id="7")])
    with pytest.raises(ValueError, match="'sales' is not one of its labels"):
        score(made, [prediction("billing", {"intent": "sales"})])


def test_external_metrics() -> None:
    name = "evaluate:length"
    made = dataset(field("reply", "text", name), field("intent", "label", name), format="lines")
    some = [
        prediction("reply: abc\nintent: Billing!", {"reply": ["ab", "x"], "intent": "billing"}),
        prediction("nothing", {"reply": "y", "intent": "delivery"}, group="g"),
    ]
    calls = []

    def function(predictions: list[str], references: list[str]) -> float:
        calls.append((predictions, references))
        return float(len(predictions))

    found = score(made, some, extra={name: function})
    assert calls[0] == (["abc", "nothing"], ["ab", "y"])
    assert (["billing", ""], ["billing", "delivery"]) in calls
    assert found.metrics[f"reply.{name}"].value == 2
    assert found.groups["g"][f"reply.{name}"].value == 1
    missing = score(made, some).metrics[f"reply.{name}"]
    assert missing.value is None and "not loaded" in (missing.reason or "")

    def broken(predictions: list[str], references: list[str]) -> float:
        raise RuntimeError("no network")

    failed = score(made, some, extra={name: broken}).metrics[f"reply.{name}"]
    assert failed.value is None and "no network" in (failed.reason or "")


def test_statistics_are_the_metrics() -> None:
    some = rows(MIXED)
    found = {name: sums.value() for name, sums in statistics(ALL, some).items()}
    assert found == {name: metric.value for name, metric in score(ALL, some).metrics.items()}


def test_validate_metrics() -> None:
    assert validate_metrics(ALL) == []
    assert set(METRICS) == {m for f in ALL.answer for m in f.metrics}
    bad = dataset(
        field("intent", "label", "rouge_l", "acuracy", "evaluate:", labels=("a_b", "a b")),
        field("Intent".lower(), "text"),
        format="lines",
    )
    problems = validate_metrics(bad)
    assert len(problems) == 5
    assert "type label: rouge_l doesn't score it, but f1, micro_f1" in "\n".join(problems)
    with pytest.raises(ValueError, match="unknown metric 'acuracy'; known: accuracy, "):
        score(bad, [])


def test_imports_stay_light() -> None:
    """No torch ever; scikit-learn, scipy, sacrebleu and rouge_score only on use."""
    code = (
        "import sys; from bench.score import quality, throughput, convergence, cost; "
        "heavy = {'torch', 'transformers', 'sklearn', 'scipy', 'sacrebleu', 'rouge_score'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_labels_are_those_of_the_spec() -> None:
    assert tuple(score(ALL, rows()).per_class["intent"]) == LABELS
