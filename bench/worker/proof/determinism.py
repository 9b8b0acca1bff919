"""Which operations of the first optimizer step torch itself calls non-deterministic.

Two runs of a cell can part by those, whatever the seed.  Asking torch makes it take deterministic
kernels where it has them, so only a step that isn't on the clock is asked (a warm-up step); its
peak may hold what they need.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch

_MEMORY: Any = torch.utils.deterministic  # a module with a property, which mypy can't see
_TOLD = re.compile(
    r"(?P<op>\S.*?) (?:does not have a deterministic implementation"
    r"|defaults to a non-deterministic algorithm)"
)
_CUBLAS = re.compile(r"Deterministic behavior was enabled.*CuBLAS", re.DOTALL)


class Nondeterminism:
    """`ops` after `end`: names as torch gives them; None where nothing was asked."""

    def __init__(self, watch: bool) -> None:
        self.watch = watch
        self.ops: list[str] | None = None
        self._seen: set[str] = set()

    def begin(self) -> None:
        if not self.watch:
            return
        self._before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            _MEMORY.fill_uninitialized_memory,
        )
        torch.use_deterministic_algorithms(True, warn_only=True)
        _MEMORY.fill_uninitialized_memory = False  # costs time, names nothing
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.filterwarnings("always", message=r"(?i).*determinis")
        self._show = warnings.showwarning
        warnings.showwarning = self._note

    def _note(self, message: Any, *place: Any, **more: Any) -> None:
        name = named(str(message))
        if name is None:
            self._show(message, *place, **more)
        else:
            self._seen.add(name)

    def end(self) -> None:
        if not self.watch:
            return
        self._warnings.__exit__(None, None, None)
        enabled, warn_only, fill = self._before
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        _MEMORY.fill_uninitialized_memory = fill
        self.ops = sorted(self._seen)


def named(message: str) -> str | None:
    """The operation that a warning of torch is about; None of any other warning."""
    if _CUBLAS.search(message):
        return "cuBLAS without a fixed workspace"
    found = _TOLD.match(message)
    return found["op"] if found else None
