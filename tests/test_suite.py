"""Suites resolve fast and fail with file, line, field and remedy."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench import suite
from bench.errors import UserError
from bench.spec import Cell

from .conftest import ROOT
from .report.made import cell as made_cell

MINIMAL = """\
name: mini
models: [tiny-llama]
methods:
  - base
  - {use: lora, dtype: fp32, autocast: null, optimizer: adamw}
datasets: [support-desk]
targets: [cpu]
budget:
  max_steps: 4
  micro_batch: 2
  global_batch: 4
  max_length: 128
"""


def load(project: Path, text: str) -> suite.Suite:
    path = project / "suites" / "mini.yaml"
    path.write_text(text, encoding="utf-8")
    return suite.load(path)


def error(project: Path, text: str) -> str:
    with pytest.raises(UserError) as caught:
        load(project, text)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["quick", "smoke", "prod"])
def test_shipped_suites_resolve_in_two_seconds(name: str) -> None:
    started = time.perf_counter()
    found = suite.load(ROOT / "suites" / f"{name}.yaml")
    assert time.perf_counter() - started < 2
    assert len({cell.id for cell in found.cells}) == len(found.cells)


def test_prod_crosses_everything_and_follows_its_rules() -> None:
    cells = suite.load(ROOT / "suites" / "prod.yaml").cells
    assert {cell.target.devices for cell in cells} == {4}
    assert {cell.target.host_ram_gib for cell in cells} == {960}
    seeds = {(cell.model.name, cell.method.name, cell.seed) for cell in cells}
    assert ("llama-2-7b", "lora", 2) in seeds
    assert ("llama-2-70b", "lora", 1) not in seeds  # affordable: one seed
    assert ("llama-2-7b", "base", 1) not in seeds  # greedy answers of base don't vary by seed


def test_cells_hold_every_override(project: Path) -> None:
    base, lora = load(project, MINIMAL).cells
    assert (base.method.name, lora.method.name) == ("base", "lora")
    assert lora.method.dtype == "fp32" and lora.method.autocast is None
    assert lora.method.adapter is not None and lora.method.adapter.rank == 16  # from the file


def test_id_names_the_question_not_its_price(project: Path) -> None:
    cell = load(project, MINIMAL).cells[1]
    dearer = cell.model_dump()
    dearer["target"]["price"]["usd_per_device_hour"] = dearer["target"]["price"]["high_usd"]
    assert Cell.model_validate(dearer).id == cell.id
    longer = cell.model_dump()
    longer["budget"]["max_steps"] = 5
    assert Cell.model_validate(longer).id != cell.id
    assert cell.id.startswith("tiny-llama_lora_support-desk_cpu_s0_")


def test_id_survives_reading_back(project: Path) -> None:
    cell = load(project, MINIMAL).cells[1]
    assert Cell.model_validate_json(cell.model_dump_json()).id == cell.id


def test_rules_change_seeds_budget_method_and_leave_out(project: Path) -> None:
    text = (
        MINIMAL
        + """\
seeds: [0, 1]
rules:
  - when: {method: [lora]}
    budget: {epochs: 1.5}
    method: {adapter: {rank: 4}}
  - when: {method: [base]}
    exclude: true
    reason: known already
