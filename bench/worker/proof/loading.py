"""Host memory while weights were loaded: was the whole model ever there unquantised?

Only anonymous pages count: mapped checkpoint files are page cache, which the kernel takes back.
It keeps no high-water mark of them, so a thread samples.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bench.record import LoadFacts
from bench.worker.proof.weights import full_bytes, tensor_bytes
from bench.worker.shards import held_bytes, local

SAMPLE_S = 0.005
STATUS = "/proc/self/status"
# Below this, what the libraries allocate themselves is as large as what loading saves.
JUDGED_FROM_BYTES = 64 * 2**20


class HostPeak:
    """`growth_bytes`: the most that anonymous memory grew in the block; None where unknown."""

    growth_bytes: int | None = None


@contextmanager
def host_peak() -> Iterator[HostPeak]:
    peak = HostPeak()
    before = anonymous_bytes()
    if before is None:
        yield peak
        return
    highest = [before]
    done = threading.Event()
    sampler = threading.Thread(target=_sample, args=(done, highest), daemon=True)
    sampler.start()
    try:
        yield peak
    finally:
        done.set()
        sampler.join()
        peak.growth_bytes = max(highest[0], anonymous_bytes() or 0) - before


def _sample(done: threading.Event, highest: list[int]) -> None:
    while not done.wait(SAMPLE_S):
        highest[0] = max(highest[0], anonymous_bytes() or 0)


def anonymous_bytes() -> int | None:
    """Resident anonymous memory of this process (Linux), else None."""
    try:
        with open(STATUS, encoding="ascii") as file:
            for line in file:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    return None


def facts(model: Any, dtype: torch.dtype, peak: HostPeak) -> LoadFacts:
    """How the peak compares with what is held and with the model unquantised in `dtype`.

    Memory-saving: less than half of the unquantised model beyond what stays on the host.
    """
    held, full = held_bytes(model), full_bytes(model, dtype)
    on_host = sum(tensor_bytes(p) for p in map(local, model.parameters()) if p.device.type == "cpu")
    growth = peak.growth_bytes
    judged = growth is not None and full >= JUDGED_FROM_BYTES
    return LoadFacts(
        host_peak_bytes=growth,
        held_bytes=held,
        host_held_bytes=on_host,
        unquantized_bytes=full,
        memory_saving=growth < on_host + full // 2 if judged and growth is not None else None,
    )
