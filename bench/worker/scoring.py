"""Answers to validation rows during training, off its clock: how a score converges.

Opt-in (`budget: {score_rows: …}`), as answers take far longer than a loss.  The answers are kept,
so that any metric can be computed afterwards.  What is trained must not change by it: nothing here
draws a random number, and the model is left as it was.

    python -m pytest tests/run/test_convergence.py
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bench.record import ScoredEvent, ValidationAnswer
from bench.spec import Cell
from bench.store import append_line
from bench.worker import data
from bench.worker.generate import Answering
from bench.worker.meter import Meter
from bench.worker.recorder import Recorder, cuda, synchronize

FILE = "validation.jsonl"


class Scoring:
    """A fixed sample of validation rows, and how to answer them."""

    def __init__(self, cell: Cell, tokenizer: Any, recorder: Recorder, meter: Meter) -> None:
        self.cell = cell
        self.tokenizer = copy.deepcopy(tokenizer)
        self.tokenizer.padding_side = "left"
        self.recorder = recorder
        self.meter = meter
        self.rows = data.rows(cell.dataset, "validation", cell.budget.score_rows)

    def run(self, model: Any) -> None:
        """Answer all rows with the model as it is now; write the answers and their event."""
        work = Answering(self.cell, model, self.tokenizer)
        with self.recorder.stage("generate"), _as_deployed(model, work.settings):
            started = time.perf_counter()
            answers = list(self._answers(work))
            synchronize()
            seconds = time.perf_counter() - started
            if device := cuda():
                device.empty_cache()  # else the caches' blocks would count as the training's
        for answer in answers:
            append_line(self.recorder.attempt / FILE, answer)
        self.recorder.emit(
            ScoredEvent(
                t=time.time(),
                step=self.meter.step,
                seconds=seconds,
                train_s=self.meter.train_s,
                tokens=self.meter.totals["tokens"],
                rows=len(answers),
                new_tokens=sum(answer.new_tokens for answer in answers),
            )
        )

    def _answers(self, work: Answering) -> Iterator[ValidationAnswer]:
        prompts = work.prompts(self.rows)
        todo = sorted(self.rows, key=lambda row: len(prompts[row.id]), reverse=True)
        size = self.cell.budget.generate_batch
        for start in range(0, len(todo), size):
            batch = todo[start : start + size]
            answers = work.answer([prompts[row.id] for row in batch])
            for found in work.predictions(batch, prompts, answers):
                yield ValidationAnswer(**found.model_dump(), step=self.meter.step)


@contextmanager
def _as_deployed(model: Any, settings: Any) -> Iterator[None]:
    """Evaluation mode, and the greedy settings alone: shipped sampling settings would leak in.

    no_grad, not inference_mode: what a forward keeps for later (rotary tables, casts) must serve
    the next training step too.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    shipped = inner.generation_config
    model.eval()
    _set(model, inner, settings)
    try:
        with torch.no_grad():
            yield
    finally:
        _set(model, inner, shipped)
        model.train()


def _set(model: Any, inner: Any, settings: Any) -> None:
    """On an adapter's wrapper too: it hands its own on."""
    for one in (model, inner):
        one.generation_config = settings
