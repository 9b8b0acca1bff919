"""Answers as models really write them: dressed up, half in JSON, hedged, or very long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.score.answers import parse_label, split_fields
from bench.score.entities import format_entities, parse_entities

from .made import LABELS, dataset, quickly
from .test_answers import TEXT, TWO

SENTIMENT = ("positive", "negative", "neutral")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("**Label: Positive**", "positive"),
        ("```\npositive\n```", "positive"),
        ("```json\n{'label': 'positive',}\n```", "positive"),
        ("{'label': 'positive', 'reason': 'it is not negative'}", "positive"),
        ('{"label": "positive"', "positive"),
        ('{"sentiment": {"label": "positive", "score": 0.9}}', "positive"),
        ('{"a": 1}\n{"label": "positive"}', "positive"),
        ('{"label": "positive"}\n{"label": "negative"}', None),
        ('{"positive": true, "negative": false}', "positive"),
        ('{"positive": 0.9, "negative": 0.1}', None),
        ('["positive"]', "positive"),
        ("# positive", "positive"),
        ("* **positive**", "positive"),
        ("positive\n\nExplanation: happy, nothing negative here.", "positive"),
        ("positive|negative|neutral", None),
        ("Options: positive, negative, neutral. Answer: negative", None),
        ("It is not positive.", None),
        ("It's neither positive nor negative", None),
        ("This does not appear to be a positive review", None),
        ("This is not negative, it's positive", "positive"),
        ("As an AI language model, I cannot classify this as positive.", None),
        ("It is not only positive", "positive"),
        ("They did not receive a positive answer", "positive"),
        ("Not sure, but it looks positive", "positive"),
        ("$\\boxed{\\text{positive}}$", "positive"),
        ("<answer>positive</answer>", "positive"),
        ("positive<|im_end|>", "positive"),
        ("\u200bposi\u00adtive\u00a0", "positive"),
        ("ｐｏｓｉｔｉｖｅ", "positive"),
        ("<THINK>positive?</THINK>negative", "negative"),
        ("<thinking>positive?</thinking>\nnegative", "negative"),
        ("[THINK]positive?[/THINK]negative", "negative"),
        ("<|channel|>analysis<|message|>positive?<|channel|>final<|message|>negative", "negative"),
        ("<reasoning>positive", None),
        ("   \n\t ", None),
    ],
)  # fmt: skip
def test_labels_as_models_write_them(text: str, expected: str | None) -> None:
    assert parse_label(text, SENTIMENT) == expected


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("Answer: B) refund", ("refund", "billing"), "refund"),
        ("The answer is B because a customer wrote", ("A", "B"), "B"),
        ("A.", ("A", "B"), "A"),
        ('{"label": 1, "confidence": 0.2}', ("0", "1", "2"), "1"),
        ("The answer is -1", ("1", "-1"), "-1"),
        ("The text is non-compliant.", ("compliant", "non-compliant"), "non-compliant"),
        ("It's not an entailment", ("entailment", "not_entailment"), None),
        ("lostcard", ("card", "lost_card"), None),
        ("这不是账单", ("账单", "配送"), None),
        ("不是账单，是配送", ("账单", "配送"), "配送"),
        ("التصنيف: سلبي", ("إيجابي", "سلبي"), "سلبي"),
        ("Das ist kein Lob", ("lob", "tadel"), None),
        ("not urgent\nbilling", ("urgent", "billing"), "billing"),
    ],
)
def test_labels_of_all_kinds(text: str, labels: tuple[str, ...], expected: str | None) -> None:
    assert parse_label(text, labels) == expected


BOTH = [("order", "4821"), ("product", "router")]


@pytest.mark.parametrize(
    "text",
    [
        "order: 4821, product: router",
        "1. order: 4821\n2. product: router",
        "order=4821 product=router",
        "| type | value |\n|---|---|\n| order | 4821 |\n| product | router |",
        "{'order': '4821', 'product': 'router', 'date': None}",
        '{"order": "4821", "product": "router",}',
        '{"order": "4821", "product": "router", "date": "", "amount": "N/A"}',
        '{"order": "4821"}\n{"product": "router"}',
        '{"type": "order", "value": "4821"}\n{"type": "product", "value": "router"}',
        '```\n[{"type": "order", "value": "4821"}, {"type": "product", "value": "router"},]\n```',
        'Here:\n[{"entity": "order", "text": "4821"}, {"entity": "product", "text": "router"}]',
        '[{"text": "4821", "label": "order", "start": 3, "end": 7}, '
        '{"text": "router", "label": "product", "start": 9, "end": 15}]',
        '[("order", "4821"), ("product", "router")]',
        '{"entities": {"order": 4821, "product": "router"}, "count": 2}',
    ],
)
def test_entities_as_models_write_them(text: str) -> None:
    assert parse_entities(text) == BOTH


@pytest.mark.parametrize(
    "text", ["[]", "{}", "null", "-", "N/A", "order=; product=", '{"order": null}']
)
def test_no_entity_in_any_spelling(text: str) -> None:
    assert parse_entities(text) == []


def test_values_that_look_like_json_are_values() -> None:
    pairs = [("k", "[]"), ("k", "[(1, 2)]"), ("k", "{}"), ("k", '{"a": 1}'), ("k", "a b=c")]
    assert parse_entities(format_entities(pairs)) == pairs


@pytest.mark.parametrize(
    "text",
    [
        "**summary:** Broken. **intent:** billing",
        "summary: Broken. intent: billing",
        "summary = Broken.\nintent = billing",
        "```yaml\nsummary: Broken.\nintent: billing\n```",
        "<answer>\nsummary: Broken.\nintent: billing\n</answer>",
        "### Summary\nBroken.\n### Intent\nbilling",
        "{'summary': 'Broken.', 'intent': 'billing'}",
        '{"summary": "Broken.", "intent": "billing",}',
        '[{"summary": "Broken.", "intent": "billing"}]',
        '{"answer": {"summary": "Broken.", "intent": "billing"}}',
        '{"summary": "Broken."}\n{"intent": "billing"}',
    ],
)
@pytest.mark.parametrize("format", ["lines", "json"])
def test_fields_as_models_write_them(text: str, format: str) -> None:
    found = split_fields(text, dataset(*TWO, format=format))
    assert found == {"summary": "Broken.", "intent": "billing"}


@pytest.mark.parametrize(
    "piece",
    ["a ", "not ", "billing ", "{", '["', "**", "- ", '{"a":', "{'a':", "a=b;", "a: b\n", '"', "\\",
     "<think>", "label: ", "| a | b |\n", "x" * 61 + " "],
)  # fmt: skip
def test_no_text_takes_long(piece: str) -> None:
    """Far longer than any answer that a suite allows, of pieces that patterns could loop on."""
    text = piece * (30_000 // len(piece))
    started = time.perf_counter()
    parse_label(text, LABELS)
    parse_entities(text)
    split_fields(text, dataset(*TWO, format="lines"))
    assert time.perf_counter() - started < 5  # 0.5 s on a quiet core


@quickly
@given(
    st.sampled_from(LABELS),
    st.text(max_size=20),
    st.sampled_from(["Label: {}", "{}\n", "**{}**", "```\n{}\n```", '{{"label": "{}"}}']),
)
def test_a_label_alone_in_any_dress_is_that_label(label: str, case: str, dress: str) -> None:
    said = label.upper() if len(case) % 2 else label
    assert parse_label(dress.format(said), LABELS) == label


@quickly
@given(st.permutations(LABELS), TEXT)
def test_the_order_of_labels_does_not_matter(order: list[str], text: str) -> None:
    for said in (text, f"{text} billing", f"not {text} delivery"):
        assert parse_label(said, order) == parse_label(said, LABELS)


@quickly
@given(TEXT)
def test_two_labels_stated_are_never_one(text: str) -> None:
    assert parse_label(f"billing\n{text}\ndelivery", LABELS) is None
