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
from transformers import PrinterCallback, Trainer, TrainerCallback, set_seed
from transformers.trainer import SCHEDULER_NAME
from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]

from bench import cache
from bench.errors import UserError
from bench.record import TIMING_PROTOCOL, Audit, Status
from bench.spec import Cell
from bench.store import Attempt, write_json
from bench.worker import checkpoints, data, load, methods, ranks, shards, strategies
from bench.worker.audit import Auditor
from bench.worker.meter import Diverged, Meter
from bench.worker.methods import lora
from bench.worker.recorder import Recorder, synchronize
from bench.worker.scoring import Scoring

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


Ending = tuple[Status, str | None, dict[str, Any]]


def train(cell: Cell, attempt: Path, recorder: Recorder) -> Ending:
    """Run the phase; returns (status, reason, facts for TrainRecord)."""
    strategies.require(cell)
    ranks.begin(cell.target.device)
    recorder.set_baseline()
    with recorder.stage("load"):
        set_seed(cell.seed)  # before the adapters are created: they start random, alike everywhere
        tokenizer = load.tokenizer(cell.model)
        tokenizer.padding_side = "right"
        examples = _Examples(cell, tokenizer)
        model = _model(cell)
        trainer = RecordingTrainer(cell, model, tokenizer, examples, recorder)
        resumed = checkpoints.last(cell, attempt)
        if resumed:
            trainer.go_on_from(resumed[0])
    audit = trainer.auditor.before()
    _write_audit(attempt, audit)
    if audit.problems:
        return *_verdict(audit), {}  # hours of training would not make it another cell
    if ranks.world() == 1 and not resumed:  # sharded ones can't run before they are prepared
        trainer.evaluate()
    with recorder.stage("train"):
        try:
            trainer.train(resume_from_checkpoint=str(resumed[1]) if resumed else None)
        except Diverged:
            if trainer.meter.totals["supervised_tokens"]:
                raise  # else 0 ÷ 0 labels: the audit says so
    trainer.evaluate()
    folder = cache.trained(attempt)
    with recorder.stage("save"):
        shards.settle(model)
        if not cell.budget.probe:
            _save(cell, trainer.model, folder)
        trainer.auditor.supervised_tokens = trainer.meter.totals["supervised_tokens"]
        audit = trainer.auditor.report(trainer)
        _write_audit(attempt, audit)
    facts = {
        **examples.facts(),
        **trainer.meter.facts(),
        **({} if cell.budget.probe else _saved(folder)),
        "threads": torch.get_num_threads(),
    }
    return *_verdict(audit), facts


def _model(cell: Cell) -> Any:
    """The adapted model, its weights where the strategy puts them."""
    strategy, method = strategies.module(cell), methods.module(cell.method.kind)
    with strategy.loading(cell):
        model = method.adapt(load.model(cell, strategy=strategy), cell.method)
    strategy.shard(model, cell)
    return model


def _save(cell: Cell, model: Any, folder: Path) -> None:
    """Write what training changed, put together from all ranks, from rank 0."""
    state = shards.trained_state(model) if ranks.world() > 1 else None
    if ranks.rank() == 0:
        model.config.use_cache = True
        if hasattr(model.config, "distributed_config"):
            del model.config.distributed_config  # saving would gather again, and load as sharded
        methods.module(cell.method.kind).save(model, folder, state)
    ranks.barrier()


def _saved(folder: Path) -> dict[str, Any]:
    return {"weights": folder.name, "weights_sha256": cache.sha256(folder)}


def _write_audit(attempt: Path, audit: Audit) -> None:
    if ranks.rank() == 0:
        write_json(attempt / "audit.json", audit)


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
        if budget.probe:
            self._keep_longest(cell)

    def _keep_longest(self, cell: Cell) -> None:
        """As many rows as the steps take, the longest of all."""
        budget = cell.budget

        def length(example: data.Encoded) -> int:
            return len(example.input_ids)

        count = (budget.max_steps or 1) * budget.global_batch
        self.train = sorted(self.train, key=length, reverse=True)[:count]
        self.validation = sorted(self.validation, key=length, reverse=True)[: budget.micro_batch]

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
    settings: dict[str, Any] = dict(
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
        save_strategy="no",  # see RecordingTrainer
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        remove_unused_columns=True,
        use_cpu=cell.target.device == "cpu",
        seed=cell.seed,
        data_seed=cell.seed,
    )
    return SFTConfig(**settings | strategies.module(cell).arguments(cell))  # the strategy's win


