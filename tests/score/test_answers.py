from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.score.answers import format_answer, parse_label, split_fields
from bench.score.entities import entity_pairs, format_entities, parse_entities
from bench.score.json_text import json_objects
from bench.score.plain import normalise, strip_thinking

from .made import LABELS, dataset, field, quickly

# Without "<": a text that holds </think> is cut there, by design.
TEXT = st.text(st.characters(exclude_characters="<", exclude_categories=("Cs",)), max_size=30)
# Texts with lines that read as field names.
LINES = st.lists(
    st.sampled_from(["a", " ", "    ", "\n", "- ", "**", "intent", "Summary", "reply", ":", ": b"]),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Blue", ("Blue", False)),
        ("<think>blue, then red</think>\nBlue ", ("Blue", False)),
        ("<think>It might be blue", ("", True)),
        ("red is wrong.</think>Blue", ("Blue", False)),
        ("<think>a</think>b<think>c</think>d", ("d", False)),
        ("<think>a</think>b<think>c", ("", True)),
        ("<think>a</think>", ("", False)),
    ],
)
def test_strip_thinking(text: str, expected: tuple[str, bool]) -> None:
    assert strip_thinking(text) == expected


@quickly
@given(st.lists(st.sampled_from(["<think>", "</think>", "a", " b\n"])).map("".join))
def test_strip_thinking_twice_changes_nothing(text: str) -> None:
    answer = strip_thinking(text)[0]
    assert strip_thinking(answer) == (answer, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("billing", "billing"),
        ("Billing.", "billing"),
        ("**BILLING**", "billing"),
        ('{"label": "delivery"}', "delivery"),
        ('```json\n{"intent": "Billing", "why": "asks about delivery"}\n```', "billing"),
        ('{"billing": 0.9}', "billing"),
        ('["technical"]', "technical"),
        ("I think this is about billing", "billing"),
        ("technical issue", "technical"),
        ("Billing. They also ask about delivery", "billing"),
        ("It mentions delivery and billing.\n\nFinal answer: billing", "billing"),
        ("This is billing, not delivery", "billing"),
        ("It's not billing but delivery", "delivery"),
        ("billing or delivery", None),
        ("billing, delivery", None),
        ("billing or delivery? The answer is billing", None),
        ("not billing", None),
        ("not sure", None),
        ("", None),
        ("rebilling", None),
        ("I'm sorry, I can't help with that.", None),
        ("<think>maybe billing? no</think>\ntechnical", "technical"),
        ("<think>could be delivery or bill", None),
    ],
)
def test_parse_label(text: str, expected: str | None) -> None:
    assert parse_label(text, LABELS) == expected


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("lost card", ("card", "lost_card"), "lost_card"),
        ("The customer has a Lost-Card problem", ("card", "lost_card"), "lost_card"),
        ("My card was lost today", ("card", "card was lost"), "card was lost"),
        ("my card", ("card", "lost_card"), "card"),
        ("not relevant", ("relevant", "not_relevant"), "not_relevant"),
        ("Intent: open-account", ("open account", "close account"), "open account"),
        ("这是账单问题", ("账单", "配送"), "账单"),
        ("это возврат.", ("возврат", "доставка"), "возврат"),
        ("No. They did not ask.", ("yes", "no"), "no"),
    ],
)
def test_parse_label_names(text: str, labels: tuple[str, ...], expected: str) -> None:
    assert parse_label(text, labels) == expected


@quickly
@given(TEXT)
def test_parse_label_gives_a_label_or_none(text: str) -> None:
    assert parse_label(text, LABELS) in (*LABELS, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("order=4821; product=router", [("order", "4821"), ("product", "router")]),
        ("order=4821;product = blue router", [("order", "4821"), ("product", "blue router")]),
        ("- order=4821\n- product=router", [("order", "4821"), ("product", "router")]),
        ("order=4821, product=router", [("order", "4821"), ("product", "router")]),
        ("city=Boston, MA; order=1", [("city", "Boston, MA"), ("order", "1")]),
        ("**order**: 4821\nproduct: router", [("order", "4821"), ("product", "router")]),
        ("Entities: order=4821", [("order", "4821")]),
        ("none", []),
        ("None.", []),
        ("", []),
        ("order=none; product=router", [("product", "router")]),
        (
            '{"order": "4821", "product": ["a", "b"]}',
            [("order", "4821"), ("product", "a"), ("product", "b")],
        ),
        ('```json\n{"order": 4821, "x": null}\n```', [("order", "4821")]),
        ('{"entities": [{"type": "order", "value": "1"}]}', [("order", "1")]),
        ('[{"type": "order", "value": "1"}]', [("order", "1")]),
        ('note="a; b=c"', [("note", "a; b=c")]),
        ("<think>order=1</think>order=2", [("order", "2")]),
        ("<think>order=1", []),
        ("I could not find anything.", []),
    ],
)
def test_parse_entities(text: str, expected: list[tuple[str, str]]) -> None:
    assert parse_entities(text) == expected


@pytest.mark.parametrize(
    "value",
    [
        {"order": "1", "product": ["a", "b"]},
        [["order", "1"], ["product", "a"], ["product", "b"]],
        [{"type": "order", "value": "1"}, {"type": "product", "value": ["a", "b"]}],
        '{"order": "1", "product": ["a", "b"]}',
        "order=1; product=a; product=b",
    ],
)
def test_entity_pairs(value: Any) -> None:
    assert entity_pairs(value) == [("order", "1"), ("product", "a"), ("product", "b")]


def test_entity_pairs_of_nothing() -> None:
    assert entity_pairs(None) == entity_pairs({}) == entity_pairs([]) == entity_pairs("none") == []


