"""Shared by all tests: the project's root, a small project to break, real `bench` processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Read when torch is first imported; see bench/run/process.py
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
# Two shared cores: no deadline, and enough examples that a broken rule shows.  For a closer look:
# HYPOTHESIS_PROFILE=thorough python -m pytest tests/score
settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for the session: the tiny models are made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the project's suites and data, where a test adds suites of its own."""
    return make_project(tmp_path)


def make_project(folder: Path) -> Path:
    (folder / "suites").mkdir()
    for name in ("models", "methods", "datasets", "targets"):
        (folder / "suites" / name).symlink_to(ROOT / "suites" / name)
    (folder / "data").symlink_to(ROOT / "data")
    return folder


def environment(cache: Path | None = None) -> dict[str, str]:
    more = {"ADAPTBENCH_CACHE": str(cache)} if cache else {}
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **more}


def bench(
    *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run the real command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "bench.cli", *arguments],
        cwd=cwd,
        env=dict(env or environment()),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