class RecordingTrainer(SFTTrainer):
    """SFTTrainer that counts real tokens, times steps alone and validates off the clock."""

    def __init__(
        self, cell: Cell, model: Any, tokenizer: Any, examples: _Examples, recorder: Recorder
    ) -> None:
        self.cell = cell
        self.recorder = recorder
        self.validation = examples.validation
        self.meter = Meter(recorder)
        rows = cell.budget.score_rows
        self.scoring = Scoring(cell, tokenizer, recorder, self.meter) if rows else None
        arguments = trainer_arguments(cell, cache.checkpoints(recorder.attempt))
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=examples.dataset(),
            eval_dataset=Dataset.from_list([{"input_ids": [0], "labels": [0]}]),
            processing_class=tokenizer,
            callbacks=[_Clock(self.meter, self)],
        )
        # Afterwards: the trainer refuses models that came sharded, whose optimizer it can't write
        for name, value in checkpoints.arguments(cell).items():
            setattr(self.args, name, value)
        self.remove_callback(PrinterCallback)  # events.jsonl holds every step already
        if cell.method.adapter:
            lora.set_adapter_dtype(self.model, cell.method)
        self.auditor = Auditor(cell, self.model)

    def go_on_from(self, step: int) -> None:
        """Take up what the events of this attempt say of the steps up to the checkpoint's."""
        self.recorder.emit({"event": "resume", "t": time.time(), "from_step": step})
        ranks.barrier()
        self.meter.resume(Attempt(self.recorder.attempt))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Off the clock; none after the last step.  Past SFTTrainer, which writes a model card."""
        if self.state.global_step >= self.state.max_steps:
            return
        with self.recorder.stage("checkpoint"):
            shards.settle(self.model)
            Trainer._save_checkpoint(self, model, trial)
            ranks.barrier()
        step = self.state.global_step
        self.recorder.emit({"event": "checkpoint", "t": time.time(), "step": step})

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        assert output_dir is not None  # only checkpoints are saved by the trainer
        if not self.is_deepspeed_enabled:  # its engine writes weights and optimizer together
            checkpoints.save(self.model, Path(output_dir))

    @property
    def _writes_shards(self) -> bool:
        return not self.is_deepspeed_enabled and checkpoints.is_sharded(self.optimizer)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self._writes_shards:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        checkpoints.save_optimizer(self.optimizer, Path(output_dir))
        assert self.lr_scheduler is not None
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or not self._writes_shards:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        checkpoints.restore_optimizer(self.optimizer, Path(checkpoint))
        assert self.lr_scheduler is not None
        schedule = torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True)
        self.lr_scheduler.load_state_dict(schedule)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        checkpoints.restore(self.model, Path(resume_from_checkpoint))

    @property
    def runnable(self) -> Any:
        """The model as it can be run by itself: DeepSpeed's engine holds its mixed precision."""
        return self.model_wrapped if self.is_deepspeed_enabled else self.model

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
            loss = validation_loss(self.runnable, self._validation_batches(), self.args.device)
            synchronize()
            seconds = time.perf_counter() - started
        self.meter.evaluated(loss, seconds, len(self.validation))
        if self.scoring:
            self.scoring.run(self.model)
        return {"eval_loss": loss}

    def _validation_batches(self) -> Iterator[dict[str, Any]]:
        """This rank's batches.  All ranks get as many, as a sharded model runs on all or none: one
        without rows left runs the first batch again, with no token that counts."""
        size, world = self.cell.budget.micro_batch, ranks.world()
        starts = list(range(0, len(self.validation), size))
        for first in range(0, len(starts), world):
            index = first + ranks.rank()
            counts = index < len(starts)
            start = starts[index] if counts else 0
            batch = self.data_collator(
                [
                    {"input_ids": e.input_ids, "labels": e.labels}
                    for e in self.validation[start : start + size]
                ]
            )
            if not counts:
                batch["labels"].fill_(-100)
            yield batch

    def settings(self) -> dict[str, Any]:
        """What was in effect, read back from the trainer."""
        names = (
            "bf16 fp16 activation_checkpointing optim learning_rate lr_scheduler_type max_steps "
            "per_device_train_batch_size gradient_accumulation_steps max_grad_norm weight_decay "
            "packing max_length loss_type completion_only_loss seed average_tokens_across_devices "
            "world_size deepspeed"
        )
        read = {name: getattr(self.args, name, None) for name in names.split()}
        read["router_aux_loss_coef"] = self.router_aux_loss_coef if self.aux_loss_enabled else None
        read["autocast_cache"] = torch.is_autocast_cache_enabled()
        read["device"] = str(self.args.device)
        return {name: str(v) if not _plain(v) else v for name, v in read.items()}


def _plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str)


@torch.no_grad()
def validation_loss(model: Any, batches: Iterator[dict[str, Any]], device: Any) -> float:
    """Sum of the answer tokens' negative log-likelihoods ÷ their number (nats), over all ranks."""
    model.eval()
    total, count = 0.0, 0.0
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
    total, count = ranks.total([total, count])
    return total / count if count else math.nan


class _Clock(TrainerCallback):
    """Starts and stops the meter at the edges of an optimizer step."""

    def __init__(self, meter: Meter, trainer: RecordingTrainer) -> None:
        self.meter = meter
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.meter.planned_steps = state.max_steps
        self.meter.recorder.emit({"event": "plan", "t": time.time(), "steps": state.max_steps})
        if ranks.world() > 1 or self.meter.resumed_from:
            self.trainer.auditor.weights_are_placed()
        if ranks.world() > 1 and not self.meter.resumed_from:
            self.trainer.evaluate()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.meter.step == self.meter.resumed_from:
            self.trainer.auditor.first_step_begins()
        self.meter.begin()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.auditor.before_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.meter.end()
        if self.meter.step == self.meter.resumed_from + 1:
            self.trainer.auditor.first_step_ends(self.meter.micro_batches)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        logs = logs or {}
        self.meter.flush(logs.get("grad_norm"), logs.get("learning_rate"))
