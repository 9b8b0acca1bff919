"""serve.json → what it costs and takes to answer.  The one place that knows its layout.

Nothing here is required: a cell without a serve phase has None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import UserError

FILE = "serve.json"


@dataclass(frozen=True)
class Served:
    """What the serve phase measured."""

    raw: Mapping[str, Any]
    usd_per_million_tokens: float | None = None
    first_token_p95_ms: float | None = None

    def monthly_usd(self, tokens: float) -> float | None:
        """Dollars a month for so many tokens, at the utilisation that the record states."""
        price = self.usd_per_million_tokens
        return None if price is None else price * tokens / 1e6


def read(attempt: Path) -> Served | None:
    """The serve record of an attempt.  Raises UserError where it isn't JSON."""
    path = attempt / FILE
    if not path.exists():
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{path}: not JSON: the file was damaged") from None
    return Served(
        raw=raw,
        usd_per_million_tokens=raw.get("usd_per_million_tokens"),
        first_token_p95_ms=raw.get("first_token_p95_ms"),
    )


def facts(served: Served) -> dict[str, str]:
    """Its plain numbers and words, as they are named in the record."""
    hidden = ("schema_version", "phase", "environment", "memory", "stage_s")
    return {
        name: f"{value:.4g}" if isinstance(value, float) else str(value)
        for name, value in served.raw.items()
        if isinstance(value, (int, float, str)) and name not in hidden
    }