@quickly
@given(st.lists(st.tuples(TEXT, TEXT)))
def test_entities_round_trip(pairs: list[tuple[str, str]]) -> None:
    assert parse_entities(format_entities(pairs)) == pairs


def test_long_types_round_trip_and_long_texts_are_quick() -> None:
    pairs = [("a " * 50 + "b", "1"), ("x" * 60, "2"), ("x" * 61, "3")]
    assert parse_entities(format_entities(pairs)) == pairs
    assert parse_entities("word " * 20_000) == []
    assert list(json_objects("{" * 20_000)) == []


def test_format_entities() -> None:
    assert (
        format_entities([("order", "4821"), ("product", "router")]) == "order=4821; product=router"
    )
    assert format_entities([]) == "none"


def test_normalise() -> None:
    assert normalise(' "Lost_Card". ') == normalise("lost-card") == "lost card"
    assert normalise("5%") != normalise("5") and normalise("-5") != normalise("5")
    assert normalise("...") == "..."


TWO = (field("summary"), field("intent", "label"))


@pytest.mark.parametrize(
    "text",
    [
        "summary: Router is\nbroken.\nintent: technical",
        "Summary: Router is\nbroken.\n\nINTENT : technical",
        "- **Summary:** Router is\nbroken.\n- **Intent:** technical",
        "**Summary**: Router is\nbroken.\n**Intent**: technical",
        "## Summary: \nRouter is\nbroken.\n## Intent: technical",
        "Here you are.\nintent: technical\nsummary: Router is\nbroken.",
        "summary: Router is\nbroken.\nintent: technical\nsummary: again",
        '{"summary": "Router is\\nbroken.", "intent": "technical"}',
        "<think>summary: no</think>summary: Router is\nbroken.\nintent: technical",
    ],
)
@pytest.mark.parametrize("format", ["lines", "json"])
def test_split_fields(text: str, format: str) -> None:
    found = split_fields(text, dataset(*TWO, format=format))
    assert found == {"summary": "Router is\nbroken.", "intent": "technical"}


def test_split_fields_missing_and_free() -> None:
    made = dataset(*TWO, format="lines")
    assert split_fields("intent: billing", made) == {"summary": None, "intent": "billing"}
    assert split_fields("summary:\nintent: billing", made) == {"summary": "", "intent": "billing"}
    free = "The customer has a billing problem."
    assert split_fields(free, made) == {"summary": free, "intent": free}
    assert split_fields("The intent: unclear", made)["summary"] == "The intent: unclear"


def test_split_fields_of_json() -> None:
    made = dataset(field("reply"), field("slots", "entities"), format="json")
    found = split_fields('Sure: {"x": 1} {"Reply": "Hi", "slots": {"order": "1"}}', made)
    assert found["reply"] == "Hi"
    assert parse_entities(found["slots"] or "") == [("order", "1")]
    cut = '{"reply": "Hi, your or'
    assert split_fields(cut, made) == {"reply": cut, "slots": cut}


def test_format_answer() -> None:
    fields = (field("summary"), field("intent", "label"), field("slots", "entities"))
    row = {"summary": "Broken.", "intent": "Technical", "slots": {"order": "1", "item": ["a", "b"]}}
    lines = format_answer(row, dataset(*fields, format="lines"))
    assert lines == "summary: Broken.\nintent: technical\nslots: order=1; item=a; item=b"
    as_json = format_answer(row, dataset(*fields, format="json"))
    assert as_json == (
        '{"summary": "Broken.", "intent": "technical", "slots": {"order": "1", "item": ["a", "b"]}}'
    )
    assert format_answer(row, dataset(fields[1])) == "technical"
    with pytest.raises(ValueError, match="not one of its labels"):
        format_answer({**row, "intent": "sales"}, dataset(fields[1]))
    with pytest.raises(ValueError, match="no value for field intent"):
        format_answer({}, dataset(fields[1]))


@pytest.mark.parametrize("format", ["lines", "json"])
@quickly
@given(
    summary=st.one_of(TEXT, LINES),
    intent=st.sampled_from(LABELS),
    reply=st.one_of(TEXT, LINES),
    slots=st.dictionaries(TEXT, st.lists(TEXT, min_size=1, max_size=2), max_size=3),
)
def test_answer_round_trip(format: str, summary: str, intent: str, reply: str, slots: Any) -> None:
    fields = (
        field("summary"),
        field("intent", "label"),
        field("reply"),
        field("order-slots", "entities"),
    )
    made = dataset(*fields, format=format)
    row = {"summary": summary, "intent": intent, "reply": reply, "order-slots": slots}
    found = split_fields(format_answer(row, made), made)
    assert found["summary"] == summary.strip()
    assert found["reply"] == reply.strip()
    assert parse_label(found["intent"] or "", LABELS) == intent
    wanted = entity_pairs(slots)  # an empty value or `none` is no entity
    assert parse_entities(found["order-slots"] or "") == wanted


def test_a_text_that_holds_a_field_name_round_trips() -> None:
    made = dataset(*TWO, format="lines")
    row = {
        "summary": "They wrote:\nintent: delivery\n    intent: x\n  - Intent: y",
        "intent": "billing",
    }
    written = format_answer(row, made)
    assert written.startswith("summary: They wrote:\n    intent: delivery\n        intent: x\n")
    assert split_fields(written, made) == row


@quickly
@given(st.text(max_size=80))
def test_any_text_is_read(text: str) -> None:
    for format in ("lines", "json"):
        found = split_fields(text, dataset(*TWO, format=format))
        assert set(found) == {"summary", "intent"}
    parse_entities(text)
