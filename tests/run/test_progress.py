"""What a person sees while a suite runs: bars on a terminal, plain lines in a log file."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from bench.run.progress import Progress
from bench.suite import load

from ..conftest import ROOT, environment
from .test_failures import method, write_suite

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(command: list[str], cwd: Path, env: dict[str, str], timeout_s: float) -> str:
    """What a command writes when its output is a terminal (a pty of 120 columns)."""
    leader, follower = pty.openpty()
    env = {**env, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdin=follower, stdout=follower, stderr=follower, close_fds=True
    )
    os.close(follower)
    output, end = b"", time.monotonic() + timeout_s
    while True:
        assert time.monotonic() < end, output[-500:]
        if select.select([leader], [], [], 1)[0]:
            try:
                data = os.read(leader, 1 << 16)
            except OSError:  # the other side is closed: Linux's way to say so
                break
            if not data:
                break
            output += data
    os.close(leader)
    assert process.wait(timeout=30) == 0, output[-2000:]
    return ESCAPES.sub("", output.decode(errors="replace"))


def test_a_terminal_shows_suite_cell_step_and_time_left(project: Path, cache: Path) -> None:
    write_suite(project, "bars", ", ".join([method("full"), "{use: base, dtype: fp32}"]), steps=4)
    command = [sys.executable, "-m", "bench.cli", "run", "bars"]
    shown = on_terminal(command, project, environment(cache), timeout_s=400)
    lines = [line.strip() for line in re.split(r"[\r\n]+", shown)]

    def bars(name: str) -> list[str]:
        return [line for line in lines if re.match(rf"{name} +\S*━", line)]

    assert any(re.search(r"0/2 .*left", line) for line in bars("suite"))
    assert any(re.search(r"1/2 .*left", line) for line in bars("suite"))
    assert any("0/2" in line for line in bars("cell")) and any(
        "1/2" in line for line in bars("cell")
    )
    steps = [match[1] for line in bars("train") if (match := re.search(r"(\d+)/4 ", line))]
    assert len(set(steps)) >= 3, bars("train")  # it moved, step by step
    assert any(re.search(r"/4 +\S+ +left +0:00:\d\d", line) for line in bars("train"))
    # Nobody knows a phase's length before it says so: no invented total.
    assert not [line for line in lines if "/100 " in line]
    for phase in ("train", "generate"):
        assert any(re.search(r" 0/\? ", line) for line in bars(phase))
    assert any("full" in line and "ok" in line for line in lines)


def test_a_log_file_gets_a_line_now_and_then() -> None:
    cell = load(ROOT / "suites" / "smoke.yaml").cells[1]
    out = io.StringIO()
    progress = Progress(Console(file=out, width=120))
    tell = progress.phase_begins(cell, "train")
    for step in (1, 2):  # in the same second: one line
        tell({"event": "step", "step": step, "loss": 2.5, "tokens": 100, "seconds": 0.5})
    (line,) = out.getvalue().strip().splitlines()
    assert line == "tiny-llama full train: step 1: loss 2.500, 200 tokens/s"
