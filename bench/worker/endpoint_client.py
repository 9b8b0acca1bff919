"""One question to an OpenAI-compatible endpoint: the answer as received, or one clear line.

Retries (408, 409, 429, 5xx, timeouts, lost connections), their back-off and Retry-After are the
client library's.  Nothing that leaves this module holds the key, whatever a server sends back.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench import environment
from bench.errors import UserError
from bench.spec import Cell

SHORTEST_SECRET = 12  # shorter ones ("none", "EMPTY") are placeholders, and words of answers
Finish = Literal["stop", "length", "content_filter", "context_length"]
FINISHES: dict[str, Finish] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}
FILTERED = ("content_filter", "content_policy_violation")
TOO_LONG = re.compile(
    r"context[_ ](length|size|window)|maximum context|prompt is too long|too many (input )?tokens",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Answer:
    """What came back; tokens are None where the server reports no usage."""

    text: str
    finish_reason: Finish
    prompt_tokens: int | None
    new_tokens: int | None
    response: dict[str, Any]
    latency_s: float
    request_id: str | None = None
    retries: int = 0


class Client:
    """The endpoint of a cell's model.  `ask` may be called from several threads."""

    def __init__(self, cell: Cell) -> None:
        """Raises UserError where the key or the library is missing."""
        assert cell.model.endpoint is not None
        self.cell = cell
        self.endpoint = cell.model.endpoint
        self._key = environment.api_key(cell.model)
        os.environ.pop("OPENAI_LOG", None)  # would write requests into the log
        try:
            import openai
        except ImportError:
            raise UserError(
                'models behind an API need the openai package: pip install "adaptbench[api]"'
            ) from None
        self._openai = openai
        self._client = openai.OpenAI(
            # Never empty: the library would send $OPENAI_API_KEY to a server that isn't OpenAI's
            api_key=self._key or "none",
            base_url=self.endpoint.base_url,
            timeout=self.endpoint.timeout_s,
            max_retries=self.endpoint.max_retries,
        )

    def hide(self, text: str) -> str:
        """The text without the key."""
        if self._key is None or len(self._key) < SHORTEST_SECRET:
            return text
        return text.replace(self._key, f"[{self.endpoint.key_env}]")

    def ask(self, messages: Sequence[dict[str, str]]) -> Answer:
        """Raises UserError where there is no answer, and asking another row won't help."""
        try:
            raw = self._client.chat.completions.with_raw_response.create(**self._request(messages))
        except self._openai.APIStatusError as error:
            return self._refused(error)
        except self._openai.APITimeoutError:
            raise UserError(
                f"{self._who()} didn't answer within timeout_s = {self.endpoint.timeout_s:g} s, "
                f"{self.endpoint.max_retries + 1} times: raise it, or lower `concurrency`"
            ) from None
        except self._openai.APIConnectionError as error:
            cause = self.hide(" ".join(str(error.__cause__ or error).split()))[:200]
            raise UserError(
                f"{self._who()} can't be reached: {cause}: is the address right, the server up?"
            ) from None
        response = raw.http_response
        return self._answer(
            self.hide(response.text),
            latency_s=response.elapsed.total_seconds(),
            request_id=self._id(response.headers),
            retries=raw.retries_taken,
        )

    def _request(self, messages: Sequence[dict[str, str]]) -> dict[str, Any]:
        asked: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": list(messages),
            self.endpoint.limit_name: self.cell.budget.max_new_tokens,
            "extra_body": self.endpoint.extra_body or None,
        }
        if self.endpoint.temperature is not None:
            asked["temperature"] = self.endpoint.temperature
        if self.endpoint.send_seed:
            asked["seed"] = self.cell.seed
        return asked

    def _answer(self, body: str, **more: Any) -> Answer:
        try:
            # Hidden again: a server's JSON may have escaped some of the key's characters
            response = json.loads(self.hide(json.dumps(json.loads(body), ensure_ascii=False)))
            choice = response["choices"][0]
            message = choice["message"]
            # A refusal is said in words of its own: they are what a user would read
            text = message.get("content") or message.get("refusal") or ""
            usage = response.get("usage") or {}
            if not isinstance(text, str):
                raise TypeError
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            start = " ".join(body.split())[:160]
            raise UserError(
                f"{self._who()} answered with something that is no chat completion: {start!r}"
            ) from None
        return Answer(
            text=text,
            finish_reason=FINISHES.get(choice.get("finish_reason"), "stop"),
            prompt_tokens=usage.get("prompt_tokens"),
            new_tokens=usage.get("completion_tokens"),
            response=response,
            **more,
        )

    def _refused(self, error: Any) -> Answer:
        """A row that this endpoint never answers is a result; everything else ends the phase."""
        message = self.hide(" ".join(str(error.message).split()))[:300]
        finish: Finish | None = None
        if error.status_code in (400, 413, 422):
            if error.code in FILTERED:
                finish = "content_filter"
            elif TOO_LONG.search(f"{error.code} {message}"):
                finish = "context_length"
        if finish is None:
            raise UserError(self._why(error, message)) from None
        return Answer(
            text="",
            finish_reason=finish,
            prompt_tokens=0,  # what is refused isn't billed
            new_tokens=0,
            response={
                "error": {"status": error.status_code, "code": error.code, "message": message}
            },
            latency_s=error.response.elapsed.total_seconds(),
            request_id=self._id(error.response.headers),
        )

    def _why(self, error: Any, message: str) -> str:
        status = error.status_code
        key = f"${self.endpoint.key_env}" if self.endpoint.key_env else "no key"
        remedies = {
            401: f"it doesn't accept {key}",
            403: f"{key} may not use model {self.endpoint.model!r}",
            404: f"it knows no model {self.endpoint.model!r}, or base_url isn't its API's",
            429: f"it still limits after {self.endpoint.max_retries} retries: set "
            "requests_per_minute and tokens_per_minute, or the account has no money left",
        }
        hint = remedies.get(status, "")
        if status == 400:
            hint = "see limit_name, temperature, send_seed and extra_body of the model's endpoint"
        return f"{self._who()}: HTTP {status}{f', {hint}' if hint else ''}: {message}"

    def _who(self) -> str:
        return f"model {self.cell.model.name}: {self.endpoint.base_url}"

    def _id(self, headers: Any) -> str | None:
        found = headers.get("x-request-id")
        return None if found is None else self.hide(str(found))
