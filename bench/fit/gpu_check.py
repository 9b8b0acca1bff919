"""Real steps at real shapes on this machine's GPU, measured beside the predictions.

    make gpu-check

Each rung is a process: it builds the model with random weights on the GPU and runs the very loop
that predictions trace, so what differs is what a trace can't see: kernels' workspaces, the
allocator, the context.  Whether the loop is the worker's is another question, which runs of a
suite answer (`bench calibrate`, the report).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from bench.document import read_yaml
from bench.errors import UserError
from bench.fit.cache import Cache
from bench.fit.memory import costs_of
from bench.fit.request import Adapter, Quantization, Request
from bench.fit.steptime import Weights, find_gpu, gpu_of, step_time
from bench.plan import GIB
from bench.record import Record

Row = dict[str, Any]
STEPS = 3
NO_GPU = 3
LORA = Adapter(rank=16, dtype="bf16", worker_targets=True, exclude_modules=("gate",))
EIGHT = Quantization(bits=8)


def ladder(suites: Path) -> Iterator[tuple[str, Request]]:
    """(name, what runs), from light to heavy."""

    def rung(model: str, method: str, **changes: Any) -> Request:
        config = read_yaml(suites / "models" / f"{model}.yaml").data["config"]
        fields: Row = {
            "config": config,
            "method": method,
            "adapter": None if method == "full" else LORA,
            "quantization": Quantization() if method == "qlora" else None,
            "optimizer": "adamw_fused",
            "keeps_outputs": False,
            "frees_gradients_at_once": True,
            "seq_len": 1024,
            "padded": True,
        }
        return Request(**{**fields, **changes})

    seven, eight, mixture = "llama-2-7b", "llama-3.1-8b", "qwen3-30b-a3b"
    for length in (1024, 4096):
        for checkpointing in ("full", "none"):
            for method in ("qlora", "lora"):
                name = f"{seven} {method} {length} checkpointing {checkpointing}"
                yield name, rung(seven, method, seq_len=length, checkpointing=checkpointing)
    packed: Row = {"padded": False, "attention": "flash_attention_2"}
    yield f"{seven} lora 4096 packed", rung(seven, "lora", seq_len=4096, **packed)
    yield f"{seven} 8-bit base 1024", rung(seven, "qlora", quantization=EIGHT)
    yield f"{eight} qlora 2048 (GQA)", rung(eight, "qlora", seq_len=2048)
    yield f"{eight} lora 2048 packed (GQA)", rung(eight, "lora", seq_len=2048, **packed)
    yield f"{seven} full 1024 adamw_8bit", rung(seven, "full", optimizer="adamw_8bit")
    yield f"{seven} full 1024", rung(seven, "full")
    yield f"{seven} full 1024 adamw", rung(seven, "full", optimizer="adamw")
    yield f"{mixture} lora 1024 (MoE)", rung(mixture, "lora")


class Rung(Record):
    """One rung as predicted and as measured; a line of the file that `bench calibrate` reads."""

    name: str
    gpu: str
    torch: str
    outcome: str = "ok"
    predicted_allocated_bytes: int
    predicted_reserved_bytes: int
    predicted_step_s: float | None = Field(None, description="None: the GPU is not in gpus.yaml.")
    measured_allocated_bytes: int | None = None
    measured_reserved_bytes: int | None = None
    measured_device_bytes: int | None = Field(None, description="What the driver shows.")
    measured_step_s: float | None = Field(None, description="Of the last step.")


def check(suites: Path, out: Path) -> int:
    """Run what fits on this GPU; a row a rung in `out`.  Exit code 3 without a GPU."""
    import torch

    if not torch.cuda.is_available():
        print("gpu-check needs a CUDA GPU, and torch sees none here: nothing was run")
        return NO_GPU
    rungs = []
    for name, request in ladder(suites):
        rungs.append(_rung(name, request))
        print(_line(rungs[-1]), flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("".join(rung.model_dump_json() + "\n" for rung in rungs))
    return 0


def _rung(name: str, request: Request) -> Rung:
    """Predict, then measure in a process of its own: its memory is gone when it ends."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    capability = properties.major + properties.minor / 10
    request = request.model_copy(
        update={"compute_capability": capability, "sms": properties.multi_processor_count}
    )
    rung = _predicted(name, request, properties.name, torch.__version__)
    if rung.predicted_allocated_bytes > properties.total_memory:
        return rung.model_copy(update={"outcome": "not run: predicted not to fit"})
    command = [sys.executable, "-m", "bench.fit", "gpu-rung"]
    done = subprocess.run(
        command, input=request.model_dump_json(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        kind = "out of memory" if "OutOfMemoryError" in done.stderr else "failed"
        return rung.model_copy(update={"outcome": f"{kind}: {said[-1][:200]}"})
    return rung.model_copy(update=json.loads(done.stdout.splitlines()[-1]))


def _predicted(name: str, request: Request, gpu: str, version: str) -> Rung:
    memory = Cache().memory(request)
    facts = find_gpu(gpu)
    seconds = None
    if facts is not None:
        weights = Weights(memory.held_bytes, memory.trained_bytes)
        seconds = step_time(request, costs_of(memory), weights, gpu_of(facts)).step_s
    return Rung(
        name=name,
        gpu=gpu,
        torch=version,
        predicted_allocated_bytes=memory.allocated_bytes,
        predicted_reserved_bytes=memory.reserved_bytes,
        predicted_step_s=seconds,
    )


class _Clock:
    """A tracer's interface that counts nothing, as the real allocator does; it times the steps."""

    host_bytes = 0

    def __init__(self) -> None:
        self.began: list[float] = []

    def mark_step(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.began.append(time.perf_counter())

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None

    @contextlib.contextmanager
    def new_tensors_are(self, *_: Any, **__: Any) -> Iterator[None]:
        yield


def measure(request: Request) -> Row:
    """Peaks and seconds of this process on the first GPU.  Raises UserError without one."""
    import torch

    from bench.fit import step
    from bench.fit.build import build
    from bench.worker.recorder import driver_bytes

    if not torch.cuda.is_available():
        raise UserError("torch sees no GPU")
    clock: Any = _Clock()
    model = build(request, device="cuda")
    placement = step.Placement(model, request, clock)
    step.run(model, request, clock, placement, contextlib.nullcontext(), steps=STEPS)
    clock.mark_step()
    return {
        "measured_allocated_bytes": torch.cuda.max_memory_allocated(),
        "measured_reserved_bytes": torch.cuda.max_memory_reserved(),
        "measured_device_bytes": driver_bytes(),
        "measured_step_s": clock.began[-1] - clock.began[-2],
    }


def _line(rung: Rung) -> str:
    parts = [
        _compared("allocated", rung.predicted_allocated_bytes, rung.measured_allocated_bytes, GIB),
        _compared("reserved", rung.predicted_reserved_bytes, rung.measured_reserved_bytes, GIB),
        _compared("seconds", rung.predicted_step_s, rung.measured_step_s, 1),
    ]
    return f"{rung.name:48} {', '.join(parts)}; {rung.outcome}"


def _compared(what: str, predicted: float | None, measured: float | None, unit: int) -> str:
    if predicted is None or measured is None:
        known = "unknown" if predicted is None else f"{predicted / unit:.2f} predicted"
        return f"{what} {known}"
    error = predicted / measured - 1
    return f"{what} {predicted / unit:.2f} / {measured / unit:.2f} ({error:+.1%})"
