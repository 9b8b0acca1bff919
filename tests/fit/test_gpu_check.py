"""The ladder of make gpu-check.  Its measuring half needs a GPU and is not tested here."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from bench.fit import gpu_check
from bench.fit.__main__ import main
from bench.fit.request import Request

from ..conftest import ROOT


def test_the_ladder_has_every_kind_of_rung() -> None:
    rungs = dict(gpu_check.ladder(ROOT / "suites"))
    requests = list(rungs.values())
    assert {"full", "lora", "qlora"} == {one.method for one in requests}
    assert {"full", "none"} == {one.checkpointing for one in requests}
    assert len({one.seq_len for one in requests}) > 1
    assert {True, False} == {one.padded for one in requests}
    assert any(one.optimizer == "adamw_8bit" for one in requests)
    assert any(one.quantization and one.quantization.bits == 8 for one in requests)
    assert any(one.config.get("num_experts", 0) > 1 for one in requests)


def test_a_rung_is_predicted_and_says_what_was_measured() -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512,
              "num_attention_heads": 4, "intermediate_size": 128}  # fmt: skip
    request = Request(config=config, attention="eager", seq_len=64)
    rung = gpu_check._predicted("tiny", request, "NVIDIA H200", "2.13.0")
    assert rung.predicted_step_s and rung.predicted_reserved_bytes >= rung.predicted_allocated_bytes
    assert gpu_check._predicted("tiny", request, "unknown", "2.13.0").predicted_step_s is None
    measured = {"measured_allocated_bytes": 2 * rung.predicted_allocated_bytes}
    assert "(-50.0%)" in gpu_check._line(rung.model_copy(update=measured))


def test_without_a_gpu_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "rows.jsonl"
    assert main(["gpu-check", "--suites", str(ROOT / "suites"), "--out", str(out)]) == 3
    assert capsys.readouterr().out.count("\n") == 1 and not out.exists()
