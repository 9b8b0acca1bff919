"""Rows → prompts and answers → token ids.  What is trained on is what is generated from.

Prompt and answer are tokenised apart, so that a training example begins with exactly the ids that
generation starts from, and the answer's loss mask is exact.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bench.errors import UserError
from bench.score.answers import format_answer
from bench.spec import Cell, DatasetSpec, Source

TEMPLATES = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
LOADERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
THOUGHT, END_OF_THOUGHT = "<think>\n", "</think>\n\n"
SAMPLE_SEED = 0  # samples are the same for every cell and seed: rows are compared pairwise


@dataclass(frozen=True)
class Row:
    """One example before tokenisation.  `answer` holds the true value of each answer field."""

    id: str
    group: str | None
    messages: list[dict[str, str]]
    answer: dict[str, Any]
    reasoning: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class Encoded:
    """Token ids of a training example; labels are -100 on the prompt."""

    input_ids: list[int]
    labels: list[int]
    truncated: bool


def rows(dataset: DatasetSpec, split: str, limit: int | None = None) -> list[Row]:
    """The rows of `train`, `validation` or `test`, or a fixed sample of `limit` of them.

    Raises UserError for an unreachable source, a missing column or a broken template.
    """
    sources = getattr(dataset, split) or dataset.train
    found = [
        _row(dataset, raw, f"{split}-{number}-{index}", source)
        for number, source in enumerate(sources)
        for index, raw in enumerate(_load(dataset, source))
    ]
    if dataset.split:
        found = [row for row in found if row.split == split]
    if not found:
        raise UserError(f"dataset {dataset.name}: its {split} split is empty")
    return sample(found, limit)


def sample(found: Sequence[Row], limit: int | None) -> list[Row]:
    """`limit` rows, the same ones each time, in their original order."""
    if limit is None or limit >= len(found):
        return list(found)
    chosen = sorted(random.Random(SAMPLE_SEED).sample(range(len(found)), limit))
    return [found[index] for index in chosen]


def fingerprint(found: Iterable[Row]) -> str:
    """Hash of the rows' content: two cells were compared on the same rows or they weren't."""
    digest = hashlib.sha256()
    for row in found:
        content = [row.id, row.messages, row.answer, row.reasoning]
        digest.update(json.dumps(content, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]


def last_user_message(row: Row) -> str:
    """What the prompt asks, without instructions and earlier turns."""
    asked = [message["content"] for message in row.messages if message["role"] == "user"]
    return asked[-1] if asked else row.messages[-1]["content"]


# ---------------------------------------------------------------- reading


def _load(dataset: DatasetSpec, source: Source) -> Any:
    import datasets

    datasets.disable_progress_bars()
    try:
        if source.hub:
            return datasets.load_dataset(
                source.hub, source.config, revision=source.revision, split=source.split
            )
        kinds = {LOADERS.get(Path(file).suffix) for file in source.files}
        if len(kinds) != 1 or None in kinds:
            known = ", ".join(LOADERS)
            raise UserError(f"dataset {dataset.name}: files must all be of one kind: {known}")
        return datasets.load_dataset(kinds.pop(), data_files=list(source.files), split="train")
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        place = source.hub or ", ".join(source.files)
        reason = _broken_line(source) or " ".join(str(error).split())[:200]
        raise UserError(f"dataset {dataset.name}: {place} can't be loaded: {reason}") from error


def _broken_line(source: Source) -> str | None:
    """Where a JSONL file breaks off being one: the library doesn't say."""
    for file in source.files:
        if Path(file).suffix != ".jsonl" or not Path(file).is_file():
            continue
        with open(file, encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    json.loads(line.strip() or "null")
                except ValueError as error:
                    return f"{file}:{number} is not JSON: {error}"
    return None


def _row(dataset: DatasetSpec, raw: dict[str, Any], default_id: str, source: Source) -> Row:
    values = dict(raw) | {new: raw[old] for new, old in dataset.columns.items() if old in raw}
    missing = [old for old in dataset.columns.values() if old not in raw]
    needed = [field.source_column for field in dataset.answer]
    needed += [c for c in (dataset.messages_column, dataset.reasoning) if c]
    missing += [column for column in needed if column not in values]
    if missing:
        raise UserError(
            f"dataset {dataset.name}: no column {missing[0]!r} in {source.hub or source.files[0]}. "
            f"There are: {', '.join(raw)}"
        )
    group = source.group or (values.get(dataset.group) if dataset.group else None)
    messages = _messages(dataset, values | {"group": group})
    return Row(
        id=str(values.get("id") or default_id),
        group=None if group is None else str(group),
        messages=messages,
        answer={field.name: _value(values[field.source_column]) for field in dataset.answer},
        reasoning=values[dataset.reasoning] if dataset.reasoning else None,
        split=_share(dataset, values, messages) if dataset.split else None,
    )


def _value(value: Any) -> Any:
    """Arrow gives every row's mapping the keys of all rows: drop the ones this row never had."""
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    return value


def _messages(dataset: DatasetSpec, values: dict[str, Any]) -> list[dict[str, str]]:
    if dataset.messages_column:
        return [dict(message) for message in values[dataset.messages_column]]
    try:
        return [
            {"role": m.role, "content": TEMPLATES.from_string(m.content).render(values)}
            for m in dataset.messages
        ]
    except TemplateError as error:
        raise UserError(f"dataset {dataset.name}: prompt template: {error}") from None


def _share(dataset: DatasetSpec, values: dict[str, Any], messages: Any) -> str:
    """The split a row belongs to, by a hash of its prompt, so that duplicates stay together.

    With `by`, of that column's value: no value then spans two splits.
    """
    assert dataset.split is not None
    by = dataset.split.by
    if by is not None and by not in values:
        raise UserError(f"dataset {dataset.name}: split: no column {by!r}")
    key = json.dumps(messages if by is None else values[by], default=str)
    digest = hashlib.sha256(f"{dataset.split.seed}:{key}".encode()).digest()
    point = int.from_bytes(digest[:8], "big") / 2**64
    if point < dataset.split.test:
        return "test"
    return "validation" if point < dataset.split.test + dataset.split.validation else "train"


# ---------------------------------------------------------------- token ids


def prompt_ids(tokenizer: Any, cell: Cell, row: Row) -> list[int]:
    """Ids that generation starts from: the chat template's, or the plain text's."""
    if cell.model.chat:
        text = _prompt_text(tokenizer, row)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return list(tokenizer(plain_prompt(row))["input_ids"])


def plain_prompt(row: Row) -> str:
    """What a model that doesn't chat goes on from."""
    return "\n\n".join(message["content"] for message in row.messages) + "\n"


def _prompt_text(tokenizer: Any, row: Row) -> str:
    return str(
        tokenizer.apply_chat_template(row.messages, tokenize=False, add_generation_prompt=True)
    )


def answer_text(tokenizer: Any, cell: Cell, row: Row) -> str:
    """What the model shall write, reasoning first, without the end-of-sequence token."""
    answer = format_answer(row.answer, cell.dataset)
    opened = opens_thinking(tokenizer, cell, row)
    if row.reasoning is None:
        # Without its end, the answer would be read as a thought that never finished
        return f"\n{END_OF_THOUGHT}{answer}" if opened else answer
    start = "" if opened else THOUGHT
    return f"{start}{row.reasoning.strip()}\n{END_OF_THOUGHT}{answer}"


def opens_thinking(tokenizer: Any, cell: Cell, row: Row) -> bool:
    """Some thinking models' templates open the trace themselves, at the end of the prompt."""
    if not (cell.model.thinking and cell.model.chat):
        return False
    return bool(_prompt_text(tokenizer, row).rstrip().endswith(THOUGHT.rstrip()))


def encode(tokenizer: Any, cell: Cell, row: Row) -> Encoded | None:
    """A training example of at most max_length tokens; None where no answer token is left."""
    prompt = prompt_ids(tokenizer, cell, row)
    answer = tokenizer(answer_text(tokenizer, cell, row), add_special_tokens=False)["input_ids"]
    ids = [*prompt, *answer, tokenizer.eos_token_id]
    limit = cell.budget.max_length
    if len(prompt) >= limit:
        return None
    labels = [-100] * len(prompt) + ids[len(prompt) :]
    return Encoded(ids[:limit], labels[:limit], truncated=len(ids) > limit)
