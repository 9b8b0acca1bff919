"""The serve phase: what a trained model takes to answer through a real server.

Each variant (the adapter beside its base, or merged into it) gets a server of its own, a child of
this process, and is asked the test rows at each concurrency.  This process imports no torch and
touches no GPU: only the server's memory counts, and it says so itself.  Samples are events; the
report makes percentiles of them.
"""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import cache
from bench.errors import UserError
from bench.record import GenerateRecord, LoadEvent, RequestEvent, ServedVariant, Status
from bench.spec import Cell, HubWeights, PathWeights, Serving
from bench.store import read_json, read_lines, read_record
from bench.worker import data, few_shot
from bench.worker.recorder import Recorder
from bench.worker.serving import child, client, engines, proof, variants

Ending = tuple[Status, str | None, dict[str, Any]]
LOG = "server.txt"
COUNTED = ("dtypes", "held_bytes", "quantized_params", "adapted_modules", "weights_sha256")


def serve(cell: Cell, attempt: Path, recorder: Recorder) -> Ending:
    """Run the phase; returns (status, reason, facts for ServeRecord)."""
    asked = cell.serve
    assert asked is not None  # the runner starts the phase only then
    outside = dict(os.environ)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of this process, should a library look for GPUs
    recorder.set_baseline()
    settings = asked.identity()
    names = variants.names(cell)
    recorder.emit({"event": "plan", "t": time.time(), "settings": settings, "rows": _rows(cell)})
    facts: dict[str, Any] = {"settings": settings, "variants": []}
    if cell.method.trains and not cache.trained(attempt).is_dir():
        reason = (
            "the trained weights are gone from the cache: `bench run --fresh` trains them again, "
            "`keep_weights: true` in the budget would have kept them"
        )
        return Status.SKIPPED, reason, facts
    with recorder.stage("prepare"):
        questions = _questions(cell)
    phase = _Phase(cell, asked, attempt, recorder, questions, outside)
    done = []
    for name in names:
        found = phase.variant(name)
        recorder.emit({"event": "variant", "t": time.time(), "record": found.model_dump()})
        done.append(found)
    facts["variants"] = [found.model_dump(mode="json") for found in done]
    bad = next((found for found in done if found.status is not Status.OK), None)
    if bad is None:
        return Status.OK, None, facts
    return bad.status, f"{bad.name}: {bad.reason}", facts


def _rows(cell: Cell) -> int:
    """Requests of the whole phase, for the progress bar."""
    assert cell.serve is not None
    each = cell.serve.requests * len(cell.serve.concurrencies) + cell.serve.warmup_requests
    return each * len(variants.names(cell))


def _questions(cell: Cell) -> list[client.Question]:
    """The rows that the generate phase answers, with the same examples before them."""
    rows = data.rows(cell.dataset, "test", cell.budget.max_test_rows)
    return [_question(cell, row) for row in few_shot.prompted(cell, rows)]


def _question(cell: Cell, row: data.Row) -> client.Question:
    if cell.model.chat:
        return client.Question(row.id, messages=row.messages)
    return client.Question(row.id, prompt=data.plain_prompt(row))


