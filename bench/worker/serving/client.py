"""Streaming requests to an OpenAI-compatible server, a fixed number of them under way at a time.

Closed loop: each of `concurrency` clients sends its next request when its last one has ended, so
the load never outruns the server.  What is timed, seen from the client:

    first token   request sent → first text of the answer (the role's chunk before it is none)
    total         request sent → end of the stream

Chunks aren't tokens: a server may send several tokens in one, or hold a token back until its
characters are whole.  Tokens are what the server counts in `usage`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Question:
    """A test row as it is asked: messages for a chat model, else the text itself."""

    row: str
    messages: list[dict[str, str]] | None = None
    prompt: str | None = None


@dataclass(frozen=True)
class Answer:
    question: Question
    text: str
    first_token_s: float | None
    total_s: float
    prompt_tokens: int | None
    new_tokens: int | None
    error: str | None = None


@dataclass(frozen=True)
class Asking:
    """Where and how questions are asked."""

    url: str
    model: str
    max_new_tokens: int
    limit_s: float


def hold(
    asking: Asking,
    questions: Sequence[Question],
    concurrency: int,
    told: Callable[[Answer], None],
) -> float:
    """Ask everything, `concurrency` at a time; returns the seconds from first start to last end."""
    return asyncio.run(_hold(asking, questions, concurrency, told))


async def _hold(
    asking: Asking,
    questions: Sequence[Question],
    concurrency: int,
    told: Callable[[Answer], None],
) -> float:
    from openai import AsyncOpenAI

    waiting = iter(questions)

    async def ask_on(client: Any) -> None:
        for question in waiting:
            told(await ask(client, asking, question))

    async with AsyncOpenAI(
        base_url=f"{asking.url}/v1", api_key="none", max_retries=0, timeout=asking.limit_s
    ) as client:
        started = time.perf_counter()
        await asyncio.gather(*(ask_on(client) for _ in range(concurrency)))
        return time.perf_counter() - started


async def ask(client: Any, asking: Asking, question: Question) -> Answer:
    """One request to its end; a failure is an answer with an `error`."""
    from openai import OpenAIError

    parts: list[str] = []
    first: float | None = None
    usage: Any = None
    error: str | None = None
    started = time.perf_counter()
    try:
        async with asyncio.timeout(asking.limit_s):
            async for text, counted in _stream(client, asking, question):
                usage = counted or usage
                if text:
                    first = first or time.perf_counter() - started
                    parts.append(text)
    except TimeoutError:
        error = f"no end after {asking.limit_s:g} s"
    except OpenAIError as problem:
        error = f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:300]
    total = time.perf_counter() - started
    if error is None and usage is None:
        error = "the server counted no tokens (no usage at the end of the stream)"
    return Answer(
        question=question,
        text="".join(parts),
        first_token_s=first,
        total_s=total,
        prompt_tokens=usage.prompt_tokens if usage else None,
        new_tokens=usage.completion_tokens if usage else None,
        error=error,
    )


async def _stream(
    client: Any, asking: Asking, question: Question
) -> AsyncIterator[tuple[str, Any]]:
    """(text, usage) of each chunk; thoughts count as text."""
    common: dict[str, Any] = {
        "model": asking.model,
        "max_tokens": asking.max_new_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if question.messages is None:
        async for chunk in await client.completions.create(prompt=question.prompt, **common):
            yield chunk.choices[0].text if chunk.choices else "", chunk.usage
        return
    stream = await client.chat.completions.create(messages=question.messages, **common)
    async for chunk in stream:
        delta = chunk.choices[0].delta if chunk.choices else None
        text = (getattr(delta, "reasoning_content", None) or "") if delta else ""
        text += (delta.content or "") if delta else ""
        yield text, chunk.usage
