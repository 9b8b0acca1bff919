"""The page in a real browser: sorts, filters, speaks, links, and logs no error.

Needs Chromium and its driver (Debian: chromium, chromium-driver) and selenium; skipped without.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.report.build import build

from .made import Run, add, cell

webdriver = pytest.importorskip("selenium.webdriver")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium or no chromedriver")


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("browser") / "results"
    for index, name in enumerate(("small", "medium", "large")):
        for method, right in (("base", 0.2), ("full", 0.8), ("lora", 0.6)):
            add(results, cell(name, method), Run(right=right + 0.05 * index, rows=40))
    return build(results, "made").with_name("index.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield found
    found.quit()


@pytest.fixture
def opened(browser: Any, html: Path) -> Any:
    browser.get(html.as_uri())
    return browser


def column(browser: Any, index: int) -> list[str]:
    script = (
        "return [...document.querySelector('#cost table').tBodies[0].rows]"
        ".filter(r => !r.hidden).map(r => r.cells[arguments[0]].textContent)"
    )
    return list(browser.execute_script(script, index))


def test_a_click_on_a_head_sorts_and_a_second_one_turns_it(opened: Any) -> None:
    heads = opened.find_elements("css selector", "#cost th")
    index = next(i for i, head in enumerate(heads) if head.text.startswith("reply.rouge_l"))
    button = heads[index].find_element("css selector", "button")
    button.click()
    up = [float(text) for text in column(opened, index)]
    assert up == sorted(up) and heads[index].get_attribute("aria-sort") == "ascending"
    button.send_keys("\ue007")  # the Enter key
    down = [float(text) for text in column(opened, index)]
    assert down == sorted(up, reverse=True)


def test_filtering_keeps_lines_with_all_words(opened: Any) -> None:
    box = opened.find_element("css selector", "#cost input[type=search]")
    box.send_keys("LARGE lora")
    assert column(opened, 0) == ["large"] and column(opened, 1) == ["lora"]
    box.clear()
    box.send_keys("x\ue003")  # Backspace
    assert len(column(opened, 0)) == 9


def test_pointing_and_the_keyboard_say_the_same(opened: Any) -> None:
    tip = opened.find_element("css selector", "#cost .tip")
    said = opened.find_element("id", "said")
    assert not said.is_displayed()
    webdriver.ActionChains(opened).move_to_element(tip).perform()
    pointed = said.text
    assert "reply.rouge_l" in pointed and "for $" in pointed
    opened.find_element("css selector", "h1").click()
    opened.execute_script("arguments[0].focus()", tip)
    assert said.is_displayed() and said.text == pointed
    assert tip.get_attribute("aria-label") == pointed


def test_links_of_the_answer_lead_to_their_evidence(opened: Any) -> None:
    for link in opened.find_elements("css selector", "#answer p a"):
        place = link.get_attribute("href").partition("#")[2]
        assert place and opened.find_elements("id", place), place
    opened.find_element("css selector", "nav a[href='#quality']").click()
    assert opened.current_url.endswith("#quality")


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_itself_never_scrolls_sideways(opened: Any, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wide = opened.execute_script("return document.documentElement.scrollWidth")
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= width


def test_light_and_dark_differ_in_the_charts_too(opened: Any) -> None:
    colours = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        script = (
            "const s = getComputedStyle; const p = document.querySelector('figure svg path');"
            "return [s(document.body).backgroundColor, s(p).fill]"
        )
        colours.append(opened.execute_script(script))
    assert colours[0][0] == colours[0][1] and colours[1][0] == colours[1][1]
    assert colours[0] != colours[1]


def test_without_javascript_everything_is_there(browser: Any, html: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(html.as_uri())
        assert "take large × full" in browser.find_element("id", "answer").text
        assert len(browser.find_elements("css selector", "#cost tbody tr")) == 9
        assert browser.find_elements("css selector", "th button") == []
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_no_error_was_logged(browser: Any) -> None:
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
