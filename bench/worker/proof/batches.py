"""What batches really look like: which side the padding is on, packing, masked labels."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from bench.worker import ranks

IGNORED = -100  # label that the loss skips


class Batches:
    """Adds up the batches that it is shown."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def add(self, inputs: dict[str, Any]) -> None:
        """A training micro-batch of input_ids, attention_mask or position_ids, and labels."""
        ids = inputs["input_ids"]
        self.seen["rows"] += len(ids)
        self.seen.update(padding(inputs.get("attention_mask")))
        positions = inputs.get("position_ids")
        if positions is not None and positions.ndim == 2:
            starts = (positions == 0).sum(dim=1)
            self.seen["packed_rows"] += int((starts > 1).sum())
        labels = inputs.get("labels")
        if labels is not None:
            self.seen["unsupervised_rows"] += int((labels == IGNORED).all(dim=1).sum())

    def facts(self) -> dict[str, int]:
        """Of all ranks, which must all call it."""
        names = ("rows", "left_padding", "right_padding", "packed_rows", "unsupervised_rows")
        counts = ranks.total([float(self.seen[name]) for name in names])
        return {name: int(count) for name, count in zip(names, counts, strict=True)}


def padding(mask: torch.Tensor | None) -> dict[str, int]:
    """Padding tokens before and after each row's text, in a mask [rows, length]."""
    if mask is None or mask.ndim != 2:
        return {}
    seen = mask.bool().int()
    before = (seen.cumsum(dim=1) == 0).sum()
    after = (seen.flip(1).cumsum(dim=1) == 0).sum()
    return {"left_padding": int(before), "right_padding": int(after)}
