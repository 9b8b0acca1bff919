"""Models behind an API, asked for real: a server in this process that misbehaves as told, and
`transformers serve` with a tiny model."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import store
from bench.errors import UserError
from bench.record import ApiPrediction, Status
from bench.score import quality
from bench.spec import API, Cell
from bench.worker import data, endpoint, few_shot, pace
from bench.worker.recorder import Recorder

from ..conftest import ROOT, environment
from ..fake_api import ANSWER, Fake, Reply, completion, fake_api, refusal

pytest.importorskip("openai")

KEY = "sk-not-a-real-key-0123456789"
Cells = dict[tuple[str, str], Cell]
PRICE = {
    "usd_per_million_input": 1.0,
    "usd_per_million_output": 10.0,
    "provider": "Example",
    "date": "2026-11-01",
    "source": "https://example.com/prices",
}


@pytest.fixture
def api() -> Iterator[Fake]:
    with fake_api() as fake:
        yield fake


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_API_KEY", KEY)


def asked(cells: Cells, url: str, shots: int = 0, **fields: Any) -> Cell:
    """smoke's untuned cell, answered by an API."""
    found = {"base_url": url, "model": "made", "key_env": "TEST_API_KEY", "timeout_s": 20} | fields
    data_ = cells["tiny-llama", "base"].model_dump(mode="json")
    data_["model"] = {"name": "api-model", "endpoint": found}
    data_["target"] = API.model_dump(mode="json")
    data_["method"]["shots"] = shots
    return Cell.model_validate(data_)


def run(cell: Cell, attempt: Path) -> tuple[Status, str | None, dict[str, Any]]:
    return endpoint.generate(cell, attempt, Recorder(attempt, "generate"))


def predictions(attempt: Path) -> list[ApiPrediction]:
    found = store.Attempt(attempt).predictions
    assert all(isinstance(p, ApiPrediction) for p in found)
    return [p for p in found if isinstance(p, ApiPrediction)]


# ---------------------------------------------------------------- what is asked, what is kept


def test_prompts_are_those_of_local_models(cells: Cells, api: Fake, tmp_path: Path) -> None:
    extra = {"reasoning_effort": "low"}
    cell = asked(cells, api.url, shots=2, concurrency=3, extra_body=extra)
    api.answer = lambda body, n: Reply(completion().body, delay_s=0.05)
    status, reason, facts = run(cell, tmp_path)
    assert (status, reason) == (Status.OK, None)
    rows = few_shot.prompted(cell, data.rows(cell.dataset, "test", 8))
    assert sorted(map(str, (row.messages for row in rows))) == sorted(
        str(body["messages"]) for body in api.asked
    )
    body = api.asked[0]
    assert len(body["messages"]) == 1 + 2 * 2 + 1  # system, two examples, the question
    assert body["model"] == "made" and body["temperature"] == 0 and body["seed"] == cell.seed
    assert body["max_tokens"] == cell.budget.max_new_tokens and body["reasoning_effort"] == "low"
    assert set(api.keys) == {f"Bearer {KEY}"} and api.most_at_once == 3
    assert facts["rows"] == facts["planned_rows"] == 8 and facts["test_rows"] == 120
    assert facts["prompt_tokens"] == 800 and facts["new_tokens"] == 80
    assert 0.1 < facts["generate_s"] < 20
    found = predictions(tmp_path)
    assert [p.id for p in found] == sorted(row.id for row in rows)
    assert {p.prediction for p in found} == {ANSWER}
    first = found[0]
    assert first.response == completion().body and first.request_id == "request-1"
    assert first.prompt_tokens == 100 and first.new_tokens == 10 and first.latency_s > 0.04


def test_what_a_server_refuses_isn_t_sent(cells: Cells, api: Fake, tmp_path: Path) -> None:
    fields = {"temperature": None, "send_seed": False, "limit_name": "max_completion_tokens"}
    assert run(asked(cells, api.url, **fields), tmp_path)[0] is Status.OK
    assert set(api.asked[0]) == {"model", "messages", "max_completion_tokens"}


