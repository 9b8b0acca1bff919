"""How long a cell's examples are: counted on real rows, stated, or assumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

pytest.importorskip("torch")

from bench import suite
from bench.fit import examples
from bench.fit.cell import job_of_cell, request_of_cell
from bench.spec import Cell, TokenLengths

from ..conftest import ROOT
from ..worker.conftest import changed

STATED = TokenLengths(mean=190, longest=610, prompt_longest=60, rows=25260, source="a card")


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    monkeypatch.chdir(ROOT)
    found = suite.load(ROOT / "suites" / "smoke.yaml").cells
    cell = next(c for c in found if c.model.name == "tiny-llama" and c.method.name == "lora")
    return changed(cell, budget={"max_length": 512, "max_train_rows": 200})


def test_counted_are_the_tokens_that_the_worker_trains_on(
    cell: Cell, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTBENCH_CACHE", str(cache))
    from bench.worker import data, load
    from bench.worker.train import _Examples

    trained = _Examples(cell, load.tokenizer(cell.model))
    found = examples.of_cell(cell)
    assert found.source == "counted"
    assert list(found.lengths) == [len(one.input_ids) for one in trained.train]
    assert found.rows == len(data.rows(cell.dataset, "train"))
    request = request_of_cell(cell)
    assert request.seq_len == max(found.lengths) < cell.budget.max_length
    assert min(found.lengths) < request.example_tokens < request.seq_len
    decoding = job_of_cell(cell).decoding
    assert decoding is not None and decoding.prompt < request.seq_len


def test_without_rows_or_tokenizer_the_datasets_file_speaks(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTBENCH_CACHE", str(tmp_path))
    nowhere = changed(cell, budget={"max_length": 500})
    assert examples.of_cell(nowhere) == examples.assumed(500)
    stated = changed(nowhere, dataset={"lengths": STATED.model_dump()})
    found = examples.of_cell(stated)
    assert (found.source, found.longest, found.prompt) == ("stated", 500, 60)
    assert stated.id == nowhere.id, "what only plans read must not repeat a finished run"


def test_a_stated_distribution_has_its_mean_and_its_longest() -> None:
    found = examples.drawn(STATED, 4096)
    assert found.longest == STATED.longest
    assert found.mean == pytest.approx(STATED.mean, rel=0.02)
    ordered = sorted(found.lengths)
    assert ordered[len(ordered) // 2] < STATED.mean, "log-normal: the median is below the mean"


def test_a_mean_above_the_longest_is_refused() -> None:
    with pytest.raises(ValidationError, match="mean 700 is above longest 610"):
        TokenLengths(mean=700, longest=610, rows=5, source="x")


def test_batches_are_as_long_as_their_longest_example() -> None:
    found = examples.drawn(STATED, 4096)
    one, four = (examples.batches(found.lengths, micro) for micro in (1, 4))
    assert len(one) == len(four) == examples.BATCHES
    assert max(one) == max(four) == STATED.longest
    assert sum(four) > sum(one)
    assert examples.batches((100, 101, 102), 2) == ()
