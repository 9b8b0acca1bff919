"""The train phase: load, adapt, train with TRL's SFTTrainer, validate, save.

What is timed is the optimizer step alone: from its first forward to its last weight update,
synchronised.  Validation, logging and saving are off that clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]

from bench import cache
from bench.errors import UserError
from bench.record import TIMING_PROTOCOL, Audit, EvaluationEvent, Status, StepEvent
from bench.spec import Cell
from bench.store import write_json
from bench.worker import data, load, methods
from bench.worker.audit import Auditor
from bench.worker.methods import lora
from bench.worker.recorder import PROCESS, Recorder, cuda, synchronize

OPTIMIZERS = {
    "adamw": "adamw_torch",
    "adamw_fused": "adamw_torch_fused",
    "adamw_8bit": "adamw_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "paged_adamw_32bit": "paged_adamw",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}


class Diverged(Exception):
    """The loss is no longer a number."""


Ending = tuple[Status, str | None, dict[str, Any]]


def train(cell: Cell, attempt: Path, recorder: Recorder) -> Ending:
    """Run the phase; returns (status, reason, facts for TrainRecord)."""
    recorder.set_baseline()
    method = methods.module(cell.method.kind)
    with recorder.stage("load"):
        set_seed(cell.seed)  # before the adapters are created: they start random
        tokenizer = load.tokenizer(cell.model)
        tokenizer.padding_side = "right"
        examples = _Examples(cell, tokenizer)
        model = method.adapt(load.model(cell), cell.method)
        trainer = RecordingTrainer(cell, model, tokenizer, examples, recorder)
    audit = trainer.auditor.before()
    write_json(attempt / "audit.json", audit)
    if audit.problems:
        return *_verdict(audit), {}  # hours of training would not make it another cell
    trainer.evaluate()
    with recorder.stage("train"):
        try:
            trainer.train()
        except Diverged:
            if trainer.meter.totals["supervised_tokens"]:
                raise  # else 0 ÷ 0 labels: the audit says so
    trainer.evaluate()
    with recorder.stage("save"):
        folder = cache.trained(attempt)
        model.config.use_cache = True
        method.save(trainer.model, folder)
        trainer.auditor.supervised_tokens = trainer.meter.totals["supervised_tokens"]
        audit = trainer.auditor.report(trainer)
        write_json(attempt / "audit.json", audit)
    facts = {
        **examples.facts(),
        **trainer.meter.facts(),
        "weights": folder.name,
        "weights_sha256": cache.sha256(folder),
        "threads": torch.get_num_threads(),
    }
    return *_verdict(audit), facts


def _verdict(audit: Audit) -> tuple[Status, str | None]:
    if audit.problems:
        return Status.INVALID, "; ".join(audit.problems)
    return Status.OK, None


# ---------------------------------------------------------------- data


class _Examples:
    """Tokenised train and validation rows, and what tokenising did to them."""

    def __init__(self, cell: Cell, tokenizer: Any) -> None:
        budget = cell.budget
        split = data.rows(cell.dataset, "train")
        train_rows = data.sample(split, budget.max_train_rows)
        self.split_rows = len(split)
        validation_rows = data.rows(cell.dataset, "validation", budget.max_validation_rows)
        encoded = [data.encode(tokenizer, cell, row) for row in train_rows]
        self.train = [example for example in encoded if example]
        self.dropped = len(encoded) - len(self.train)
        if not self.train:
            raise UserError(
                f"dataset {cell.dataset.name}: every prompt alone exceeds max_length "
                f"{budget.max_length}: no answer token is left to learn"
            )
        held = (data.encode(tokenizer, cell, row) for row in validation_rows)
        self.validation = [example for example in held if example]
        self.fingerprint = data.fingerprint([*train_rows, *validation_rows])

    def dataset(self) -> Dataset:
        rows = [{"input_ids": e.input_ids, "labels": e.labels} for e in self.train]
        return Dataset.from_list(rows)

    def facts(self) -> dict[str, Any]:
        return {
            "train_rows": len(self.train),
            "split_rows": self.split_rows,
            "timing_protocol": TIMING_PROTOCOL,
            "truncated_rows": sum(example.truncated for example in self.train),
            "dropped_rows": self.dropped,
            "rows_fingerprint": self.fingerprint,
        }


# ---------------------------------------------------------------- the trainer


def trainer_arguments(cell: Cell, output: Path) -> SFTConfig:
    """Every setting that matters, none left to a default that changes between versions."""
    method, budget = cell.method, cell.budget
    assert method.learning_rate is not None  # checked by MethodSpec
    length: dict[str, Any] = {"max_steps": budget.max_steps}
    if budget.max_steps is None:
        length = {"num_train_epochs": budget.epochs}
    return SFTConfig(
        output_dir=str(output),
        **length,
        per_device_train_batch_size=budget.micro_batch,
        gradient_accumulation_steps=cell.accumulation,
        learning_rate=method.learning_rate,
        lr_scheduler_type=SCHEDULES[method.schedule],
        warmup_steps=method.lr_warmup_steps,
        weight_decay=method.weight_decay,
        max_grad_norm=method.max_grad_norm or 0.0,
        optim=OPTIMIZERS[str(method.optimizer)],
        bf16=method.autocast == "bf16",
        fp16=method.autocast == "fp16",
        activation_checkpointing=method.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        max_length=budget.max_length,
        packing=method.packing,
        completion_only_loss=True,
        eval_strategy="steps",
        eval_steps=budget.evaluate_every,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        remove_unused_columns=True,
        use_cpu=cell.target.device == "cpu",
        seed=cell.seed,
        data_seed=cell.seed,
    )


class RecordingTrainer(SFTTrainer):
    """SFTTrainer that counts real tokens, times steps alone and validates off the clock."""

    def __init__(
        self, cell: Cell, model: Any, tokenizer: Any, examples: _Examples, recorder: Recorder
    ) -> None:
        self.cell = cell
        self.recorder = recorder
        self.validation = examples.validation
        self.meter = Meter(recorder)
        arguments = trainer_arguments(cell, cache.root() / "trainer")
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=examples.dataset(),
            eval_dataset=Dataset.from_list([{"input_ids": [0], "labels": [0]}]),
            processing_class=tokenizer,
            callbacks=[_Clock(self.meter, self)],
        )
        self.remove_callback(PrinterCallback)  # events.jsonl holds every step already
        if cell.method.adapter:
            lora.set_adapter_dtype(self.model, cell.method)
        self.auditor = Auditor(cell, self.model)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        self.meter.count(inputs)
        self.auditor.saw(inputs)
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.meter.add_loss(loss)
        return loss

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Validation loss in nats per answer token, whatever the batch size; off the clock.

        Once a step: the trainer asks again at the end of an epoch and of the training.
        """
        if self.meter.evaluated_at == self.meter.step:
            return {}
        with self.recorder.stage("evaluate"):
            started = time.perf_counter()
            loss = validation_loss(self.model, self._validation_batches(), self.args.device)
            synchronize()
            seconds = time.perf_counter() - started
        self.meter.evaluated(loss, seconds, len(self.validation))
        return {"eval_loss": loss}

    def _validation_batches(self) -> Iterator[dict[str, Any]]:
        size = self.cell.budget.micro_batch
        for start in range(0, len(self.validation), size):
            chunk = self.validation[start : start + size]
            yield self.data_collator(
                [{"input_ids": e.input_ids, "labels": e.labels} for e in chunk]
            )

    def settings(self) -> dict[str, Any]:
        """What was in effect, read back from the trainer."""
        names = (
            "bf16 fp16 activation_checkpointing optim learning_rate lr_scheduler_type max_steps "
            "per_device_train_batch_size gradient_accumulation_steps max_grad_norm weight_decay "
            "packing max_length loss_type completion_only_loss seed average_tokens_across_devices"
        )
        read = {name: getattr(self.args, name, None) for name in names.split()}
        read["router_aux_loss_coef"] = self.router_aux_loss_coef if self.aux_loss_enabled else None
        read["device"] = str(self.args.device)
        return {name: str(v) if not _plain(v) else v for name, v in read.items()}


