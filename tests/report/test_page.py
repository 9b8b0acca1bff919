"""index.html as a file: whole without a network, valid, hostile text dead, small enough."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench.record import Status
from bench.report import frames, page
from bench.report.blocks import Bullets, Section, Table, Text
from bench.report.build import build
from bench.report.frames import Link

from .made import Run, add, add_failed, cell, dataset

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}[x](javascript:alert(3))'


class Parsed(HTMLParser):
    """Tags with their attributes, and that every element is closed."""

    VOID = frozenset({"meta", "br", "img", "input", "link", "path", "use", "rect", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open and self.open.pop() == tag, tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("page") / "results"
    nasty = dataset(title=HOSTILE, homepage=HOSTILE)
    broken = Run(generate={"reason": HOSTILE}, audit={"warnings": [HOSTILE]})
    add(results, cell("m", "base", dataset=nasty), Run(right=0.3))
    add(results, cell("m", "lora", dataset=nasty), broken)
    add_failed(results, cell("m", "full", dataset=nasty), Status.OOM_GPU, HOSTILE, stage="train")
    return build(results, "made").parent


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


def test_every_element_is_closed_and_every_id_is_used_once(html: str) -> None:
    parsed = Parsed(html)
    assert parsed.open == []
    ids = Counter(str(attrs["id"]) for _, attrs in parsed.tags if "id" in attrs)
    assert [name for name, count in ids.items() if count > 1] == []
    for tag, attrs in parsed.tags:
        href = attrs.get("href") or attrs.get("xlink:href") or ""
        if href.startswith("#"):
            assert href[1:] in ids, (tag, href)


def test_links_lead_to_files_that_are_there(html: str, folder: Path) -> None:
    hrefs = {attrs.get("href") or "" for tag, attrs in Parsed(html).tags if tag == "a"}
    files = [href for href in hrefs if not href.startswith(("#", "http"))]
    assert len(files) > 10
    for href in files:
        assert (folder / href).exists(), href


def test_nothing_is_loaded_from_elsewhere(html: str) -> None:
    for tag, attrs in Parsed(html).tags:
        assert "src" not in attrs, tag
        assert tag not in ("link", "iframe", "object", "base")
    assert "@import" not in html


def test_foreign_text_never_becomes_markup(html: str) -> None:
    parsed = Parsed(html)
    assert Counter(tag for tag, _ in parsed.tags)["script"] == 1
    for tag, attrs in parsed.tags:
        assert not [name for name in attrs if name.startswith("on")], tag
        assert "javascript:" not in (attrs.get("href") or "").lower()
    assert "{{ 7*7 }}" in html and "alert(1)&lt;/script&gt;" in html


def test_hostile_text_in_every_place_a_block_has(tmp_path: Path) -> None:
    made = frames.frame([{HOSTILE: HOSTILE, "link": Link(HOSTILE, "javascript:alert(1)")}])
    blocks = [
        Text(HOSTILE), Bullets([HOSTILE], HOSTILE), Table(made, HOSTILE), Table(made, HOSTILE, True)
    ]  # fmt: skip
    text = page.render(HOSTILE, [Section("one", HOSTILE, blocks)], tmp_path)
    tags = Parsed(text).tags
    assert Counter(tag for tag, _ in tags)["script"] == 1
    assert Counter(tag for tag, _ in tags)["img"] == 0
    assert not [a for _, a in tags if "javascript" in (a.get("href") or "")]


def test_sentences_are_the_markdown_that_we_write_and_no_more() -> None:
    text = page.sentence("**take** `full` [it](#quality) [x](javascript:alert(1)) <b> ![i](x.png)")
    assert text.startswith(
        '<strong>take</strong> <code>full</code> <a href="#quality">it</a> [x](javascript:alert(1))'
    )
    assert "&lt;b&gt;" in text and "<img" not in text


def test_charts_say_what_they_are_and_what_is_pointed_at(html: str) -> None:
    svgs = [attrs for tag, attrs in Parsed(html).tags if tag == "svg" and "role" in attrs]
    assert len(svgs) >= 6
    assert all(attrs["role"] == "img" and attrs["aria-labelledby"] for attrs in svgs)
    tips = re.findall(r'class="tip"[^>]*><title>([^<]+)</title>', html)
    assert any("m × lora: reply.rouge_l" in tip for tip in tips)


def test_the_order_is_that_of_a_decision(html: str) -> None:
    ids = re.findall(r'<section id="(\w+)"', html)
    assert ids == [
        "answer", "cost", "fit", "memory", "convergence", "speed", "quality", "predicted",
        "failures", "method",
    ]  # fmt: skip


def test_tables_have_heads_and_captions(html: str) -> None:
    tags = Counter(tag for tag, _ in Parsed(html).tags)
    assert tags["table"] == tags["caption"] == tags["thead"] > 8
    heads = [attrs for tag, attrs in Parsed(html).tags if tag == "th"]
    assert all(attrs.get("scope") == "col" for attrs in heads)
