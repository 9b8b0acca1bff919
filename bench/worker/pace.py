"""Not faster than a provider allows: requests and tokens spread evenly over the minute."""

from __future__ import annotations

import time
from collections.abc import Sequence

CHARACTERS_A_TOKEN = 3  # of English about 4: too many tokens are safer than too few
TOKENS_A_MESSAGE = 8  # role and separators


class Pace:
    """Each request keeps the line busy for its share of a minute; the next one waits for that.

    Even, without bursts: providers also judge parts of a minute.
    """

    def __init__(
        self, requests_per_minute: float | None = None, tokens_per_minute: float | None = None
    ) -> None:
        self._request_s = 60 / requests_per_minute if requests_per_minute else 0.0
        self._token_s = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._free_at = 0.0

    def wait(self, tokens: int) -> float:
        """Sleep until a request of so many tokens may start; returns the seconds slept."""
        now = time.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + max(self._request_s, tokens * self._token_s)
        time.sleep(start - now)
        return start - now


def prompt_tokens(messages: Sequence[dict[str, str]]) -> int:
    """About how many tokens a prompt has, rather too many: the tokenizer isn't ours."""
    characters = sum(len(message["content"]) for message in messages)
    return characters // CHARACTERS_A_TOKEN + TOKENS_A_MESSAGE * len(messages)
