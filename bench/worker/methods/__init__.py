"""How weights adapt: one file a kind.  The contract of each file:

load_arguments(method) -> dict      what from_pretrained gets beside dtype and attention
adapt(model, method) -> model       make the right weights trainable (adapters, freezing)
save(model, folder, state) -> None  write what training changed, as safetensors; `state` holds it
                                    whole where the model is sharded
load_trained(model, folder) -> model    put that back onto a freshly loaded base, as a user would
problems(model, method) -> list[str]    why this model is not what the method's name says

A method without a model (majority, copy) has instead:

answerer(dataset, train) -> (Row -> str)    what it answers to a test row

A method that changes every weight sets REPLACES_BASE: its folder is loaded instead of the base.
"""

from __future__ import annotations

import importlib
from typing import Any


def module(kind: str) -> Any:
    """The file that does `kind` (bench/suite.py has checked that it exists)."""
    return importlib.import_module(f"bench.worker.methods.{kind}")
