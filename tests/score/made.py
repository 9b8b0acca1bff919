"""Small datasets, predictions and events for the tests."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

from bench.record import Prediction, StepEvent
from bench.spec import DatasetSpec

quickly = settings()  # the profile of tests/conftest.py

LABELS = ("billing", "delivery", "technical")


def field(
    name: str, kind: str = "text", *metrics: str, labels: tuple[str, ...] = ()
) -> dict[str, Any]:
    if kind == "label":
        labels = labels or LABELS
    return {"name": name, "type": kind, "metrics": metrics, "labels": labels}


def dataset(*fields: dict[str, Any], format: str = "plain", language: str = "en") -> DatasetSpec:
    """A dataset with these answer fields; the first scored one is needed by the spec."""
    defaults = {"text": "rouge_l", "label": "f1", "entities": "entity_f1"}
    if not any(item["metrics"] for item in fields):
        fields = ({**fields[0], "metrics": (defaults[fields[0]["type"]],)}, *fields[1:])
    return DatasetSpec.model_validate(
        {
            "name": "made",
            "licence": "CC0-1.0",
            "language": language,
            "train": [{"files": ["train.jsonl"]}],
            "split": {"validation": 0.1, "test": 0.1},
            "messages": [{"role": "user", "content": "{{ message }}"}],
            "answer": fields,
            "format": format,
        }
    )


def prediction(text: str, reference: dict[str, Any], **more: Any) -> Prediction:
    values = {"id": "1", "finish_reason": "stop", "prompt_tokens": 1, "new_tokens": 1, **more}
    return Prediction(prediction=text, reference=reference, **values)


def step(number: int, seconds: float, tokens: int = 2048, **more: Any) -> StepEvent:
    values = {"padded_tokens": tokens, "supervised_tokens": tokens // 2, "sequences": 4, **more}
    return StepEvent(t=0.0, step=number, loss=1.0, seconds=seconds, tokens=tokens, **values)
