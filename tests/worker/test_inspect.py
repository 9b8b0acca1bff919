"""`bench check --data`: real rows, a real tokenizer, kept for the report."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from bench import store
from bench.report import compare, datasets
from bench.report.rows import rows

from ..conftest import ROOT, bench, environment, make_project
from ..report.made import Run, add, cell

SUITE = """\
name: mini
models: [tiny-llama]
methods: [{use: base, dtype: fp32}, majority]
datasets: [support-desk]
targets: [cpu]
budget: {max_steps: 4, max_length: 128, max_new_tokens: 16}
"""


def test_check_reads_the_rows_and_keeps_what_it_found(
    tmp_path: Path, cache: Path, tokenizer: Any
) -> None:
    """`tokenizer` stands for: the model was made already.  Checking data makes none."""
    folder = make_project(tmp_path)
    (folder / "suites" / "mini.yaml").write_text(SUITE, encoding="utf-8")
    done = bench("check", "mini", "--data", "--json", cwd=folder, env=environment(cache))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["cells"] == 2 and told["data"]["support-desk"]["near_duplicates"] == 0
    found = store.read_hygiene(folder / "results", "mini")["support-desk"]
    assert {name: split.rows for name, split in found.splits.items()} == {
        "train": 480, "validation": 60, "test": 120,
    }  # fmt: skip
    assert found.splits["test"].empty == {"reply": 0, "intent": 0, "entities": 0}
    (cut,) = found.truncation  # one model, counted once
    assert cut.rows == (480, 120)
    assert cut.test_answers_cut > 100  # 16 tokens are too few for nearly every answer
    assert any("longer than 16 tokens" in warning for warning in found.warnings)
    assert cut.test_prompts_long == 0


def test_rows_that_cannot_be_had_are_one_line(tmp_path: Path, cache: Path) -> None:
    folder = make_project(tmp_path)
    text = SUITE.replace(
        "[support-desk]",
        "[{use: support-desk, answer: [{name: mood, type: text, metrics: [rouge_l]}], "
        "format: plain}]",
    )
    (folder / "suites" / "mini.yaml").write_text(text, encoding="utf-8")
    done = bench("check", "mini", "--data", cwd=folder, env=environment(cache))
    assert done.returncode == 2
    assert "the rows of support-desk can't be checked: " in done.stderr
    assert "no column 'mood'" in done.stderr


def test_without_a_made_model_rows_are_checked_and_tokens_not(tmp_path: Path) -> None:
    folder = make_project(tmp_path)
    (folder / "suites" / "mini.yaml").write_text(SUITE, encoding="utf-8")
    (folder / "data").unlink()
    shutil.copytree(ROOT / "data", folder / "data")
    files = {name: folder / f"data/support-desk/{name}.jsonl" for name in ("train", "test")}
    train, test = (path.read_text().splitlines() for path in files.values())
    nearly = [re.sub(r'("message": "[^"]*)', r"\1 now", line) for line in train[:3]]
    files["test"].write_text("\n".join([*nearly, *test[3:]]), encoding="utf-8")
    done = bench("check", "mini", "--data", cwd=folder, env=environment(tmp_path / "empty"))
    assert done.returncode == 0, done.stderr
    found = store.read_hygiene(folder / "results", "mini")["support-desk"]
    assert found.splits["test"].rows == 120 and found.truncation == []
    assert "warning: 3 of 120 test prompts nearly stand in train" in done.stderr
    assert "support-desk test: 120 rows, 0 of them repeated, 4 groups; prompt" in done.stdout
    assert "(train / validation / test): status 88 / 11 / 21, " in done.stdout
    assert not (tmp_path / "empty" / "models").exists()


def test_the_report_warns_and_says_when_nobody_looked(tmp_path: Path) -> None:
    add(tmp_path, cell("m", "base"), Run(rows=4))
    panels = compare.panels(rows(store.read_suite(tmp_path, "made")))
    (told,) = datasets.warnings(panels, {})
    assert told == (
        "desk: its rows were not checked for duplicates or leaks: `bench check made --data`."
    )
