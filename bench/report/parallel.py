"""Work that is many independent pieces, over forked processes: a report of thousands of cells.

Forked, so that what the pieces read needn't be sent; what they return must be picklable.  The order
and the results are those of a plain loop, which is what runs for little work or where there is no
fork (Windows).
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")

# What the forked processes inherit; empty outside of `mapped`.
_work: list[tuple[Callable[[Any], Any], Sequence[Any]]] = []


def mapped(function: Callable[[A], B], items: Sequence[A], least: int = 64) -> list[B]:
    """[function(item) for item in items]; in processes where there are `least` items or more."""
    workers = _cores()
    forks = "fork" in multiprocessing.get_all_start_methods()
    if len(items) < least or workers < 2 or not forks or _work:
        return [function(item) for item in items]
    _work.append((function, items))
    try:
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            size = max(1, len(items) // (8 * workers))
            return pool.map(_piece, range(len(items)), chunksize=size)
    finally:
        _work.clear()


def _piece(index: int) -> Any:
    ((function, items),) = _work
    return function(items[index])


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
