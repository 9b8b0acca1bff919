"""The generate phase: answer the test rows as a deployed model would.

Greedy, left-padded, longest prompts first, so that an out-of-memory comes early.  Finished rows
stay in predictions.jsonl: an interrupted phase goes on where it stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from bench import cache
from bench.errors import UserError
from bench.record import Prediction, Status
from bench.spec import Cell
from bench.store import append_line, read_lines, write_json
from bench.worker import audit, data, few_shot, load
from bench.worker.data import Row
from bench.worker.proof import batches
from bench.worker.recorder import Recorder, synchronize

Ending = tuple[Status, str | None, dict[str, Any]]


def generate(cell: Cell, attempt: Path, recorder: Recorder) -> Ending:
    """Run the phase; returns (status, reason, facts for GenerateRecord)."""
    recorder.set_baseline()
    path = attempt / "predictions.jsonl"
    trained = _trained_folder(cell, attempt)
    with recorder.stage("load"):
        tokenizer = load.tokenizer(cell.model)
        tokenizer.padding_side = "left"
        everything = data.rows(cell.dataset, "test")
        rows = data.sample(everything, cell.budget.max_test_rows)
        model = load.model(cell, trained).eval()
        model.config.use_cache = True
    proof = audit.loaded(cell, model, cell.method.autocast or cell.method.dtype)
    if not cell.method.trains:
        proof.stage = "generate"
        write_json(attempt / "audit.json", proof)
    work = _Work(cell, model, tokenizer, path)
    recorder.emit({"event": "plan", "t": time.time(), "rows": len(rows)})
    facts: dict[str, Any] = {
        "planned_rows": len(rows),
        "test_rows": len(everything),
        "rows_fingerprint": data.fingerprint(rows),
        "weights_sha256": cache.sha256(trained) if trained else None,
        "adapter_changes_logits": work.adapter_changes_logits(rows[0]),
        "threads": torch.get_num_threads(),
    }
    with recorder.stage("generate"):
        seconds = work.run(few_shot.prompted(cell, rows), recorder)
    facts |= work.totals() | {"generate_s": seconds, "paddings": dict(work.paddings)}
    problems = [*proof.problems, *work.problems()]
    if facts["adapter_changes_logits"] is False:
        problems.append("switching the adapter off changes no logit: it isn't in use")
    return (Status.INVALID if problems else Status.OK), "; ".join(problems) or None, facts


def _trained_folder(cell: Cell, attempt: Path) -> Path | None:
    if not cell.method.trains:
        return None
    folder = cache.trained(attempt)
    if not folder.is_dir():
        raise UserError(
            f"the weights that {attempt.parent.name}/{attempt.name} trained are gone from the "
            "cache: run the cell again with --fresh"
        )
    return folder


class Answering:
    """A model that answers rows: greedy, with the dataset's prompts."""

    def __init__(self, cell: Cell, model: Any, tokenizer: Any) -> None:
        self.cell = cell
        self.model = model
        self.tokenizer = tokenizer
        self.paddings: Counter[str] = Counter()
        self.settings = greedy(model, tokenizer, cell.budget.max_new_tokens)

    def prompts(self, rows: Sequence[Row]) -> dict[str, list[int]]:
        return {row.id: data.prompt_ids(self.tokenizer, self.cell, row) for row in rows}

    def answer(self, prompts: Sequence[list[int]], *, together: bool = False) -> list[list[int]]:
        """New token ids of each prompt, end-of-sequence included where it was written.

        `together`: go on with empty forwards until every rank's answers have ended.
        """
        batch = self.tokenizer.pad({"input_ids": list(prompts)}, return_tensors="pt")
        batch = {
            name: batch[name].to(self.model.device) for name in ("input_ids", "attention_mask")
        }
        self.paddings.update(batches.padding(batch["attention_mask"]))
        output = self.model.generate(**batch, generation_config=self.settings, synced_gpus=together)
        new = output[:, batch["input_ids"].shape[1] :].tolist()
        return [self._until_end(ids) for ids in new]

    def _until_end(self, ids: list[int]) -> list[int]:
        ends = set(self.settings.eos_token_id)
        for index, token in enumerate(ids):
            if token in ends:
                return ids[: index + 1]
        return ids

    def predictions(
        self, batch: Sequence[Row], prompts: dict[str, list[int]], answers: list[list[int]]
    ) -> list[Prediction]:
        ends = set(self.settings.eos_token_id)
        return [
            Prediction(
                id=row.id,
                group=row.group,
                prediction=self._text(row, answer),
                reference=row.answer,
                finish_reason="stop" if answer and answer[-1] in ends else "length",
                prompt_tokens=len(prompts[row.id]),
                new_tokens=len(answer),
            )
            for row, answer in zip(batch, answers, strict=True)
        ]

    def _text(self, row: Row, answer: list[int]) -> str:
        """The answer as text, with the tag that opened its thinking inside the prompt."""
        text = self.tokenizer.decode(answer, skip_special_tokens=True)
        opened = data.opens_thinking(self.tokenizer, self.cell, row)
        return f"{data.THOUGHT}{text}" if opened else str(text)


