"""A full disk while a suite runs: one clear line, nothing lost; with room again, on it goes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import store
from bench.record import Status

from ..conftest import bench, environment
from .test_failures import one, write_suite

ROOM_BYTES = 4 * 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def small_disk(project: Path) -> Iterator[Path]:
    """The project's results/ on a small file system of its own."""
    folder = project / "results"
    folder.mkdir()
    options = ["-o", f"size={ROOM_BYTES}"]
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if mounted.returncode:
        pytest.skip(f"file systems can't be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """A file that takes all the room but `leave` bytes."""
    state = os.statvfs(folder)
    filler = folder / "filler"
    filler.write_bytes(bytes(state.f_bavail * state.f_frsize - leave))
    return filler


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(project: Path, env: dict[str, str]) -> None:
    """A run that ends in one clear line."""
    failed = bench("run", "full", cwd=project, env=env)
    assert failed.returncode == 2, failed.stdout + failed.stderr
    (line,) = failed.stderr.strip().splitlines()
    assert "results/" in line and "No space left on device" in line
    assert "run the same command again" in line
    assert "Traceback" not in failed.stdout
    assert not list((project / "results").rglob(".*.json.*"))  # no halves of records


def test_a_full_disk_is_one_line_and_nothing_is_lost(
    project: Path, cache: Path, small_disk: Path
) -> None:
    rules = "rules:\n  - {when: {method: [base]}, budget: {max_test_rows: 40, generate_batch: 1}}\n"
    write_suite(project, "full", "majority, {use: base, dtype: fp32}", rules=rules)
    env = environment(cache)
    first = bench("run", "full", "--only", "method=majority", cwd=project, env=env)
    assert first.returncode == 0, first.stdout + first.stderr
    measured = contents(one(project, "full", "majority").path)

    filler = fill(small_disk, leave=0)
    refused(project, env)  # no room to begin
    filler.unlink()
    filler = fill(small_disk, leave=6 * PAGE)
    refused(project, env)  # room to begin, not to end
    (path,) = small_disk.rglob("*_base_*/attempt-001/predictions.jsonl")
    kept = {row["id"]: row["prediction"] for row in store.read_lines(path)}
    assert 0 < len(kept) < 40
    assert contents(one(project, "full", "majority").path) == measured

    filler.unlink()
    again = bench("run", "full", cwd=project, env=env)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 of 2 cells are finished already" in again.stdout
    assert contents(one(project, "full", "majority").path) == measured
    base = one(project, "full", "base").latest
    assert base and base.generate and base.generate.status is Status.OK
    assert base.generate.rows == 40 == len({p.id for p in base.predictions})
    assert kept.items() <= {p.id: p.prediction for p in base.predictions}.items()
