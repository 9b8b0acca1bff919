"""Keeps predictions on disk by question: the same step on the same code needs one trace."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from pathlib import Path

from bench.fit.request import Request
from bench.plan import StepMemory

# What a StepMemory depends on; the rest only reads it.
_TRACING = (
    "allocator", "build", "checkpointing", "costs", "gptq_tree", "host", "kernels", "lengths",
    "litgpt_tree", "loss", "memory", "metacache", "optim", "patches", "precision", "quantize",
    "request", "sharding", "shards", "simulate", "step", "trace",
)  # fmt: skip
_PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "trl")


@functools.cache
def code_version() -> str:
    """Changes with this package's code and with the libraries that it runs."""
    digest = hashlib.sha256()
    for name in _TRACING:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    for package in _PACKAGES:
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()[:12]


class Cache:
    """`memory(request)`; without a folder nothing is kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def memory(self, request: Request) -> StepMemory:
        path = None
        if self.folder is not None:
            path = self.folder / code_version() / f"{request.digest}.json"
            if path.exists():
                return StepMemory.model_validate_json(path.read_text())
        from bench.fit.memory import step_memory

        found = step_memory(request)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            temporary.write_text(found.model_dump_json())
            temporary.replace(path)
        return found
