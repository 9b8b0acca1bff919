"""Suites resolve fast and fail with file, line, field and remedy."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml

from bench import suite
from bench.errors import UserError
from bench.spec import Cell, EndpointSpec, ModelSpec

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
    "positions": (
        "max_length: 128",
        "max_length: 4096",
        ["mini.yaml:12", "positions of"],
    ),
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


# ---------------------------------------------------------------- convergence and micro-batches


def test_micro_batches_cross_what_is_trained(project: Path) -> None:
    plain = load(project, MINIMAL).cells
    cells = load(project, MINIMAL + "micro_batches: [1, 2, 4]\n").cells
    sizes = [(cell.method.name, cell.budget.micro_batch) for cell in cells]
    assert sizes == [("base", 2), ("lora", 1), ("lora", 2), ("lora", 4)]
    assert {cell.id for cell in plain} <= {cell.id for cell in cells}  # the same question still
    chosen = suite.select(cells, "micro_batch=1|4")
    assert [cell.budget.micro_batch for cell in chosen] == [1, 4]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("micro_batches: [4]", [4]), ("budget: {micro_batch: 1}", [1]), ("seeds: [0]", [1, 2])],
)
def test_a_rule_replaces_micro_batches(project: Path, rule: str, expected: list[int]) -> None:
    rules = f"micro_batches: [1, 2]\nrules: [{{when: {{method: [lora]}}, {rule}}}]\n"
    cells = load(project, MINIMAL + rules).cells
    assert [c.budget.micro_batch for c in cells if c.method.trains] == expected


@pytest.mark.parametrize(
    ("written", "line", "size"),
    [
        ("micro_batches:\n  - 2\n  - 3\n", "mini.yaml:15", "micro_batch 3"),
        ("rules:\n  - when: {method: [lora]}\n    micro_batches: [3]\n", "mini.yaml:15", "3"),
        ("targets: [{use: cpu, name: c4, devices: 4}]\nstrategy: {name: ddp}\n",
         "mini.yaml:9", "micro_batch 2 × 4 devices"),
        ("targets: [{use: cpu, name: c4, devices: 4}]\nstrategy: {name: ddp}\n"
         "rules:\n  - when: {target: [c4]}\n    budget: {global_batch: 8, micro_batch: 4}\n",
         "mini.yaml:16", "micro_batch 4 × 4 devices"),
    ],
)  # fmt: skip
def test_a_micro_batch_that_does_not_divide_is_named_where_it_stands(
    project: Path, written: str, line: str, size: str
) -> None:
    text = MINIMAL.replace("targets: [cpu]\n", "") if "targets" in written else MINIMAL
    message = error(project, text + written)
    assert line + ": " in message and f"{size} does not divide global_batch" in message, message


@pytest.mark.parametrize(
    ("target", "budget", "message"),
    [
        ("{score: intent.f2, at_least: 0.5}", "", "no built-in metric 'intent.f2'"),
        ("{score: first, at_least: 0.5}", "", "set `budget: {score_rows: 64}`"),
        ("{relative_to: fulll}", "", "no trained method 'fulll'"),
        ("{score: first, relative_to: base}", "", "no trained method 'base'"),
        ("{score: first}", "", "a score needs `at_least` or `relative_to`"),
        ("{score: intent.f1, at_least: 0.5}", "  score_rows: 8\n", ""),
    ],
)
def test_a_target_that_nothing_can_reach_is_an_error(
    project: Path, target: str, budget: str, message: str
) -> None:
    text = MINIMAL + budget + f"converged: {target}\n"
    if message:
        assert message in error(project, text)
        return
    base, lora = load(project, text).cells
    assert (base.budget.score_rows, lora.budget.score_rows) == (None, 8)
    assert base.id in {cell.id for cell in load(project, MINIMAL).cells}  # base: nothing changed


# ---------------------------------------------------------------- models behind an API

API_MODEL = """\
name: behind-api
endpoint: {base_url: "https://api.example.com/v1/", model: gpt-x}
"""


def with_api(project: Path, text: str = API_MODEL) -> Path:
    """The project with one more model."""
    models = project / "suites" / "models"
    models.unlink()
    models.mkdir()
    for path in (ROOT / "suites" / "models").glob("*.yaml"):
        (models / path.name).symlink_to(path)
    (models / "behind-api.yaml").write_text(text, encoding="utf-8")
    return project


def test_an_api_is_asked_once_and_only_what_it_can_do(project: Path) -> None:
    text = MINIMAL.replace("[tiny-llama]", "[tiny-llama, behind-api]").replace(
        "  - base\n",
        "  - {use: base, dtype: fp32}\n  - {use: base, name: base-bf16}\n"
        "  - {use: base, name: shots, shots: 2}\n  - majority\n",
    )
    text = text.replace("targets: [cpu]", "targets: [cpu, 1xl40s-48gb]\nseeds: [0, 1]\n")
    found = load(with_api(project), text + "strategy: {name: auto}\n")
    asked = [cell for cell in found.cells if cell.model.endpoint]
    assert [(c.method.name, c.target.name, c.seed) for c in asked] == [
        ("base", "api", 0),
        ("shots", "api", 0),
    ]
    assert {cell.strategy.name for cell in asked} == {"single"}
    assert asked[0].model.endpoint and asked[0].model.endpoint.base_url.endswith("/v1")
    local = [cell for cell in found.cells if not cell.model.endpoint]
    assert len(local) == 2 * (4 + 2) and all(cell.target.name != "api" for cell in local)
    excluded = dict(found.excluded)
    assert len(excluded) == 3 and all(name.endswith("× api") for name in excluded)
    assert "can't be trained here" in excluded["behind-api × lora × support-desk × api"]
    assert "what base asks already" in excluded["behind-api × base-bf16 × support-desk × api"]


def test_a_suite_of_apis_alone_needs_no_machine(project: Path) -> None:
    text = MINIMAL.replace("[tiny-llama]", "[behind-api]").replace("targets: [cpu]\n", "")
    found = load(with_api(project), text.replace("- base\n", "- base\n  - majority\n"))
    assert [cell.method.name for cell in found.cells] == ["base", "majority"]
    assert "which machines" in error(project, MINIMAL.replace("targets: [cpu]\n", ""))


def test_a_suite_without_a_cell_says_why(project: Path) -> None:
    text = MINIMAL.replace("[tiny-llama]", "[behind-api]").replace("  - base\n", "")
    said = error(with_api(project), text)
    assert "no cell is left" in said and "can't be trained here" in said


def test_rules_may_name_the_api_s_place(project: Path) -> None:
    rule = "rules:\n  - {when: {target: [api]}, exclude: true, reason: no money}\n"
    text = MINIMAL.replace("[tiny-llama]", "[tiny-llama, behind-api]") + rule
    found = load(with_api(project), text)
    assert {reason for _, reason in found.excluded} == {"no money"}
    assert "no target 'api'" in error(project, MINIMAL + rule)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("model: gpt-x, key_env: sk-Abc0123456789", "NAME of an environment variable"),
        ("model: gpt-x, base_url: 'https://me:sk-Abc0123456789@x.com'", "the key belongs in"),
        ("model: gpt-x, base_url: x.com", "expected http://"),
        ("model: gpt-x, extra_body: {max_tokens: 3}", "max_tokens is set from the suite"),
        ("model: gpt-x, max_usd: 3", "max_usd needs a `price`"),
        ("model: gpt-x, provider: else", "endpoint.provider"),
        ("modle: gpt-x", "model"),
    ],
)
def test_endpoints_are_checked_and_never_repeat_a_key(project: Path, line: str, said: str) -> None:
    text = MINIMAL.replace("[tiny-llama]", "[behind-api]")
    message = error(with_api(project, f"name: behind-api\nendpoint: {{{line}}}\n"), text)
    assert said in message and "sk-Abc" not in message and "behind-api.yaml:2" in message


def test_a_model_has_weights_or_an_endpoint(project: Path) -> None:
    both = API_MODEL + "params: 5\n"
    text = MINIMAL.replace("[tiny-llama]", "[behind-api]")
    assert "has no `params` of its own" in error(with_api(project, both), text)
    (project / "suites" / "models" / "behind-api.yaml").write_text("name: behind-api\n")
    assert "`weights` is missing (a model behind an API has an `endpoint`)" in error(project, text)


def test_the_documented_endpoint_is_one() -> None:
    text = (ROOT / "docs" / "api-models.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n# suites/models/\S+\n(.*?)```", text, re.DOTALL)
    model = ModelSpec.model_validate(yaml.safe_load(example))
    assert model.endpoint and model.endpoint.price and model.endpoint.max_usd == 5
    defaults = {name: field.default for name, field in EndpointSpec.model_fields.items()}
    told = dict(re.findall(r"^\| `(\w+)` \| `?(\w+)`? \|", text, re.MULTILINE))
    assert len(told) == 7
    for name, value in told.items():
        written = {"none": "None", "true": "True"}.get(value, value)
        assert str(defaults[name]).removesuffix(".0") == written, name
