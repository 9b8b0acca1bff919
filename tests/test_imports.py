"""Who may import whom: what keeps commands fast and pure code pure."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import ROOT, environment

HEAVY = {"torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "datasets"}
PURE = ("spec", "record", "plan", "score")
CONTROL = ("run", "report", "cli")


def modules() -> list[Path]:
    return sorted((ROOT / "bench").rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Every module that a file names in an import, wherever it stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(path: Path) -> str:
    return path.relative_to(ROOT / "bench").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_import_rules(path: Path) -> None:
    names = imported(path)
    tops = {name.split(".")[0] for name in names}
    here = part(path)
    if here not in ("fit", "worker"):
        assert not tops & HEAVY
    if here in PURE:
        io = {"subprocess", "pathlib", "psutil", "yaml", "requests", "socket", "shutil"}
        assert not tops & io
    if here in CONTROL:
        assert not {n for n in names if n.startswith(("bench.fit", "bench.worker"))}


def test_help_is_fast_and_loads_no_torch() -> None:
    code = (
        "import sys; from bench.cli import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        f"assert not set(sys.modules) & {HEAVY!r}\n"
        "assert not {'pandas', 'matplotlib', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True, timeout=60)
    took = min(_seconds_of_help() for _ in range(12))  # the machine may be busy with something else
    assert took < 0.5


def _seconds_of_help() -> float:
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "bench.cli", "--help"],
        env=environment(),
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - started
