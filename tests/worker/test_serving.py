"""The client's clock, servers that misbehave, the proof: against small real servers."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from bench.record import Status
from bench.spec import Serving
from bench.worker.serving import child, client, engines, proof, variants
from bench.worker.serving.child import Server, ServerFailed
from bench.worker.serving.client import Answer, Asking, Question

from ..report.made import cell, gpu_target

FAKE = Path(__file__).with_name("fake_server.py")
QUESTIONS = [
    Question(f"row-{n}", messages=[{"role": "user", "content": f"q{n}"}]) for n in range(6)
]


def command(mode: str) -> object:
    def made(port: int) -> engines.Command:
        return engines.Command([sys.executable, str(FAKE), str(port), mode], "m", {})

    return made


@contextmanager
def running(mode: str, folder: Path, limit_s: float = 60) -> Iterator[Server]:
    with child.running(command(mode), folder / "server.txt", dict(os.environ), limit_s) as server:  # type: ignore[arg-type]
        yield server


def ask(server: Server, concurrency: int, limit_s: float = 20) -> tuple[list[Answer], float]:
    answers: list[Answer] = []
    asking = Asking(server.url, "m", 8, limit_s)
    seconds = client.hold(asking, QUESTIONS, concurrency, answers.append)
    return answers, seconds


# ---------------------------------------------------------------- the client


def test_what_the_client_times(tmp_path: Path) -> None:
    """First token: after the role's empty chunk; tokens: the server's count, not the chunks'."""
    with running("fine", tmp_path) as server:
        answers, seconds = ask(server, concurrency=3)
        with urllib.request.urlopen(server.url) as told:
            assert json.load(told)["most"] == 3  # never more under way, and really so many
        assert server.start_s and server.host_bytes()
    assert sorted(a.question.row for a in answers) == [q.row for q in QUESTIONS]
    for answer in answers:
        assert answer.error is None and answer.text.startswith("well, echo q")
        assert answer.new_tokens == 6 and answer.prompt_tokens == 3
        assert answer.first_token_s and 0.2 <= answer.first_token_s < answer.total_s - 0.09
    assert seconds >= 2 * 0.3  # two rounds of three


@pytest.mark.parametrize(
    ("mode", "why"), [("errors", "out of memory"), ("silent", "counted no tokens")]
)
def test_a_failed_request_is_an_error_not_a_fast_answer(
    tmp_path: Path, mode: str, why: str
) -> None:
    with running(mode, tmp_path) as server:
        answers, _ = ask(server, concurrency=2)
    assert all(answer.error and why in answer.error for answer in answers)


def test_a_request_without_an_end_is_given_up(tmp_path: Path) -> None:
    with running("fine", tmp_path) as server:
        answers, seconds = ask(server, concurrency=6, limit_s=0.1)
    assert seconds < 5 and all(a.error and "no end after 0.1 s" in a.error for a in answers)


# ---------------------------------------------------------------- servers that fail


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"


def test_a_server_that_leaves_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match="exit code 1: no room for the model") as failed,
        running("leaves", tmp_path),
    ):
        pass
    assert failed.value.status is Status.ERROR


def test_a_server_that_never_gets_healthy_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Server] = []
    wait = Server.wait_healthy

    def kept(self: Server, limit_s: float) -> None:
        made.append(self)
        wait(self, limit_s)

    monkeypatch.setattr(Server, "wait_healthy", kept)
    with (
        pytest.raises(ServerFailed, match="not healthy after 2 s") as failed,
        running("sick", tmp_path, 2),
    ):
        pass
    assert failed.value.status is Status.TIMEOUT and gone(made[0].process.pid)


def test_a_killed_server_is_called_so(tmp_path: Path) -> None:
    with running("fine", tmp_path) as server:
        server.check()
        server.process.kill()
        server.process.wait()
        with pytest.raises(ServerFailed, match="killed by signal SIGKILL") as failed:
            server.check()
    assert failed.value.status is Status.KILLED


