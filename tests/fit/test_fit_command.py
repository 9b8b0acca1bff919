"""`bench fit`: what it prints, and every bad input as one line with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from bench.fit import one
from bench.fit.__main__ import main
from bench.fit.build import CannotBuild, build
from bench.fit.request import Adapter, Request

from ..conftest import ROOT, bench

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def fit(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["fit", *arguments, "--json"]) == 0
    row: dict[str, Any] = json.loads(capsys.readouterr().out)[0]
    return row


def test_parts_add_up_to_what_the_driver_shows(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = fit(capsys, str(config), "--method=full", "--gpu=a100-40gb", "--seq-len=16")
    assert sum(row["parts"].values()) == row["plan"]["device_bytes"]
    assert {"weights", "gradients, backward", "optimizer", "allocator slack", "CUDA context"} <= {
        *row["parts"]
    }
    assert row["target"] == "1xa100-40gb" and row["usd_per_million_tokens"] is None
    shown = one.text([row], detailed=True)
    assert "steady/backward" in shown and "CUDA context" in shown


def test_options_reach_the_prediction(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ("--gpu=l40s-48gb", "--seq-len=256")

    def memory(*more: str) -> dict[str, Any]:
        found: dict[str, Any] = fit(capsys, str(config), *base, *more)["plan"]["memory"]
        return found

    plain = memory()
    assert memory("--rank=32")["trainable"] == 2 * plain["trainable"]
    assert memory("--target-modules=q_proj,v_proj")["trainable"] < plain["trainable"]
    assert memory("--bits=8")["held_bytes"] > plain["held_bytes"]
    assert memory("--adapter-dtype=bf16")["trained_bytes"] == plain["trained_bytes"] // 2
    single = memory("--no-double-quant")["breakdown"]["weights"]
    assert single > plain["breakdown"]["weights"]
    assert memory("--packed")["phases"] != plain["phases"]
    assert memory("--attention=eager")["allocated_bytes"] > plain["allocated_bytes"]


def test_sharded_with_a_global_batch(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = fit(
        capsys, str(config), "--method=full", "--gpu=h100-80gb", "--gpus=4",
        "--strategy=zero3+offload", "--global-batch=16", "--seq-len=128", "--host-ram=200",
    )  # fmt: skip
    assert row["plan"]["strategy"] == "zero3+offload"
    assert row["plan"]["time"]["tokens"] == 16 * 128


BAD = [
    (("{config}", "--gpu=rtx9999-1gb"), "unknown GPU rtx9999-1gb"),
    (("{config}", "--gpu=a100"), "say its memory too"),
    (("{config}", "--gpu=l40s-48gb", "--gpus=0"), "--gpus 0: at least 1"),
    (("{config}", "--gpu=l40s-48gb", "--target=1xl40s-48gb"), "one of them"),
    (("{config}", "--gpus=4"), "go with --gpu"),
    (("{config}", "--target=cpu"), "has no GPU"),
    (("{config}", "--target=4xh100"), "Did you mean 4xh100-80gb?"),
    (("llama-2-7", "--gpu=l40s-48gb"), "Did you mean llama-2-7b?"),
    (("missing/config.json", "--gpu=l40s-48gb"), "No such file"),
    (("{broken}", "--gpu=l40s-48gb"), "not a JSON file"),
    (("{odd}", "--gpu=l40s-48gb"), "config of no-such-model"),
    (("{untyped}", "--gpu=l40s-48gb"), "no `model_type`"),
    (("{config}", "--gpu=l40s-48gb", "--seq-len=4096"), "has 2048 positions"),
    (("{config}", "--gpu=l40s-48gb", "--seq-len=0"), "at least 2 tokens"),
    (("{config}", "--gpu=l40s-48gb", "--micro-batch=3", "--global-batch=16"), "does not divide"),
    (("{config}", "--gpu=l40s-48gb", "--micro-batch=many"), "a number from 1 on, or max"),
    (("{config}", "--gpu=l40s-48gb", "--strategy=zero9"), "unknown strategy zero9"),
    (("{config}", "--gpu=l40s-48gb", "--strategy=ddp+offload"), "only fsdp, zero2 and zero3"),
    (("{config}", "--gpu=l40s-48gb", "--method=full", "--rank=8"), "has no adapter"),
    (("{config}", "--gpu=l40s-48gb", "--method=lora", "--bits=4"), "has no quantization"),
    (("{config}", "--gpu=l40s-48gb", "--bits=8", "--double-quant"), "a scale a row"),
    (("{config}", "--gpu=l40s-48gb", "--bits=3"), "quantization.bits"),
    (("{config}", "--gpu=l40s-48gb", "--optimizer=adam"), "optimizer"),
    (("{config}", "--gpu=l40s-48gb", "--target-modules=no_proj"), "no_proj"),
    (("{config}", "--gpu=l40s-48gb", "--method=base"), "trains nothing"),
    (("{config}", "--gpu=v100-32gb"), "no hardware for"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=lambda part: " ".join(part)[:40])
def test_bad_input_is_one_line(
    arguments: tuple[str, ...],
    said: str,
    config: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {"config": config}
    for name, text in (
        ("broken", "{"),
        ("odd", json.dumps({**CONFIG, "model_type": "no-such-model"})),
        ("untyped", "{}"),
    ):
        files[name] = config.parent / f"{name}.json"
        files[name].write_text(text)
    assert main(["fit", *(part.format(**files) for part in arguments)]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and "Traceback" not in err


def test_adapters_that_need_data_are_named() -> None:
    boft = Adapter(kind="BOFT", target_modules=("q_proj",), options={"boft_block_size": 4})
    with pytest.raises(CannotBuild, match="BOFT needs real data"):
        build(Request(config=CONFIG, method="lora", adapter=boft, seq_len=64))


def test_the_command_passes_its_options_on(config: Path) -> None:
    done = bench("fit", str(config), "--gpu", "l40s-48gb", "--bits", "3", "--no-double-quant")
    assert done.returncode == 2 and "quantization.bits" in done.stderr
