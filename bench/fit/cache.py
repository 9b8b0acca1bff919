"""Keeps predictions on disk by question: the same step on the same code needs one trace."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bench.fit.request import Decoding, Request, Sharding
from bench.plan import GenerationMemory, Growth, Pace, StepMemory
from bench.record import Record

R = TypeVar("R", bound=Record)

# What a StepMemory depends on; the rest only reads it.
_TRACING = (
    "allocator", "build", "checkpointing", "costs", "depth", "floor", "generation", "gptq_tree",
    "growth", "host", "kernels", "ledger", "lengths", "litgpt_tree", "loss", "memory", "metacache",
    "optim", "patches", "precision", "quantize", "request", "sharding",
    "shards", "simulate", "step", "trace",
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
    """Answers what only tracing can tell; without a folder nothing is kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def memory(self, request: Request) -> StepMemory:
        """Of the request's longest batch."""
        from bench.fit.memory import step_memory

        longest = request.as_long_as_longest()
        return self._kept(StepMemory, longest.digest, lambda: step_memory(longest))

    def growth(self, request: Request, remedies: bool = False) -> Growth:
        """What the request's varying lengths add; the strategy doesn't matter to it."""
        from bench.fit.growth import growth

        one = request.model_copy(update={"sharding": Sharding(), "accumulation": 1})
        name = f"{one.digest}-{'remedies' if remedies else 'growth'}"
        return self._kept(Growth, name, lambda: growth(one, remedies))

    def pace(self, request: Request) -> Pace:
        """Operators at the mean and at the longest of its lengths, whatever the strategy."""
        from bench.fit.growth import pace

        one = request.model_copy(update={"sharding": Sharding(), "accumulation": 1})
        return self._kept(Pace, f"{one.digest}-pace", lambda: pace(one))

    def generation(self, request: Request, decoding: Decoding) -> GenerationMemory:
        from bench.fit.generation import deployed, generation_memory

        key = f"{deployed(request).digest}-{'-'.join(map(str, decoding.model_dump().values()))}"
        return self._kept(GenerationMemory, key, lambda: generation_memory(request, decoding))

    def _kept(self, kind: type[R], name: str, compute: Callable[[], R]) -> R:
        path = None
        if self.folder is not None:
            path = self.folder / code_version() / f"{name}.json"
            if path.exists():
                return kind.model_validate_json(path.read_text())
        found = compute()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(found.model_dump_json())
            temporary.replace(path)
        return found