class _Phase:
    """One cell's servers, one after another."""

    def __init__(
        self,
        cell: Cell,
        asked: Serving,
        attempt: Path,
        recorder: Recorder,
        questions: Sequence[client.Question],
        environment: dict[str, str],
    ) -> None:
        self.cell, self.asked, self.attempt, self.recorder = cell, asked, attempt, recorder
        self.questions, self.environment = questions, environment
        self.answers: dict[str, str] = {}

    def variant(self, name: str) -> ServedVariant:
        """Serve it, ask it, and say how it went."""
        found = ServedVariant(name=name, status=Status.OK)
        self.answers = {}
        try:
            self._measure(found)
            self._prove(found)
        except child.ServerFailed as failed:
            found.status, found.reason = failed.status, str(failed)
        except UserError as error:
            found.status, found.reason = Status.ERROR, str(error)
        return found

    def _measure(self, found: ServedVariant) -> None:
        found.engine, found.engine_version = engines.choose(self.cell)
        if found.name == variants.MERGED:
            with self.recorder.stage("merge"):
                self._merge()
        with tempfile.TemporaryDirectory() as folder:
            facts = Path(folder) / "facts.json"
            command = functools.partial(self._command, found, facts)
            with (
                self.recorder.stage("start"),
                child.running(
                    command, self.attempt / LOG, self.environment, self.asked.start_limit_s
                ) as server,
            ):
                found.start_s = server.start_s
                found.options = server.command.options
                self._add_facts(found, read_json(facts))
                found.stored_bytes = self._stored_bytes(found.name)
                self._ask(found, server)

    def _command(self, found: ServedVariant, facts: Path, port: int) -> engines.Command:
        if found.engine == "vllm":
            from bench.worker import weights

            base, _ = weights.locate(self.cell.model)
            trained = variants.trained_folder(self.cell, self.attempt, found.name)
            return engines.vllm(self.cell, base, trained, found.name, port)
        return engines.transformers(self.cell, self.attempt, found.name, port, facts)

    def _merge(self) -> None:
        """Raises UserError with the merging process's last line."""
        done = subprocess.run(
            [sys.executable, "-m", "bench.worker.serving.merge", str(self.attempt)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment, "BENCH_PARENT_PID": str(os.getpid())},
            check=False,
        )
        sys.stderr.write(done.stderr)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:300]
            raise UserError(f"the adapter can't be merged: {last}")

    def _stored_bytes(self, name: str) -> int | None:
        """Weight files that deploying the variant needs; None where they aren't files here."""
        trained = variants.trained_folder(self.cell, self.attempt, name)
        served = variants.as_served(self.cell, name)
        whole = served.method.kind == "full"
        sizes = [_weights_bytes(trained)] if trained else []
        if not whole:
            sizes.append(_weights_bytes(_base_folder(self.cell)))
        known = [size for size in sizes if size]
        return sum(known) if len(known) == len(sizes) else None

    # ------------------------------------------------------------ asking

    def _ask(self, found: ServedVariant, server: child.Server) -> None:
        new = self.asked.max_new_tokens or self.cell.budget.max_new_tokens
        limit = self.asked.request_limit_s
        asking = client.Asking(server.url, server.command.model, new, limit)
        warm = _some(list(reversed(self.questions)), self.asked.warmup_requests)
        with self.recorder.stage("warm-up"):
            self._hold(found.name, asking, warm, max(self.asked.concurrencies), counted=False)
        server.check()
        asked = _some(self.questions, self.asked.requests)
        for concurrency in self.asked.concurrencies:
            with self.recorder.stage("serve"):
                seconds = self._hold(found.name, asking, asked, concurrency)
            server.check()
            load = LoadEvent(
                t=time.time(), variant=found.name, concurrency=concurrency, seconds=seconds
            )
            self.recorder.emit(load)
        found.host_bytes, found.device_bytes = server.host_bytes(), server.device_bytes()

    def _hold(
        self,
        name: str,
        asking: client.Asking,
        questions: Sequence[client.Question],
        concurrency: int,
        *,
        counted: bool = True,
    ) -> float:
        errors: list[str] = []

        def told(answer: client.Answer) -> None:
            if answer.error:
                errors.append(answer.error)
            else:
                self.answers[answer.question.row] = answer.text
            self.recorder.emit(_event(answer, name, concurrency, counted))

        seconds = client.hold(asking, questions, concurrency, told)
        if errors and len(errors) == len(questions):
            status = Status.OOM_GPU if "out of memory" in errors[0].lower() else Status.ERROR
            raise child.ServerFailed(status, f"every request failed: {errors[0]}")
        return seconds

    def _add_facts(self, found: ServedVariant, facts: dict[str, Any] | None) -> None:
        """What the server counted on its model; a foreign server counts nothing."""
        if facts is None:
            return
        for name in COUNTED:
            setattr(found, name, facts[name])
        found.options = {**found.options, "threads": facts["threads"]}
        problems = list(facts["problems"])
        plain = found.name == variants.PLAIN
        if plain and self.cell.method.adapter and not found.adapted_modules:
            problems.append("the server's model has no adapter")
        generated = read_record(GenerateRecord, self.attempt / "generate.json")
        if plain and generated and generated.weights_sha256 != found.weights_sha256:
            problems.append("the trained files are not those that were evaluated")
        if problems:
            found.status, found.reason = Status.INVALID, "; ".join(problems)

    def _prove(self, found: ServedVariant) -> None:
        """Compare with the generate phase's answers; other weights make the variant invalid."""
        rows = read_lines(self.attempt / "predictions.jsonl")
        generated = {row["id"]: str(row["prediction"]) for row in rows}
        asked = self.asked.max_new_tokens
        whole = asked is None or asked == self.cell.budget.max_new_tokens
        found_alike = proof.agreement(self.answers, generated, whole)
        found.compared_rows = found_alike.rows
        found.same_answers = found_alike.same_answers
        found.same_openings = found_alike.same_openings
        if found_alike.problem and found.status is Status.OK:
            found.status, found.reason = Status.INVALID, found_alike.problem
            if found.name == variants.MERGED and self.cell.method.quantization:
                found.reason += " (trained beside a quantised base, merged into the unquantised)"


def _some(questions: Sequence[client.Question], count: int) -> list[client.Question]:
    """So many of them; where there are fewer, they are asked again."""
    return list(itertools.islice(itertools.cycle(questions), count))


def _event(answer: client.Answer, name: str, concurrency: int, counted: bool) -> RequestEvent:
    return RequestEvent(
        t=time.time(),
        variant=name,
        concurrency=concurrency,
        counted=counted,
        row=answer.question.row,
        first_token_s=answer.first_token_s,
        total_s=answer.total_s,
        prompt_tokens=answer.prompt_tokens,
        new_tokens=answer.new_tokens,
        error=answer.error,
    )


def _base_folder(cell: Cell) -> Path | None:
    """Where the base's files are; None where the hub's cache holds none of them."""
    weights = cell.model.weights
    if isinstance(weights, PathWeights):
        return Path(weights.path)
    if not isinstance(weights, HubWeights):
        return cache.model_folder(cell.model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(
            weights.id,
            revision=weights.revision,
            allow_patterns=["*.safetensors"],
            local_files_only=True,
        )
    except LocalEntryNotFoundError:
        return None
    return Path(found)


def _weights_bytes(folder: Path | None) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) if folder else 0
