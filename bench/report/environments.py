"""In what the machines and software of two sides differ: GPU, driver, versions, commit, dirty tree.

A difference is no verdict: it is where to look first when two results part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bench.record import Environment
from bench.report.threats import machine

Values = dict[str, list[str]]


def differences(a: Iterable[Environment], b: Iterable[Environment]) -> list[str]:
    """`driver: 550.54 → 560.35`, one line each; empty if nothing recorded differs."""
    one, two = _values(a), _values(b)
    if not one or not two:
        return ["a side didn't record its machine"]
    return [
        f"{name}: {_told(one.get(name))} → {_told(two.get(name))}"
        for name in dict.fromkeys([*one, *two])
        if one.get(name) != two.get(name)
    ]


def _values(environments: Iterable[Environment]) -> Values:
    """Every value that a side had of a fact, sorted."""
    found: dict[str, set[str]] = {}
    for environment in environments:
        for name, value in _facts(environment):
            found.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in found.items()}


def _facts(environment: Environment) -> Iterator[tuple[str, str]]:
    yield "machine", machine(environment)
    yield "host", environment.hostname_hash
    yield "driver", environment.driver or "none"
    yield "CUDA", environment.cuda or "none"
    yield "Python", environment.python
    yield from sorted(environment.packages.items())
    yield "commit", (environment.git_commit or "unknown")[:12]
    if environment.git_dirty is not None:
        yield "uncommitted changes", "yes" if environment.git_dirty else "no"


def _told(values: list[str] | None) -> str:
    return " / ".join(values) if values else "not there"
