"""A quantised model too large for one rank: what each holds while it loads, in two processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.record import Status

from ..conftest import ROOT
from .ranks import Trained, make_cell, train

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

LAYERS, EXPERTS, WIDTH = 12, 16, 512
LAYER_BYTES = EXPERTS * 3 * WIDTH * WIDTH * 2  # experts of one layer in bf16: 24 MiB
CORPUS = {"kind": "random", "corpus": "data/support-desk/train.jsonl", "vocab_size": 600}
LARGE: dict[str, dict[str, Any]] = {
    "method": {"dtype": "bf16", "lr_warmup_steps": 0},
    "budget": {"max_steps": 1, "micro_batch": 1, "global_batch": 2, "max_validation_rows": 1},
}


def large(strategy: str) -> Any:
    """300 MiB in bf16, 80 in 4 bit."""
    cell = make_cell("tiny-qwen3-moe", "qlora", strategy, **LARGE)
    data = cell.model_dump()
    data["model"]["weights"] = CORPUS
    data["model"]["config"] |= {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "moe_intermediate_size": WIDTH,
        "num_experts": EXPERTS,
    }
    data["method"]["quantization"]["compute_dtype"] = "bf16"
    return type(cell).model_validate(data)


@pytest.fixture
def in_project(cache: Path, monkeypatch: Any) -> Path:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("ADAPTBENCH_CACHE", str(cache))
    return cache


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", ["fsdp", "zero3"])
def test_no_rank_ever_holds_the_model(strategy: str, tmp_path: Path, in_project: Path) -> None:
    """Seen: 140 MB of growth on each host, 240 under `single`."""
    trained = train(large(strategy), tmp_path)
    assert trained.record.status is Status.OK, trained.record.reason
    audit = trained.audit
    whole = sum(audit.bytes_by_dtype.values())
    assert all(held < 0.55 * whole for held in audit.bytes_by_rank)
    assert len(audit.load_by_rank) == 2
    for facts in audit.load_by_rank:
        assert facts.held_bytes < 0.55 * whole
        assert facts.unquantized_bytes > LAYERS * LAYER_BYTES == 288 * 2**20
        assert facts.host_peak_bytes and facts.host_peak_bytes < facts.unquantized_bytes // 2
        assert facts.memory_saving is True


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", ["fsdp", "zero3"])
def test_a_written_checkpoint_trains_alike(strategy: str, tmp_path: Path, in_project: Path) -> None:
    """What `bench quantize` wrote, read in parts."""
    from bench.worker import quantize

    cell = make_cell("tiny-qwen3-moe", "qlora", "single")
    assert cell.method.quantization is not None
    # Scales of another kind than other tests': what is written here none of them finds
    other = {"quantization": cell.method.quantization.model_dump() | {"double_quant": False}}
    single = train(make_cell("tiny-qwen3-moe", "qlora", "single", method=other), tmp_path)
    quantize.write(single.cell.model, single.cell.method)
    several = train(make_cell("tiny-qwen3-moe", "qlora", strategy, method=other), tmp_path)
    assert several.record.status is Status.OK, several.record.reason
    # On the fly fsdp stores linear layers in the adapters' dtype; written they are bytes
    assert "uint8" in several.audit.bytes_by_part["attention"]
    expected = [loss for loss, _ in single.curve()]
    assert [loss for loss, _ in several.curve()] == pytest.approx(expected, rel=2e-5)
    assert all(facts.held_bytes < 0.7 * whole(single) for facts in several.audit.load_by_rank)


def whole(single: Trained) -> int:
    return sum(single.audit.bytes_by_dtype.values())
