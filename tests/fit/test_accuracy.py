"""`bench accuracy` as a person runs it: a small file of cases, and broken ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ..conftest import bench

MODELS = {
    "small": {
        "arch": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "vocab_size": 512,
    }
}
CASE: dict[str, Any] = {
    "id": "one",
    "family": "own",
    "model": "small",
    "framework": "peft 0.19",
    "method": "full",
    "base_dtype": "bf16",
    "micro_batch": 1,
    "seq_len": 64,
    "mem_kind": "reserved",
    "measured_gib": 0.05,
    "gpu_memory_gib": 1,
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    cases, models = tmp_path / "cases.jsonl", tmp_path / "models.json"
    rows = [
        CASE,
        {**CASE, "id": "two", "seq_len": 128},
        {**CASE, "id": "odd", "model": "none", "outcome": "OOM"},
    ]
    cases.write_text("\n".join(json.dumps(row) for row in rows))
    models.write_text(json.dumps(MODELS))
    return cases, models


def test_every_case_is_predicted_in_the_order_of_the_file(files: tuple[Path, Path]) -> None:
    cases, models = files
    done = bench("accuracy", str(cases), "--models", str(models), "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert found["all"]["n"] == 2  # the third is of an unknown model
    assert {row["id"] for row in found["worst"]} == {"one", "two"}
    assert [row["id"] for row in found["failed"]] == ["odd"]
    assert found["all"]["oom_right"] == "0/1"  # what can't be predicted is no right call
    assert all(row["predicted_gib"] > 0.02 for row in found["worst"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cases.jsonl: No such file"),
        ("{not json", "cases.jsonl:1: not JSON"),
        ('{"id": "a"}', "cases.jsonl:1: a case needs family"),
        ("", "no cases"),
    ],
)
def test_broken_files_are_one_line(
    text: str | None, said: str, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.fit.__main__ import main

    cases, models = files
    cases.unlink() if text is None else cases.write_text(text)
    assert main(["accuracy", str(cases), "--models", str(models)]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
