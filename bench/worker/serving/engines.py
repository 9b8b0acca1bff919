"""The servers that there are: which one is used, and the command that starts it.

vLLM's command was written from its documentation; no machine with vLLM has run it yet.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.spec import Cell
from bench.worker.serving.variants import MERGED

HOST = "127.0.0.1"
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # those that vLLM takes as a maximum
NEEDS = ("fastapi", "uvicorn", "openai")


@dataclass(frozen=True)
class Command:
    """How a server is started, and the name that requests must use."""

    arguments: list[str]
    model: str
    options: dict[str, Any]


def choose(cell: Cell) -> tuple[str, str]:
    """(engine, its version).  Raises UserError where what it needs isn't installed."""
    assert cell.serve is not None
    engine = cell.serve.engine
    if engine == "auto":
        engine = "vllm" if _there("vllm") else "transformers"
    if engine == "vllm" and not _there("vllm"):
        raise UserError("serve: engine: vllm is not installed: install it, or use transformers")
    missing = [name for name in NEEDS if not _there(name)]
    if missing:
        raise UserError(
            f"serving needs {', '.join(missing)}: run `pip install 'adaptbench[serve]'`"
        )
    return engine, importlib.metadata.version(engine)


def _there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def batches(cell: Cell) -> bool:
    """Whether transformers' server works on several requests at once.

    On a CPU its paged attention takes half a minute to set up and is slower than one by one.
    """
    assert cell.serve is not None
    asked = cell.serve.continuous_batching
    return cell.target.device == "cuda" if asked is None else asked


def transformers(cell: Cell, attempt: Path, variant: str, port: int, facts: Path) -> Command:
    """`bench.worker.serving.server`: transformers' server, our loading."""
    name = f"adaptbench/{cell.method.name}-{variant}"
    continuous = batches(cell)
    arguments = [sys.executable, "-m", "bench.worker.serving.server", str(attempt), variant, name]
    arguments += [str(port), str(facts), "continuous" if continuous else "one-by-one"]
    return Command(arguments, name, {"continuous_batching": continuous})


def vllm(cell: Cell, base: str, trained: Path | None, variant: str, port: int) -> Command:
    """`vllm serve` of the base with the adapter beside it, or of full or merged weights.

    `base`: the folder or hub id of the base, whose tokenizer is used in every case.
    """
    method, budget, target = cell.method, cell.budget, cell.target
    adapter = trained if method.adapter and variant != MERGED else None
    place = base if trained is None or adapter else str(trained)
    name = f"adaptbench/{method.name}-{variant}"
    options: dict[str, Any] = {
        "dtype": DTYPES[(method.autocast if method.trains else None) or method.dtype],
        "max-model-len": budget.max_length + budget.max_new_tokens,
        "tensor-parallel-size": target.devices,
        "tokenizer": base,
    }
    revision = getattr(cell.model.weights, "revision", None)
    if revision and place == base:
        options["revision"] = revision
    if method.quantization and variant != MERGED:
        options["quantization"] = "bitsandbytes"
    flags = ["--no-enable-prefix-caching"]  # rows are asked more than once
    if adapter:
        assert method.adapter is not None
        rank = method.adapter.rank
        options["max-lora-rank"] = next((r for r in LORA_RANKS if r >= rank), rank)
        flags += ["--enable-lora", "--lora-modules", f"{name}={adapter}"]
    else:
        options["served-model-name"] = name
    told = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "bench.worker.serving.guard", "vllm", "serve", place, *told]
    command += ["--host", HOST, "--port", str(port), *flags]
    shown = {key: value for key, value in options.items() if key != "tokenizer"}
    return Command(command, name, shown | {"prefix_caching": False})