def test_no_key_where_none_is_wanted(
    cells: Cells, api: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would send $OPENAI_API_KEY to whoever base_url names."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert run(asked(cells, api.url, key_env=None), tmp_path)[0] is Status.OK
    assert set(api.keys) == {"Bearer none"}


def test_a_missing_key_is_told_before_anything_is_asked(
    cells: Cells, api: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_API_KEY")
    with pytest.raises(UserError, match="variable TEST_API_KEY isn't set"):
        run(asked(cells, api.url), tmp_path)
    assert not api.asked


def test_asking_loads_no_torch() -> None:
    code = (
        "import sys, bench.worker.__main__ as main, bench.worker.endpoint, openai\n"
        "main.classify(ValueError('x'))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], env=environment(), cwd=ROOT, check=True)


@pytest.mark.parametrize("key", [KEY, KEY + "/a+b="])
def test_a_key_is_found_however_json_writes_it(
    cells: Cells, api: Fake, tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_API_KEY", key)
    body = json.dumps(completion(f"you sent {key}").body).replace("/", "\\/")
    api.answer = lambda asked, n: Reply(body)
    assert run(asked(cells, api.url), tmp_path)[0] is Status.OK
    assert predictions(tmp_path)[0].prediction == "you sent [TEST_API_KEY]"


# ---------------------------------------------------------------- what goes wrong


def test_limits_errors_and_lost_connections_are_tried_again(
    cells: Cells, api: Fake, tmp_path: Path
) -> None:
    """Retry-After is waited for: a little longer than the library's own first pause."""
    troubles = {
        0: refusal(429, "slow down", **{"retry-after": "1.2"}),
        1: refusal(503, "overloaded", **{"retry-after": "0.05"}),
        3: Reply(None),
    }
    api.answer = lambda body, n: troubles.get(n, completion())
    started = time.monotonic()
    status, reason, _ = run(asked(cells, api.url, concurrency=1), tmp_path)
    assert (status, reason) == (Status.OK, None)
    assert time.monotonic() - started > 1.2 + 0.05 + 0.37
    assert sorted(p.retries for p in predictions(tmp_path)) == [0] * 6 + [1, 2]


def test_a_slow_server_ends_the_phase_and_rows_are_kept(
    cells: Cells, api: Fake, tmp_path: Path
) -> None:
    slow = asked(cells, api.url, timeout_s=0.4, max_retries=1, concurrency=1)
    api.answer = lambda body, n: Reply(completion().body, delay_s=0 if n < 3 else 1.0)
    status, reason, facts = run(slow, tmp_path)
    assert status is Status.ERROR and facts["rows"] == 3
    assert "didn't answer within timeout_s = 0.4 s, 2 times" in str(reason)
    answered = set(api.questions()[:3])
    api.asked.clear()
    api.answer = lambda body, n: completion()
    status, reason, facts = run(slow, tmp_path)
    assert (status, reason, facts["rows"]) == (Status.OK, None, 8)
    assert len(api.asked) == 5 and not answered & set(api.questions())  # nothing is paid twice
    assert facts["prompt_tokens"] == 800


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (refusal(401, "bad key"), r"HTTP 401, it doesn't accept \$TEST_API_KEY: .*bad key"),
        (refusal(403, "no"), r"HTTP 403, \$TEST_API_KEY may not use model 'made'"),
        (refusal(404, "no such model"), "HTTP 404, it knows no model 'made'.*no such model"),
        (refusal(400, "Unsupported parameter: 'max_tokens'"), "HTTP 400, see limit_name"),
        (refusal(429, "no quota left"), "HTTP 429, it still limits after 0 retries.*no quota left"),
        (Reply("<html>Welcome</html>"), "no chat completion: '<html>Welcome</html>'"),
        (Reply({"choices": []}), "no chat completion"),
        (Reply(None), "can't be reached: .*is the address right"),
    ],
    ids=["401", "403", "404", "400", "429", "html", "no choice", "cut"],
)
def test_failures_are_one_clear_line(
    cells: Cells, api: Fake, tmp_path: Path, reply: Reply, told: str
) -> None:
    api.answer = lambda body, n: reply
    status, reason, facts = run(asked(cells, api.url, max_retries=0, concurrency=1), tmp_path)
    assert status is Status.ERROR and facts["rows"] == 0 and len(api.asked) == 1
    assert reason is not None and "\n" not in reason and len(reason) < 500
    assert reason.startswith(f"model api-model: {api.url}")
    assert re.search(told, reason), reason


def test_nobody_listens(cells: Cells, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    status, reason, _ = run(asked(cells, url, max_retries=0), tmp_path)
    assert status is Status.ERROR and "can't be reached: " in str(reason)


def test_rows_that_are_never_answered_are_results(cells: Cells, api: Fake, tmp_path: Path) -> None:
    long = "This model's maximum context length is 4096 tokens. However, you requested 5000"
    replies = {
        0: refusal(400, long, "context_length_exceeded"),
        1: refusal(400, "flagged", "content_filter"),
        2: completion(None, "content_filter"),
        3: completion("half an ans", "length"),
    }
    api.answer = lambda body, n: replies.get(n, completion())
    status, reason, _ = run(asked(cells, api.url, concurrency=1), tmp_path)
    assert (status, reason) == (Status.OK, None)
    found = predictions(tmp_path)
    reasons = sorted(p.finish_reason for p in found)
    assert reasons[:4] == ["content_filter", "content_filter", "context_length", "length"]
    never = [p for p in found if "error" in p.response]
    assert [p.prediction for p in never] == ["", ""]
    assert [p.new_tokens for p in never] == [0, 0]  # not billed
    assert {p.response["error"]["code"] for p in never} == {
        "context_length_exceeded",
        "content_filter",
    }


def test_unreported_usage_is_unknown(cells: Cells, api: Fake, tmp_path: Path) -> None:
    api.answer = lambda body, n: completion(usage=None)
    assert run(asked(cells, api.url), tmp_path)[0] is Status.OK
    assert {p.prompt_tokens for p in predictions(tmp_path)} == {None}
    again = tmp_path / "limited"
    again.mkdir()
    limited = asked(cells, api.url, price=PRICE, max_usd=1.0, concurrency=1)
    status, reason, facts = run(limited, again)
    assert status is Status.ERROR and "the server reports no usage" in str(reason)
    assert facts["rows"] == 1  # the answer that was paid is kept


# ---------------------------------------------------------------- money, pace, secrets


def test_spending_stops_before_the_limit(cells: Cells, api: Fake, tmp_path: Path) -> None:
    """An answer costs 100 × $1 + 10 × $10 a million: $0.0002, and at most a little more."""
    limited = asked(cells, api.url, price=PRICE, max_usd=0.00085, concurrency=4)
    status, reason, facts = run(limited, tmp_path)
    assert status is Status.ERROR and 2 <= facts["rows"] <= 4
    assert facts["rows"] * 0.0002 <= 0.00085
    assert "could exceed max_usd = 0.00085" in str(reason)
    api.asked.clear()
    more = asked(cells, api.url, price=PRICE, max_usd=1.0)
    assert more.id == limited.id  # the same question
    assert run(more, tmp_path)[0] is Status.OK
    assert len(api.asked) == 8 - facts["rows"]


def test_requests_keep_to_the_minute(cells: Cells, api: Fake, tmp_path: Path) -> None:
    started = time.monotonic()
    cell = asked(cells, api.url, requests_per_minute=600)
    assert run(cell, tmp_path)[0] is Status.OK
    assert 0.7 < time.monotonic() - started < 15  # 8 requests, 0.1 s apart


def test_tokens_keep_to_the_minute() -> None:
    limited = pace.Pace(tokens_per_minute=60_000)
    waits = [limited.wait(100) for _ in range(4)]
    assert waits[0] == 0 and 0.2 < sum(waits) < 0.35
    assert sum(pace.Pace().wait(10_000) for _ in range(3)) == 0


@pytest.mark.parametrize("status", [200, 401])
def test_the_key_reaches_no_file(
    cells: Cells, api: Fake, tmp_path: Path, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Even where a server sends it back."""
    echo = f"you sent {KEY}"
    bad = refusal(401, echo, **{"x-request-id": KEY})
    api.answer = lambda body, n: completion(echo) if status == 200 else bad
    cell = asked(cells, api.url)
    store.write_json(tmp_path / "cell.json", cell)
    _, reason, _ = run(cell, tmp_path)
    if status == 200:
        assert predictions(tmp_path)[0].prediction == "you sent [TEST_API_KEY]"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"cell.json", "events.jsonl"} <= {path.name for path in files}
    for path in files:
        assert KEY not in path.read_text(encoding="utf-8"), path
    said = capfd.readouterr()
    assert KEY not in said.out + said.err + str(reason)


def test_a_placeholder_is_no_secret(
    cells: Cells, api: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_API_KEY", "hello")  # a word of the answer
    assert run(asked(cells, api.url), tmp_path)[0] is Status.OK
    assert {p.prediction for p in predictions(tmp_path)} == {ANSWER}


# ---------------------------------------------------------------- a real model server


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def served(cells: Cells, cache: Path) -> Iterator[tuple[str, str]]:
    """`transformers serve` with tiny-llama's own weights: (address, model)."""
    for package in ("fastapi", "uvicorn"):
        pytest.importorskip(package)
    from bench.worker import weights

    folder, _ = weights.locate(cells["tiny-llama", "base"].model)
    port = free_port()
    code = "from transformers.cli.transformers import main; main()"
    command = [sys.executable, "-c", code, "serve", folder, "--port", str(port)]
    more = ["--host", "127.0.0.1", "--device", "cpu", "--dtype", "float32"]
    log = cache / "serve.log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [*command, *more], env=environment(cache), stdout=file, stderr=file, cwd=ROOT
        )
    try:
        _until_up(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}/v1", folder
    finally:
        server.kill()
        server.wait()


def _until_up(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 240
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text(encoding="utf-8")[-2000:]
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server never came up")


@pytest.mark.serving
def test_the_same_weights_answer_the_same_behind_an_api(
    cells: Cells, served: tuple[str, str], tmp_path: Path
) -> None:
    from bench.worker import generate

    url, model = served
    local = cells["tiny-llama", "base"]
    behind = asked(cells, url, model=model, key_env=None, concurrency=1)
    theirs = _attempt(tmp_path, behind)
    status, reason, facts = run(behind, theirs)
    assert (status, reason) == (Status.OK, None)
    ours = _attempt(tmp_path, local)
    status, _, local_facts = generate.generate(local, ours, Recorder(ours, "generate"))
    assert status is Status.OK
    assert facts["rows_fingerprint"] == local_facts["rows_fingerprint"]
    assert facts["prompt_tokens"] == local_facts["prompt_tokens"]
    mine, other = store.Attempt(ours).predictions, predictions(theirs)
    same = [a.prediction.strip() == b.prediction.strip() for a, b in zip(mine, other, strict=True)]
    assert all(same), [(a.prediction, b.prediction) for a, b in zip(mine, other, strict=True)]
    scores = [quality.scored(local.dataset, found)[0] for found in (mine, other)]
    assert scores[0].metrics == scores[1].metrics
    assert {p.response["model"].partition("@")[0] for p in other} == {model}
    assert all(0 < (p.new_tokens or 0) <= behind.budget.max_new_tokens for p in other)


def _attempt(results: Path, cell: Cell) -> Path:
    folder = store.cell_folder(results, cell)
    store.write_json(folder / "cell.json", cell)
    return store.new_attempt(folder)
