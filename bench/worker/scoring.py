"""Answers to validation rows during training, off its clock: how a score converges.

Opt-in (`budget: {score_rows: …}`), as answers take far longer than a loss.  The answers are kept,
so that any metric can be computed afterwards.  What is trained must not change by it: nothing here
draws a random number, and the model is left as it was.  Several ranks share the rows; where the
weights are sharded they write their tokens in step.

    python -m pytest tests/run/test_convergence.py
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from bench.record import ScoredEvent, ValidationAnswer
from bench.spec import Cell
from bench.store import append_line
from bench.worker import data, ranks, shards
from bench.worker.generate import Answering
from bench.worker.load import torch_dtype
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
        """Answer all rows with the model as it is now; write the answers and their event.

        `model`: not the strategy's wrapper around it, which only knows a forward.
        """
        work = Answering(self.cell, model, self.tokenizer)
        with self.recorder.stage("generate"), _as_deployed(model, self.cell, work.settings):
            started = time.perf_counter()
            answers = self._answers(work, _answers_together(model))
            synchronize()
            seconds = time.perf_counter() - started
            if device := cuda():
                device.empty_cache()  # else the caches' blocks would count as the training's
        if ranks.rank() > 0:
            return
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

    def _answers(self, work: Answering, together: bool) -> list[ValidationAnswer]:
        """All ranks' answers, longest prompts first.  Each batch is one rank's, and holds the rows
        that it holds where one process answers all."""
        prompts = work.prompts(self.rows)
        todo = sorted(self.rows, key=lambda row: len(prompts[row.id]), reverse=True)
        size = self.cell.budget.generate_batch
        batches = [todo[start : start + size] for start in range(0, len(todo), size)]
        own: dict[int, list[ValidationAnswer]] = {}
        for first in range(0, len(batches), ranks.world()):
            index = first + ranks.rank()
            if index >= len(batches) and not together:
                break
            # A sharded model runs on all ranks or on none: one without a batch repeats the first
            batch = batches[index] if index < len(batches) else batches[0]
            found = work.answer([prompts[row.id] for row in batch], together=together)
            if index < len(batches):
                own[index] = [
                    ValidationAnswer(**answer.model_dump(), step=self.meter.step)
                    for answer in work.predictions(batch, prompts, found)
                ]
        every = {index: answers for part in ranks.gathered(own) for index, answers in part.items()}
        return [answer for index in sorted(every) for answer in every[index]]


def _answers_together(model: Any) -> bool:
    """Whether a token needs all ranks: each holds a part of the weights only."""
    return any(shards.is_sharded(parameter) for parameter in model.parameters())


@contextmanager
def _as_deployed(model: Any, cell: Cell, settings: Any) -> Iterator[None]:
    """Evaluation mode, the method's autocast, and the greedy settings alone: shipped sampling
    settings would leak in.

    no_grad, not inference_mode: what a forward keeps for later (rotary tables, casts, gathered
    weights) must serve the next training step too.  Autocast is the trainer's or DeepSpeed's around
    a forward of the outermost model, which generation isn't.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = inner.config.get_text_config()
    shipped, routing = inner.generation_config, getattr(config, "output_router_logits", None)
    model.eval()
    _set(model, inner, settings)
    if routing:  # the router's loss counts the prompt's tokens, and generation forwards one
        config.output_router_logits = False
    try:
        with torch.no_grad(), _autocast(cell):
            yield
    finally:
        _set(model, inner, shipped)
        if routing:
            config.output_router_logits = routing
        model.train()


def _autocast(cell: Cell) -> AbstractContextManager[Any]:
    if cell.method.autocast is None:
        return nullcontext()
    return torch.autocast(cell.target.device, torch_dtype(cell.method.autocast))


def _set(model: Any, inner: Any, settings: Any) -> None:
    """On an adapter's wrapper too: it hands its own on."""
    for one in (model, inner):
        one.generation_config = settings