def _plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str)


@torch.no_grad()
def validation_loss(model: Any, batches: Iterator[dict[str, Any]], device: Any) -> float:
    """Sum of the answer tokens' negative log-likelihoods ÷ their number (nats)."""
    model.eval()
    total, count = 0.0, 0
    for batch in batches:
        inputs = {name: value.to(device) for name, value in batch.items()}
        labels = inputs.pop("labels")[:, 1:]
        logits = model(**inputs, use_cache=False).logits[:, :-1].float()
        losses = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), labels, ignore_index=-100, reduction="sum"
        )
        total += float(losses)
        count += int((labels != -100).sum())
    model.train()
    return total / count if count else math.nan


class Meter:
    """Counts tokens and times steps; writes the events."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.step = 0
        self.planned_steps: int | None = None
        self.evaluated_at: int | None = None
        self.train_s = 0.0
        self.totals: dict[str, Any] = {"tokens": 0, "padded_tokens": 0, "supervised_tokens": 0}
        self.first_loss: float | None = None
        self.final_loss: float | None = None
        self.validation_loss: float | None = None
        self.pending: StepEvent | None = None
        self._reset()

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
        self.step += 1
        self.train_s += seconds
        for name, value in self._now.items():
            self.totals[name] += value
        loss = float(self._loss)
        self.final_loss = loss
        self.first_loss = loss if self.first_loss is None else self.first_loss
        self.pending = StepEvent(
            t=time.time(),
            step=self.step,
            loss=loss,
            seconds=seconds,
            sequences=self._sequences,
            host_bytes=PROCESS.memory_info().rss,
            **self._now,
            **_cuda_bytes(),
        )
        if not math.isfinite(loss):
            self.flush()
            raise Diverged(f"loss is {loss} at step {self.step}")

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
    device = cuda()
    if not device:
        return {}
    devices = range(device.device_count())
    return {
        "allocated_bytes": max(device.memory_allocated(i) for i in devices),
        "reserved_bytes": max(device.memory_reserved(i) for i in devices),
    }


class _Clock(TrainerCallback):
    """Starts and stops the meter at the edges of an optimizer step."""

    def __init__(self, meter: Meter, trainer: RecordingTrainer) -> None:
        self.meter = meter
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.meter.planned_steps = state.max_steps
        self.meter.recorder.emit({"event": "plan", "t": time.time(), "steps": state.max_steps})

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.meter.step == 0:
            self.trainer.auditor.first_step_begins()
        self.meter.begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.auditor.before_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.meter.end()
        if self.meter.step == 1:
            self.trainer.auditor.first_step_ends(self.meter.micro_batches)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        logs = logs or {}
        self.meter.flush(logs.get("grad_norm"), logs.get("learning_rate"))
