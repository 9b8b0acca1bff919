"""A server that streams like an OpenAI-compatible one, and misbehaves on request:

python fake_server.py PORT fine|sick|leaves|errors|silent
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FIRST_S, EACH_S, TOKENS = 0.2, 0.02, 6
MODE = sys.argv[2]
under_way: list[int] = []
counts: list[int] = []
guard = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(
            503 if MODE == "sick" else 200, json.dumps({"most": max(counts, default=0)}).encode()
        )

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with guard:
            under_way.append(1)
            counts.append(len(under_way))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self._chat(body["messages"][-1]["content"])
        with guard:
            under_way.pop()

    def _chat(self, asked: str) -> None:
        self._chunk({"role": "assistant", "content": ""})  # no token yet
        time.sleep(FIRST_S)
        if MODE == "errors":
            self.wfile.write(b'data: {"error": {"message": "CUDA out of memory"}}\n\n')
            return
        self._chunk({"reasoning_content": "well, "})
        time.sleep(EACH_S * (TOKENS - 1))
        self._chunk({"content": f"echo {asked}"})  # several tokens in one chunk
        if MODE != "silent":
            self._chunk({}, usage={"prompt_tokens": 3, "completion_tokens": TOKENS})
        self.wfile.write(b"data: [DONE]\n\n")

    def _chunk(self, delta: dict[str, str], usage: dict[str, int] | None = None) -> None:
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        chunk |= {"choices": [{"index": 0, "delta": delta}]}
        chunk |= {"usage": usage and usage | {"total_tokens": sum(usage.values())}}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


if MODE == "leaves":
    sys.exit("no room for the model")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
