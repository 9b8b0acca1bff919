"""The command as a person meets it: one clear line for each mistake, exit codes, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import listing
from bench.environment import gpus
from bench.spec.serving import Serving

from .conftest import ROOT, bench
from .report import made


def test_check_prod() -> None:
    done = bench("check", "suites/prod.yaml", "--json")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["models"] == 3 and counts["methods"] == 4 and counts["cells"] > 48


@pytest.mark.skipif(bool(gpus().names), reason="this machine has a GPU")
def test_a_suite_for_other_machines_writes_nothing(tmp_path: Path) -> None:
    done = bench("run", "prod", "--results", str(tmp_path / "results"))
    assert done.returncode == 3
    first = done.stderr.strip().splitlines()
    assert len(first) == 1
    assert "4 × A100-80GB-SXM or 4 × H100-80GB-SXM" in first[0] and "no NVIDIA GPU" in first[0]
    assert "llama-2-70b" in done.stdout and "bench plan" in done.stdout
    assert not (tmp_path / "results").exists()


def test_list_knows_all_suites_and_cells() -> None:
    suites = {row["suite"]: row["cells"] for row in json.loads(bench("list", "--json").stdout)}
    assert {"quick", "smoke", "prod"} <= suites.keys()
    cells = json.loads(bench("list", "quick", "--json").stdout)
    methods = {cell["method"] for cell in cells}
    assert methods == {"base", "full", "lora", "qlora", "majority", "copy"}
    assert suites["quick"] == len(cells)


def test_a_finished_cell_that_shall_be_served_says_so(tmp_path: Path) -> None:
    plain = made.cell("m", "lora")
    made.add(tmp_path, plain)
    served = plain.model_copy(update={"serve": Serving()})
    other = made.cell("m", "lora", seed=1)
    states = [listing.row(cell, tmp_path)["status"] for cell in (plain, served, other)]
    assert states == ["ok", "ok, not served", "not run"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("check", "quikc"), "Did you mean quick"),
        (("run", "quick", "--only", "method=lorra"), "Did you mean lora"),
        (("report", "quick", "--results", "nowhere"), "no results in nowhere/quick"),
        (("show", "nothing-like-it"), "no cell 'nothing-like-it'"),
        (("add-model", "x/y", "--config", "nowhere.json"), "nowhere.json"),
    ],
)
def test_mistakes_are_one_line_with_exit_code_2(arguments: tuple[str, ...], expected: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.startswith("error: ") and len(done.stderr.strip().splitlines()) == 1


def test_a_new_model_is_one_file(project: Path) -> None:
    models = project / "suites" / "models"
    models.unlink()
    models.mkdir()
    config = project / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "qwen3",
                "architectures": ["Qwen3ForCausalLM"],
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 32,
                "vocab_size": 256,
                "tie_word_embeddings": True,
            }
        ),
        encoding="utf-8",
    )
    done = bench("add-model", "Someone/New-Model", "--config", str(config), cwd=project)
    assert done.returncode == 0, done.stderr
    assert "new-model" in done.stdout
    assert (models / "new-model.yaml").exists()
    prod = (ROOT / "suites" / "quick.yaml").read_text(encoding="utf-8")
    text = prod.replace("[smollm2-135m]", "[new-model]")
    (project / "suites" / "quick.yaml").write_text(text, encoding="utf-8")
    checked = bench("check", "quick", cwd=project)
    assert checked.returncode == 0, checked.stderr
