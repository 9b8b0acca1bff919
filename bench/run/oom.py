"""Did the kernel's out-of-memory killer strike?  Exit code -9 alone can't tell."""

from __future__ import annotations

from pathlib import Path

# (file, word before the counter); cgroup v2, cgroup v1, the whole machine
COUNTERS = (
    ("/sys/fs/cgroup/memory.events", "oom_kill"),
    ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill"),
    ("/proc/vmstat", "oom_kill"),
)


def kills() -> int:
    """Number of out-of-memory kills that the kernel has counted so far; 0 where unknown."""
    total = 0
    for path, word in COUNTERS:
        try:
            lines = Path(path).read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.split()[:1] == [word])
    return total
