"""The door to other people's metrics: `evaluate:<id or local path>` in a dataset's YAML.

`evaluate` loads only when a metric asks for it, since it brings transformers and torch with it.
What can't be loaded is no crash: the metric stays without a value, and says in one line why.

    metrics: [rouge_l, "evaluate:metrics/politeness.py"]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from bench.score.quality import EXTERNAL, External
from bench.spec import DatasetSpec


class NotAvailable(Exception):
    """Why a metric can't be computed here, in one line."""


def externals(datasets: Iterable[DatasetSpec], project: Path) -> dict[str, External]:
    """Every `evaluate:` metric that the datasets name, to be loaded on first use."""
    names = {m for d in datasets for answer in d.answer for m in answer.metrics}
    return {n: Metric(n.removeprefix(EXTERNAL), project) for n in names if n.startswith(EXTERNAL)}


@dataclass
class Metric:
    """Scores by a module of the `evaluate` package.  A failure to load is remembered."""

    name: str
    project: Path
    _module: Any = field(default=None, repr=False)
    _failed: str | None = field(default=None, repr=False)

    def __call__(self, answers: list[str], references: list[str]) -> float:
        if self._module is None and self._failed is None:
            try:
                self._module = load(self.name, self.project)
            except NotAvailable as error:
                self._failed = str(error)
        if self._failed:
            raise NotAvailable(self._failed)
        found = self._module.compute(predictions=answers, references=references)
        return the_number(found, self.name)


def load(name: str, project: Path) -> Any:
    """The `evaluate` module at a path in the project, else of that id on the hub."""
    try:
        import evaluate
    except ImportError:
        raise NotAvailable(
            "needs the package evaluate: pip install 'adaptbench[metrics]'"
        ) from None
    path = project / name
    try:
        return evaluate.load(str(path) if path.exists() else name)
    except Exception as error:
        raise NotAvailable(_why(name, path, error)) from None


def _why(name: str, path: Path, error: Exception) -> str:
    if path.exists():
        return f"{name} can't be loaded: {type(error).__name__}: {_line(error)}"
    if isinstance(error, ConnectionError) or _offline() or isinstance(error, FileNotFoundError):
        return (
            f"no file {name} in the project, and the hub has no metric of that name or isn't "
            "reachable from here"
        )
    return f"{name} can't be loaded from the hub: {type(error).__name__}: {_line(error)}"


def _offline() -> bool:
    return any(os.environ.get(key) == "1" for key in ("HF_HUB_OFFLINE", "HF_EVALUATE_OFFLINE"))


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no message")[:200]


def the_number(found: Any, name: str) -> float:
    """The one score in what a module returns: a number, or a mapping to one.

    Of several, the one called like the metric, or `score`.
    """
    if isinstance(found, Mapping):
        own = Path(name).name.removesuffix(".py")
        numbers = {key: value for key, value in found.items() if isinstance(value, Real)}
        for key in (own, "score", *(numbers if len(numbers) == 1 else ())):
            if key in numbers:
                return float(numbers[key])
        raise NotAvailable(
            f"it gives several numbers ({', '.join(map(str, found))}), none of them "
            f"called {own} or score"
        )
    return float(found)
