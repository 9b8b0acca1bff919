"""The plan of a cell against what the worker's own training of that cell really allocates.

`tests/fit/test_truth.py` compares the traced loop with itself on a real allocator.  Here the real
side is the train phase's own trainer: TRL's, with its collator, loss, optimizer and checkpointing.
The oracle is torch's profiler of the CPU allocator.  Counted: weights, adapters and everything that
is allocated in two updates of two micro-batches.
"""

from __future__ import annotations

import contextlib
import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from bench import store  # noqa: E402
from bench.fit import kernels, step  # noqa: E402
from bench.fit.build import build  # noqa: E402
from bench.fit.cell import request_of_cell  # noqa: E402
from bench.fit.patches import meta_behaves_like_cuda  # noqa: E402
from bench.fit.quantize import quant_state_tensors  # noqa: E402
from bench.fit.trace import Tracer  # noqa: E402
from bench.spec import Cell  # noqa: E402
from bench.worker import load  # noqa: E402
from bench.worker import train as training  # noqa: E402
from bench.worker.recorder import Recorder  # noqa: E402

from ..conftest import ROOT  # noqa: E402
from ..run.ranks import make_cell  # noqa: E402
from ..worker.conftest import changed  # noqa: E402

LENGTH = 160  # tokens of each example
CORPUS = {"kind": "random", "corpus": "data/support-desk/train.jsonl", "vocab_size": 1024}
WIDE: dict[str, dict[str, Any]] = {
    "tiny-llama": {"hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6,
                   "num_key_value_heads": 3, "head_dim": 64},
    "tiny-qwen3-moe": {},
}  # fmt: skip


def cell_of(model: str, method: str, checkpointing: bool) -> Cell:
    """A cell of smoke, wider, with random weights; eager attention is the same on any device."""
    found = make_cell(
        model,
        method,
        "single",
        budget={"max_steps": 2, "micro_batch": 4, "global_batch": 8, "evaluate_every": 50,
                "max_train_rows": 16, "max_length": 256},
        method={"gradient_checkpointing": checkpointing, "attention": "eager"},
    )  # fmt: skip
    config = {**found.model.config, **WIDE[model]}
    return changed(found, model={"config": config, "weights": CORPUS})


def predicted_bytes(cell: Cell) -> int:
    """Peak allocated on meta, byte-exact, without the CUDA-only workspace of cuBLAS.

    TRL's fused head works in place in a Triton kernel on GPUs; on a CPU its torch stand-in
    allocates, here and there: the context leaves it in place.
    """
    wanted = request_of_cell(cell).as_long_as_longest()
    wanted = wanted.model_copy(update={"evaluates": False, "seq_len": LENGTH})
    model = build(wanted)
    tracer = Tracer(None, granularity=1)
    with meta_behaves_like_cuda(), tracer:
        placement = step.Placement(model, wanted, tracer)
        step.run(model, wanted, tracer, placement, contextlib.nullcontext())
    return tracer.peak.allocated - kernels.blas_workspace_bytes(wanted.compute_capability)


def measured_bytes(cell: Cell, attempt: Path) -> int:
    from torch.profiler import ProfilerActivity, profile

    tokenizer = load.tokenizer(cell.model)
    tokenizer.padding_side = "right"
    examples = training._Examples(cell, tokenizer)
    # As long as each other and learnt whole: TRL computes no loss where there is no label
    for index, one in enumerate(examples.train):
        ids = (one.input_ids * 4)[:LENGTH]
        examples.train[index] = replace(one, input_ids=ids, labels=ids)
    model = training._model(cell)
    recorder = Recorder(attempt, "train")
    trainer = training.RecordingTrainer(cell, model, tokenizer, examples, recorder)
    trainer.auditor.before()
    held = [*trainer.model.parameters(), *trainer.model.buffers()]
    held += quant_state_tensors(trainer.model)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        trainer.train()
    current = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    return sum(storages.values()) + peak


@pytest.mark.parametrize(
    ("model", "method", "checkpointing"),
    [
        ("tiny-llama", "full", False),
        ("tiny-llama", "full", True),
        ("tiny-llama", "lora", False),
        ("tiny-llama", "lora", True),
        ("tiny-llama", "qlora", False),
        ("tiny-llama", "qlora", True),
        ("tiny-qwen3-moe", "lora", True),
    ],
)
def test_the_workers_training_takes_what_its_plan_says(
    model: str,
    method: str,
    checkpointing: bool,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("ADAPTBENCH_CACHE", str(cache))
    cell = cell_of(model, method, checkpointing)
    folder = store.cell_folder(tmp_path, cell)
    store.write_json(folder / "cell.json", cell)
    measured = measured_bytes(cell, store.new_attempt(folder))
    assert predicted_bytes(cell) == pytest.approx(measured, rel=0.01)
