"""What the README says is so: its commands exist, its example resolves, its files are there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from bench import suite
from bench.cli import app

from .conftest import ROOT, bench

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


@pytest.fixture(scope="module")
def project_with_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the commands read and write: suites, data, quick's committed results."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "suites", folder / "suites")
    shutil.copytree(ROOT / "results" / "quick", folder / "results" / "quick")
    (folder / "data").symlink_to(ROOT / "data")
    return folder


# Not run here: `make bench` and `make test` set up and take a quarter of an hour; `bench fit` and
# `bench plan` trace models for minutes.  `bench run` is tried in tests/run/ and below, `bench
# report` in test_quick_results.py.
CHEAP = ("list", "check", "show", "add-model")


def concrete(words: list[str], project: Path) -> list[str]:
    cell = next((project / "results" / "quick").glob("*_lora_*")).name
    given = {"SUITE": "quick", "[SUITE]": "quick", "CELL": cell}
    words = [given.get(word, word) for word in words]
    if words[0] == "add-model":  # offline
        config = project / "config.json"
        config.write_text(json.dumps(_config("tiny-llama")), encoding="utf-8")
        words = [*words, "--config", str(config)]
    return words


def _config(model: str) -> dict[str, object]:
    path = ROOT / "suites" / "models" / f"{model}.yaml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))["config"])


@pytest.mark.parametrize("words", [w for w in said("bench") if w[0] in CHEAP], ids=" ".join)
def test_cheap_commands_run(words: list[str], project_with_results: Path) -> None:
    done = bench(*concrete(words, project_with_results), cwd=project_with_results)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() and "Traceback" not in done.stderr


@pytest.mark.parametrize(("suite_name", "code"), [("quick", 0), ("prod", 3)])
def test_running_what_is_finished_or_for_another_machine(
    suite_name: str, code: int, project_with_results: Path
) -> None:
    """`make bench SUITE=…` without the set-up: nothing of quick is left to do, prod needs GPUs."""
    done = bench("run", suite_name, cwd=project_with_results)
    assert done.returncode == code, done.stdout + done.stderr
    if suite_name == "quick":
        assert "6 of 6 cells are finished already" in done.stdout
    else:
        assert "Nothing was run" in done.stderr
        assert not (project_with_results / "results" / "prod").exists()


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
