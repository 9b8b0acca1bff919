"""A real HTTP server on a port of its own that answers chat completions as a test tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER = "reply: hello\nintent: fee\nentities: none"


@dataclass
class Reply:
    body: Any = None  # None: the connection is cut
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


def completion(text: str | None = ANSWER, finish: str = "stop", **more: Any) -> Reply:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return Reply({"id": "chat-1", "model": "made", "choices": [choice], "usage": usage} | more)


def refusal(status: int, message: str, code: str | None = None, **headers: str) -> Reply:
    return Reply({"error": {"message": message, "code": code}}, status, headers)


@dataclass
class Fake:
    """`answer(body, n)` says what the n-th request (from 0) gets."""

    url: str = ""
    answer: Callable[[dict[str, Any], int], Reply] = lambda body, n: completion()
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    most_at_once: int = 0
    now: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def questions(self) -> list[str]:
        return [body["messages"][-1]["content"] for body in self.asked]


@contextmanager
def fake_api() -> Iterator[Fake]:
    fake = Fake()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with fake.lock:
                number = len(fake.asked)
                fake.asked.append(body)
                fake.keys.append(self.headers["authorization"])
                fake.now += 1
                fake.most_at_once = max(fake.most_at_once, fake.now)
            try:
                self._reply(fake.answer(body, number))
            finally:
                with fake.lock:
                    fake.now -= 1

        def _reply(self, reply: Reply) -> None:
            time.sleep(reply.delay_s)
            if reply.body is None:
                self.close_connection = True
                return
            text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
            data = text.encode()
            try:
                self.send_response(reply.status)
                headers = {"x-request-id": "request-1", "content-length": str(len(data))}
                for name, value in (headers | reply.headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True  # who asked has gone: a timeout, a kill

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