"""
    )
    found = load(project, text)
    assert [cell.seed for cell in found.cells] == [0, 1]
    lora = found.cells[0]
    assert lora.budget.epochs == 1.5 and lora.budget.max_steps is None
    assert lora.method.adapter is not None
    assert (lora.method.adapter.rank, lora.method.adapter.alpha) == (4, 32)
    assert found.excluded == (("tiny-llama × base × support-desk × cpu", "known already"),)


# Each: what is replaced in MINIMAL, by what, and what the one line must hold.
MISTAKES = {
    "unknown key": (
        "micro_batch: 2",
        "microbatch: 2",
        ["mini.yaml:10", "Did you mean micro_batch"],
    ),
    "bad number": ("max_steps: 4", "max_steps: -4", ["mini.yaml:9", "max_steps", "greater than 0"]),
    "batches": ("global_batch: 4", "global_batch: 5", ["mini.yaml:8", "does not divide"]),
    "unknown model": ("[tiny-llama]", "[tiny-lama]", ["mini.yaml:2", "Did you mean tiny-llama"]),
    "unknown method": ("  - base", "  - bass", ["mini.yaml:4", "Did you mean base"]),
    "missing": ("targets: [cpu]\n", "", ["mini.yaml", "targets", "missing"]),
    "not YAML": ("name: mini", "name: [mini", ["mini.yaml:", "not valid YAML"]),
    "twice": ("  max_steps: 4", "  max_steps: 4\n  max_steps: 5", ["mini.yaml:10", "twice"]),
    "override key": ("dtype: fp32", "dtyp: fp32", ["mini.yaml:5", "Did you mean dtype"]),
    "override value": ("dtype: fp32", "dtype: fp31", ["mini.yaml:5", "dtype", "fp32"]),
    "kind": ("use: lora,", "use: lora, kind: lorra,", ["mini.yaml:5", "Did you mean lora"]),
    "positions": ("max_length: 128", "max_length: 4096", ["positions of tiny-llama"]),
    "flash on a CPU": ("optimizer: adamw", "attention: flash_attention_2", ["CUDA", "sdpa"]),
    "paged on a CPU": ("optimizer: adamw", "optimizer: paged_adamw_8bit", ["adamw_8bit"]),
    "bf16 on a V100": ("[cpu]", "[1xv100-32gb]", ["no hardware for", "fp16"]),
    "listed twice": ("  - base", "  - base\n  - base", ["mini.yaml:5", "listed twice"]),
    "rule name": (
        "budget:",
        "rules:\n  - {when: {method: [qlora]}, seeds: [0]}\nbudget:",
        ["mini.yaml:9", "no method 'qlora'"],
    ),
    "exclude without reason": (
        "budget:",
        "rules:\n  - {when: {method: [lora]}, exclude: true}\nbudget:",
        ["mini.yaml:9", "reason"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_name_line_and_remedy(project: Path, mistake: str) -> None:
    old, new, expected = MISTAKES[mistake]
    assert MINIMAL.count(old) == 1
    started = time.perf_counter()
    message = error(project, MINIMAL.replace(old, new))
    assert time.perf_counter() - started < 1
    for part in expected:
        assert part in message


def test_a_wrong_model_file_is_named_itself(project: Path) -> None:
    models = project / "suites" / "models"
    models.unlink()
    models.mkdir()
    (models / "tiny-llama.yaml").write_text("name: tiny-llama\nchat: maybe\n", encoding="utf-8")
    message = error(project, MINIMAL)
    assert ("models/tiny-llama.yaml" in message and "chat" in message) or "weights" in message


def test_a_missing_data_file_is_found_before_anything_runs(project: Path) -> None:
    (project / "data").unlink()
    message = error(project, MINIMAL)
    assert "support-desk" in message and "train.jsonl" in message


@pytest.mark.parametrize(
    ("only", "ids"),
    [
        ("method=lora", ["lora"]),
        ("method=base|lora,target=cpu", ["base", "lora"]),
        (None, ["base", "lora"]),
    ],
)
def test_only_selects(project: Path, only: str | None, ids: list[str]) -> None:
    cells = suite.select(load(project, MINIMAL).cells, only)
    assert [cell.method.name for cell in cells] == ids


@pytest.mark.parametrize(
    ("only", "expected"), [("methd=lora", "method"), ("method=lorra", "lora"), ("lora", "unknown")]
)
def test_only_refuses_what_it_does_not_know(project: Path, only: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        suite.select(load(project, MINIMAL).cells, only)


# ---------------------------------------------------------------- comparison

COMPARED = MINIMAL + "comparison: {reference: lora, margin: 0.02, margins: {reply.bleu: 1.5}}\n"


def test_a_margin_changes_no_cells_identity(project: Path) -> None:
    plain, compared = load(project, MINIMAL), load(project, COMPARED)
    assert [cell.id for cell in plain.cells] == [cell.id for cell in compared.cells]
    asked = compared.cells[0].comparison
    assert (asked.reference, asked.delta("intent.f1")) == ("lora", 0.02)
    assert asked.delta("reply.bleu") == 1.5
    assert asked.model_copy(update={"margins": {}}).delta("reply.bleu") == 2.0
    assert plain.cells[0].comparison.delta("intent.f1") is None


def test_serving_changes_no_cells_identity_and_follows_rules(project: Path) -> None:
    wanted = MINIMAL.replace("  - base\n", "  - base\n  - majority\n")
    before = {cell.id for cell in load(project, wanted).cells}
    rules = "rules: [{when: {method: [base]}, serve: false}]\n"
    cells = load(project, wanted + "serve: {concurrencies: [1, 8]}\n" + rules).cells
    assert {cell.id for cell in cells} == before
    served = {cell.method.name: cell.serve for cell in cells}
    assert served["base"] is None and served["majority"] is None
    assert served["lora"] and served["lora"].concurrencies == (1, 8)
    priced = served["lora"].model_copy(update={"utilization": 0.1})
    assert priced.identity() == served["lora"].identity()  # nothing is measured again for it


def test_a_concurrency_that_is_listed_twice_is_an_error(project: Path) -> None:
    said = error(project, MINIMAL + "serve: {concurrencies: [4, 4]}\n")
    assert "mini.yaml:13: serve" in said
    assert "concurrencies lists a value twice" in said


def test_a_reference_that_is_no_method_is_an_error(project: Path) -> None:
    message = error(project, MINIMAL + "comparison:\n  reference: lore\n")
    assert message.endswith(
        "mini.yaml:14: comparison: this suite has no method 'lore'. Did you mean lora?"
    ), message


def test_a_margin_of_an_unknown_metric_is_an_error(project: Path) -> None:
    message = error(project, MINIMAL + "comparison:\n  margins:\n    reply.blue: 1\n")
    assert "mini.yaml:15: comparison: no dataset has a metric 'reply.blue'" in message, message


def test_ids_of_the_first_results_still_hold() -> None:
    """Golden: a field that a spec gained later must not change what finished cells are called."""
    assert made_cell("m", "lora").id == "m_lora_desk_cpu_s0_b125c6fa"