def test_a_taken_port_is_tried_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even though another program answers on it, healthy as can be."""
    free = child.free_port
    with running("fine", tmp_path) as other:
        taken = other.port
        ports = iter([taken, free()])
        monkeypatch.setattr(child, "free_port", lambda: next(ports))
        with running("fine", tmp_path) as server:
            assert server.port != taken
            answers, _ = ask(server, concurrency=2)
    assert not any(answer.error for answer in answers)


def test_a_guarded_server_dies_with_its_worker(tmp_path: Path) -> None:
    """Whatever kills the worker, and although it never got to stop the server."""
    port = child.free_port()
    starter = (
        "import os, subprocess, sys, time\n"
        "env = {**os.environ, 'BENCH_PARENT_PID': str(os.getpid())}\n"
        "server = subprocess.Popen([sys.executable, '-m', 'bench.worker.serving.guard', "
        f"sys.executable, {str(FAKE)!r}, '{port}', 'fine'], env=env)\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    worker = psutil.Popen([sys.executable, "-c", starter], stdout=-1, text=True)
    pid = int(worker.stdout.readline())
    end = time.monotonic() + 60
    while not _listens(port):
        assert time.monotonic() < end
        time.sleep(0.05)
    worker.kill()
    worker.wait()
    while not gone(pid):
        assert time.monotonic() < end, "the server outlived its worker"
        time.sleep(0.05)


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


# ---------------------------------------------------------------- commands and proof


def test_variants_follow_the_method() -> None:
    both = Serving(merged=(False, True))
    assert variants.names(cell("m", "lora", serve=both)) == ["plain", "merged"]
    assert variants.names(cell("m", "full", serve=both)) == ["plain"]
    assert variants.names(cell("m", "base", serve=both)) == ["plain"]
    merged = variants.as_served(cell("m", "qlora", serve=both), "merged").method
    assert (merged.kind, merged.adapter, merged.quantization) == ("full", None, None)


def test_vllm_s_command() -> None:
    asked = cell("m", "qlora", target=gpu_target(), serve=Serving(merged=(False, True)))
    made = engines.vllm(asked, "/base", Path("/adapter"), "plain", 8123)
    line = " ".join(made.arguments)
    assert "guard vllm serve /base --dtype bfloat16" in line and "--port 8123" in line
    assert f"--enable-lora --lora-modules {made.model}=/adapter" in line
    assert "--max-lora-rank 16" in line and "--quantization bitsandbytes" in line
    assert "--tensor-parallel-size 4" in line and "served-model-name" not in line
    merged = engines.vllm(asked, "/base", Path("/merged"), "merged", 8123)
    line = " ".join(merged.arguments)
    assert "serve /merged" in line and f"--served-model-name {merged.model}" in line
    assert "lora-modules" not in line and "bitsandbytes" not in line


def test_other_weights_are_found_by_their_answers() -> None:
    trained = {f"r{n}": f"intent: refund\nreply: we send {n} back to you" for n in range(8)}
    rounding = {row: text[:40] + " otherwise" for row, text in trained.items()}
    base = {row: "I am sorry to hear that, " + text for row, text in trained.items()}
    same = proof.agreement(trained, trained, whole=True)
    assert same == proof.Agreement(8, 1.0, 1.0) and same.problem is None
    near = proof.agreement(rounding, trained, whole=True)
    assert near.same_answers == 0 and near.problem is None
    far = proof.agreement(base, trained, whole=True)
    assert far.problem and "of 8 rows only 0%" in far.problem
    cut = {row: text[:20] for row, text in trained.items()}
    assert proof.agreement(cut, trained, whole=False).same_answers == 1
    thought = {row: f"<think>\n\n</think>\n{text}" for row, text in trained.items()}
    assert proof.agreement(thought, trained, whole=True).same_answers == 1
    assert proof.agreement(base, {}, whole=True).problem is None  # nothing to compare with
