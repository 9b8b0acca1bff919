"""One phase of one attempt, in this process:  python -m bench.worker train ATTEMPT_FOLDER

The worker only appends to events.jsonl (and predictions.jsonl, audit.json, log.txt); the runner,
which outlives it, turns that into the phase's record.  Exit code 0 means that a `phase_end` event
was written, whatever its status.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.record import Status
from bench.spec import Cell
from bench.store import read_record

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    phase, attempt = argv[0], Path(argv[1])
    die_with_parent()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Strategy `auto` is resolved for each attempt, in a copy of its own
    resolved = read_record(Cell, attempt / "cell.json")
    cell = resolved or read_record(Cell, attempt.parent / "cell.json")
    assert cell is not None, f"{attempt.parent} holds no cell.json"
    if cell.target.device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed looks for compilers
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the runner asks a hung rank where
    from bench.worker import ranks
    from bench.worker.recorder import Recorder

    recorder = Recorder(attempt, phase)
    with recorder.stage("import"):
        run = _phase(phase, cell)
    lost_peer = False
    try:
        status, reason, facts = run(cell, attempt, recorder)
    except Exception as error:
        traceback.print_exc()
        status, reason, facts = *classify(error), {}
        lost_peer = ranks.lost_peer(error)
    recorder.end(status, reason, facts, lost_peer=lost_peer)
    if ranks.world() > 1:
        _leave()
    return 0


def _leave() -> None:
    """End without torch's own farewell: after a failure it would wait for ranks that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _phase(name: str, cell: Cell) -> Callable[..., Any]:
    if not cell.method.needs_model:
        from bench.worker import trivial

        return trivial.generate
    if cell.model.endpoint:
        from bench.worker import endpoint

        return endpoint.generate
    if name == "train":
        from bench.worker.train import train

        return train
    if name == "serve":
        from bench.worker.serve import serve

        return serve
    from bench.worker.generate import generate

    return generate


def classify(error: BaseException) -> tuple[Status, str]:
    """What an exception says about the cell.

    CPU allocation failures carry no type of their own: torch raises RuntimeError with this text,
    numpy a MemoryError subclass, Python MemoryError.
    """
    from bench.errors import UserError

    text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
    if isinstance(error, UserError):
        return Status.ERROR, str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return Status.OOM_HOST, text
    if "torch" in sys.modules:  # else none of its errors can have been raised
        return _classify_torch(error, text)
    return Status.ERROR, text


def _classify_torch(error: BaseException, text: str) -> tuple[Status, str]:
    import torch

    from bench.worker.meter import Diverged
    from bench.worker.strategies import Unsupported

    if isinstance(error, torch.OutOfMemoryError):
        return Status.OOM_GPU, text
    if isinstance(error, Unsupported):
        return Status.SKIPPED, str(error)
    if isinstance(error, Diverged):
        return Status.DIVERGED, str(error)
    return Status.ERROR, text


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the runner dies, however it dies (Linux)."""
    parent = os.environ.get("BENCH_PARENT_PID")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != int(parent):
        sys.exit("the runner is gone")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
