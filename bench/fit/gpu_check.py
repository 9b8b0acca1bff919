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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.document import read_yaml
from bench.errors import UserError
from bench.fit.request import Adapter, Quantization, Request
from bench.plan import GIB

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


def check(suites: Path, out: Path) -> int:
    """Run what fits on this GPU; a row a rung in `out`.  Exit code 3 without a GPU."""
    import torch

    if not torch.cuda.is_available():
        print("gpu-check needs a CUDA GPU, and torch sees none here: nothing was run")
        return NO_GPU
    rows = []
    for name, request in ladder(suites):
        rows.append(_rung(name, request))
        print(_line(rows[-1]), flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 0


def _rung(name: str, request: Request) -> Row:
    """Predict, then measure in a process of its own: its memory is gone when it ends."""
    import torch

    from bench.fit.cache import Cache

    properties = torch.cuda.get_device_properties(0)
    capability = properties.major + properties.minor / 10
    request = request.model_copy(
        update={"compute_capability": capability, "sms": properties.multi_processor_count}
    )
    memory = Cache().memory(request)
    row: Row = {
        "name": name,
        "gpu": properties.name,
        "torch": torch.__version__,
        "predicted_allocated_bytes": memory.allocated_bytes,
        "predicted_reserved_bytes": memory.reserved_bytes,
    }
    if memory.allocated_bytes > properties.total_memory:
        return {**row, "outcome": "not run: predicted not to fit"}
    command = [sys.executable, "-m", "bench.fit", "gpu-rung"]
    done = subprocess.run(
        command, input=request.model_dump_json(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        kind = "out of memory" if "OutOfMemoryError" in done.stderr else "failed"
        return {**row, "outcome": f"{kind}: {said[-1][:200]}"}
    return {**row, "outcome": "ok", **json.loads(done.stdout.splitlines()[-1])}


class _Silent:
    """A tracer's interface that counts nothing: the real allocator does."""

    host_bytes = 0

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None

    @contextlib.contextmanager
    def new_tensors_are(self, *_: Any, **__: Any) -> Iterator[None]:
        yield


def measure(request: Request) -> Row:
    """Peaks of this process on the first GPU.  Raises UserError without one."""
    import torch

    from bench.fit import step
    from bench.fit.build import build

    if not torch.cuda.is_available():
        raise UserError("torch sees no GPU")
    tracer: Any = _Silent()
    before, _ = torch.cuda.mem_get_info()
    model = build(request, device="cuda")
    placement = step.Placement(model, request, tracer)
    step.run(model, request, tracer, placement, contextlib.nullcontext(), steps=STEPS)
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    return {
        "measured_allocated_bytes": torch.cuda.max_memory_allocated(),
        "measured_reserved_bytes": torch.cuda.max_memory_reserved(),
        "device_growth_bytes": before - free,
    }


def _line(row: Row) -> str:
    def part(kind: str) -> str:
        predicted = row[f"predicted_{kind}_bytes"]
        measured = row.get(f"measured_{kind}_bytes")
        if measured is None:
            return f"{kind} {predicted / GIB:.2f} predicted"
        error = predicted / measured - 1
        return f"{kind} {predicted / GIB:.2f} / {measured / GIB:.2f} GiB ({error:+.1%})"

    return f"{row['name']:48} {part('allocated')}, {part('reserved')}; {row['outcome']}"
