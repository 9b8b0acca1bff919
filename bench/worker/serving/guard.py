"""Become another program that the kernel ends when the worker dies, however it dies:

python -m bench.worker.serving.guard PROGRAM ARGUMENT…
"""

from __future__ import annotations

import os
import sys

from bench.worker.__main__ import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except FileNotFoundError:
        sys.exit(f"no program {sys.argv[1]} on the path")
