"""The generate phase of a model behind an API: the same prompts, answered elsewhere.  No torch.

Each answer is written as soon as it is there, with the whole response, so that nothing that was
paid is asked again: an interrupted or failed phase goes on with the rows that are missing.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.record import ApiPrediction, Status
from bench.score.cost import answer_usd, token_usd
from bench.spec import Cell
from bench.store import append_line, read_lines
from bench.worker import data, few_shot, pace
from bench.worker.data import Row
from bench.worker.endpoint_client import Answer, Client
from bench.worker.recorder import Recorder

Ending = tuple[Status, str | None, dict[str, Any]]


def generate(cell: Cell, attempt: Path, recorder: Recorder) -> Ending:
    """Run the phase; returns (status, reason, facts for GenerateRecord)."""
    recorder.set_baseline()
    client = Client(cell)
    with recorder.stage("load"):
        everything = data.rows(cell.dataset, "test")
        rows = data.sample(everything, cell.budget.max_test_rows)
        asked = few_shot.prompted(cell, rows)
    recorder.emit({"event": "plan", "t": time.time(), "rows": len(rows)})
    work = _Work(cell, client, attempt / "predictions.jsonl", recorder)
    with recorder.stage("generate"):
        work.run(asked)
    facts: dict[str, Any] = {
        "planned_rows": len(rows),
        "test_rows": len(everything),
        "rows_fingerprint": data.fingerprint(rows),
        "generate_s": _seconds(attempt),
        **work.totals(),
    }
    return Status.ERROR if work.failure else Status.OK, work.failure, facts


def _seconds(attempt: Path) -> float:
    """Of all processes of this attempt, while rows were being asked."""
    events = read_lines(attempt / "events.jsonl")
    return float(sum(e["seconds"] for e in events if e.get("event") == "generated"))


class _Work:
    """Rows on their way.  `changed` guards everything below it."""

    def __init__(self, cell: Cell, client: Client, path: Path, recorder: Recorder) -> None:
        assert cell.model.endpoint is not None
        self.cell = cell
        self.client = client
        self.endpoint = cell.model.endpoint
        self.path = path
        self.recorder = recorder
        self.pace = pace.Pace(self.endpoint.requests_per_minute, self.endpoint.tokens_per_minute)
        self.changed = threading.Condition()
        self.failure: str | None = None  # the first one; nothing is asked after it
        self.at_most_usd: dict[str, float] = {}  # by row on its way
        self.spent_usd = 0.0
        self.last = time.perf_counter()

    def run(self, rows: Sequence[Row]) -> None:
        """Ask what is still unanswered, several rows at a time."""
        written = read_lines(self.path)
        done = {row["id"] for row in written}
        for answered in written:
            self._spend(ApiPrediction.model_validate(answered))
        todo = [row for row in rows if row.id not in done]
        self.last = time.perf_counter()
        with ThreadPoolExecutor(self.endpoint.concurrency) as pool:
            for row in todo:
                if not self._admit(row):
                    break
                self.pace.wait(pace.prompt_tokens(row.messages) + self.cell.budget.max_new_tokens)
                pool.submit(self._one, row)

    def _admit(self, row: Row) -> bool:
        """Wait for a free place and for money; False where nothing more may be asked."""
        with self.changed:
            while self.failure is None:
                free = len(self.at_most_usd) < self.endpoint.concurrency
                if free and self._affordable(row):
                    self.at_most_usd[row.id] = self._at_most(row)
                    return True
                if not self.at_most_usd:
                    self.failure = (
                        f"model {self.cell.model.name}: ${self.spent_usd:.4f} spent, and the next "
                        f"row could exceed max_usd = {self.endpoint.max_usd:g}: raise it and run "
                        "again; what is answered is kept"
                    )
                else:
                    self.changed.wait()
        return False

    def _affordable(self, row: Row) -> bool:
        if self.endpoint.max_usd is None:
            return True
        flying = sum(self.at_most_usd.values())
        return self.spent_usd + flying + self._at_most(row) <= self.endpoint.max_usd

    def _at_most(self, row: Row) -> float:
        """Dollars, from a prompt counted generously and an answer of full length."""
        if self.endpoint.price is None:
            return 0.0
        prompt = pace.prompt_tokens(row.messages)
        return token_usd(self.endpoint.price, prompt, self.cell.budget.max_new_tokens)

    def _one(self, row: Row) -> None:
        """In a thread of its own: ask, write down, make room."""
        failure = None
        try:
            if self.failure is None:
                self._write(row, self.client.ask(row.messages))
        except UserError as error:
            failure = str(error)
        except Exception as error:
            print(self.client.hide(traceback.format_exc()), file=sys.stderr)
            failure = self.client.hide(f"{type(error).__name__}: {' '.join(str(error).split())}")
        with self.changed:
            self.failure = self.failure or failure
            del self.at_most_usd[row.id]
            self.changed.notify_all()

    def _write(self, row: Row, answer: Answer) -> None:
        prediction = ApiPrediction(
            id=row.id,
            group=row.group,
            prediction=answer.text,
            reference=row.answer,
            **{name: value for name, value in vars(answer).items() if name != "text"},
        )
        with self.changed:
            append_line(self.path, prediction)
            now = time.perf_counter()
            self.recorder.emit(
                {
                    "event": "generated",
                    "t": time.time(),
                    "rows": 1,
                    "seconds": now - self.last,
                    "prompt_tokens": answer.prompt_tokens,
                    "new_tokens": answer.new_tokens,
                }
            )
            self.last = now
            self._spend(prediction)

    def _spend(self, answered: ApiPrediction) -> None:
        """Raises UserError where money is limited and the server doesn't say what was used."""
        price = self.endpoint.price
        if price is None:
            return
        usd = answer_usd(price, answered)
        if usd is None and self.endpoint.max_usd is not None:
            raise UserError(
                f"model {self.cell.model.name}: max_usd is set, but the server reports no usage"
            )
        self.spent_usd += usd or 0.0

    def totals(self) -> dict[str, int]:
        rows = read_lines(self.path)
        return {
            "rows": len(rows),
            "prompt_tokens": sum(row["prompt_tokens"] or 0 for row in rows),
            "new_tokens": sum(row["new_tokens"] or 0 for row in rows),
        }