class _Work(Answering):
    """One loaded model answering rows."""

    def __init__(self, cell: Cell, model: Any, tokenizer: Any, path: Path) -> None:
        super().__init__(cell, model, tokenizer)
        self.path = path
        # Chat models ship sampling settings and repetition penalties that would leak in otherwise
        model.generation_config = self.settings

    def run(self, rows: Sequence[Row], recorder: Recorder) -> float:
        """Answer what is still unanswered; returns synchronised seconds of all attempts."""
        done = {row["id"] for row in read_lines(self.path)}
        prompts = self.prompts(rows)
        todo = [row for row in rows if row.id not in done]
        todo.sort(key=lambda row: len(prompts[row.id]), reverse=True)
        size = self.cell.budget.generate_batch
        for start in range(0, len(todo), size):
            batch = todo[start : start + size]
            started = time.perf_counter()
            with torch.inference_mode():
                answers = self.answer([prompts[row.id] for row in batch])
            synchronize()
            seconds = time.perf_counter() - started
            for prediction in self.predictions(batch, prompts, answers):
                append_line(self.path, prediction)
            recorder.emit(
                {
                    "event": "generated",
                    "t": time.time(),
                    "rows": len(batch),
                    "seconds": seconds,
                    "prompt_tokens": sum(len(prompts[row.id]) for row in batch),
                    "new_tokens": sum(len(answer) for answer in answers),
                }
            )
        events = read_lines(recorder.attempt / "events.jsonl")
        return float(sum(e["seconds"] for e in events if e.get("event") == "generated"))

    def problems(self) -> list[str]:
        """Text after padding on the right would go on from the padding."""
        right = self.paddings["right_padding"]
        return [f"{right} padding tokens stood right of the prompts"] if right else []

    def totals(self) -> dict[str, int]:
        rows = read_lines(self.path)
        return {
            "rows": len(rows),
            "prompt_tokens": sum(row["prompt_tokens"] for row in rows),
            "new_tokens": sum(row["new_tokens"] for row in rows),
        }

    @torch.inference_mode()
    def adapter_changes_logits(self, row: Row) -> bool | None:
        """Whether the loaded adapter does anything; None where the method has none."""
        if not self.cell.method.adapter:
            return None
        ids = torch.tensor([data.prompt_ids(self.tokenizer, self.cell, row)])
        ids = ids.to(self.model.device)
        with_adapter = self.model(input_ids=ids, use_cache=False).logits
        with self.model.disable_adapter():
            without = self.model(input_ids=ids, use_cache=False).logits
        return not torch.equal(with_adapter, without)


def greedy(model: Any, tokenizer: Any, max_new_tokens: int) -> GenerationConfig:
    """Greedy decoding that stops at any end token that the model or its tokenizer knows."""
    shipped = model.generation_config.eos_token_id
    ends = shipped if isinstance(shipped, list) else [shipped]
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(
            {token for token in [*ends, tokenizer.eos_token_id] if token is not None}
        ),
    )
