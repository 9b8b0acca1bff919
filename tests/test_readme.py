"""What the README says is so: its commands exist, its example resolves, its files are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from bench import suite
from bench.cli import app

from .conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]
CODE = [line for part in re.findall(r"`+([^`]+)`+", README) for line in part.splitlines()]


def said(program: str) -> list[list[str]]:
    """Every `program …` in the README's code, as words, comments cut off."""
    lines = (line.split(" #")[0].strip() for line in CODE)
    return [line.split()[1:] for line in lines if re.match(rf"{program} \S", line)]


@pytest.mark.parametrize("words", said("bench"), ids=" ".join)
def test_bench_commands_exist_with_their_options(words: list[str]) -> None:
    command = COMMANDS[words[0]]
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("words", said("make"), ids=" ".join)
def test_make_targets_exist(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE)
    for name in re.findall(r"SUITE=([a-z]+)", " ".join(words)):
        assert (ROOT / "suites" / f"{name}.yaml").is_file()


def test_every_command_is_in_the_readme() -> None:
    assert {words[0] for words in said("bench")} | {"report"} >= set(COMMANDS)


def test_the_example_suite_resolves(project: Path) -> None:
    example = re.search(r"```yaml\n# suites/mine.yaml\n(.*?)```", README, re.DOTALL)
    assert example is not None
    path = project / "suites" / "mine.yaml"
    path.write_text(example.group(1), encoding="utf-8")
    assert len(suite.load(path).cells) == 2 * 2 * 3


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
