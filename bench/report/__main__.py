"""python -m bench.report SUITE [--results results]: redraw a suite's report, print its path."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.errors import UserError
from bench.report.build import CLAIMS, build


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("suite", help="name of a suite that results/ holds")
    parser.add_argument("--results", type=Path, default=Path("results"), help="default: results")
    chosen = parser.parse_args(arguments)
    try:
        print(build(chosen.results, chosen.suite, claims_folder=CLAIMS))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
