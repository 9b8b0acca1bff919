"""Counts the tokens of a step and times it; writes its event.  Over all ranks, where several train.

What all ranks did is added up after the clock has stopped.
"""

from __future__ import annotations

import math
import time
from typing import Any

from bench.record import EvaluationEvent, StepEvent
from bench.store import Attempt
from bench.worker import ranks
from bench.worker.recorder import PROCESS, Recorder, cuda, devices, synchronize


class Diverged(Exception):
    """The loss is no longer a number."""


class Meter:
    """Counts tokens and times steps; writes the events."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.step = self.resumed_from = 0
        self.planned_steps: int | None = None
        self.evaluated_at: int | None = None
        self.train_s = 0.0
        self.totals: dict[str, Any] = {"tokens": 0, "padded_tokens": 0, "supervised_tokens": 0}
        self.first_loss: float | None = None
        self.final_loss: float | None = None
        self.validation_loss: float | None = None
        self.pending: StepEvent | None = None
        self._reset()

    def resume(self, done: Attempt) -> None:
        """Go on counting after the steps of an attempt that were done before a checkpoint."""
        steps, evaluations = done.steps, done.evaluations
        self.step = self.resumed_from = done.resumed_from_step or 0
        self.train_s = sum(step.seconds for step in steps)
        for name in self.totals:
            self.totals[name] = sum(getattr(step, name) for step in steps)
        self.first_loss, self.final_loss = steps[0].loss, steps[-1].loss
        if evaluations:
            self.validation_loss, self.evaluated_at = evaluations[-1].loss, evaluations[-1].step

    def _reset(self) -> None:
        self.micro_batches = 0
        self._loss: Any = 0.0
        self._sequences = 0
        self._now = dict.fromkeys(self.totals, 0)

    def begin(self) -> None:
        synchronize()
        self._reset()
        self._started = time.perf_counter()

    def count(self, inputs: dict[str, Any]) -> None:
        """Input tokens of a micro-batch; packed batches have no mask and no padding."""
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        self._now["padded_tokens"] += ids.numel()
        self._now["tokens"] += int(mask.sum()) if mask is not None else ids.numel()
        self._now["supervised_tokens"] += int((inputs["labels"] != -100).sum())
        self._sequences += ids.shape[0]
        self.micro_batches += 1

    def add_loss(self, loss: Any) -> None:
        # transformers divides each micro-batch's loss by the step's tokens: their sum is the mean
        self._loss = self._loss + loss

    def end(self) -> None:
        """The step is over: stop the clock, then look at the loss.

        Raises Diverged where it is no longer finite.
        """
        synchronize()
        seconds = time.perf_counter() - self._started
        loss, sequences, host_bytes = self._over_ranks()
        cuda_bytes = _cuda_bytes()
        seconds, *most = ranks.largest([seconds, *cuda_bytes.values()])
        self.step += 1
        self.train_s += seconds
        for name, value in self._now.items():
            self.totals[name] += value
        self.final_loss = loss
        self.first_loss = loss if self.first_loss is None else self.first_loss
        self.pending = StepEvent(
            t=time.time(),
            step=self.step,
            loss=loss,
            seconds=seconds,
            sequences=sequences,
            host_bytes=host_bytes,
            **self._now,
            **{name: int(value) for name, value in zip(cuda_bytes, most, strict=True)},
        )
        if not math.isfinite(loss):
            self.flush()
            raise Diverged(f"loss is {loss} at step {self.step}")

    def _over_ranks(self) -> tuple[float, int, int]:
        """(loss, sequences, host bytes) of all ranks; the tokens of `_now` become all ranks' too.

        Each rank's loss is multiplied by their number, as gradients are averaged afterwards.
        """
        own: list[float] = [self._sequences, PROCESS.memory_info().rss]
        own.insert(0, float(self._loss) / ranks.world())
        loss, sequences, host_bytes, *tokens = ranks.total([*own, *self._now.values()])
        self._now = {name: int(value) for name, value in zip(self._now, tokens, strict=True)}
        return loss, int(sequences), int(host_bytes)

    def flush(self, grad_norm: float | None = None, learning_rate: float | None = None) -> None:
        if self.pending:
            self.pending.grad_norm = grad_norm
            self.pending.learning_rate = learning_rate
            self.recorder.emit(self.pending)
            self.pending = None

    def evaluated(self, loss: float, seconds: float, rows: int) -> None:
        self.evaluated_at = self.step
        self.validation_loss = loss
        self.recorder.emit(
            EvaluationEvent(
                t=time.time(),
                step=self.step,
                loss=loss,
                seconds=seconds,
                train_s=self.train_s,
                tokens=self.totals["tokens"],
                rows=rows,
            )
        )

    def facts(self) -> dict[str, Any]:
        return {
            "steps": self.step,
            "planned_steps": self.planned_steps,
            "first_loss": self.first_loss,
            "final_loss": self.final_loss,
            "validation_loss": self.validation_loss,
            **self.totals,
        }


def _cuda_bytes() -> dict[str, Any]:
    device, own = cuda(), devices()
    if not own:
        return {}
    return {
        "allocated_bytes": max(device.memory_allocated(i) for i in own),
        "reserved_bytes": max(device.memory_reserved(i) for i in own),
    }
