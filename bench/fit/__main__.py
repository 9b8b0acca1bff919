"""Commands; `bench` starts them as processes and reads their JSON.

    python -m bench.fit accuracy CASES.jsonl --models MODELS.json [--json] [--cache DIR]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(prog="python -m bench.fit", description=__doc__)
    commands = parser.add_subparsers(required=True)
    _add_accuracy(commands)
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _add_accuracy(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("accuracy", help="predict published cases and say how far off")
    parser.add_argument("cases", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cache", type=Path)
    parser.set_defaults(run=_accuracy)


def _accuracy(options: argparse.Namespace) -> int:
    from bench.fit import accuracy
    from bench.fit.cache import Cache

    outcomes = accuracy.run(
        options.cases, options.models, Cache(options.cache), progress=not options.json
    )
    found = accuracy.report(outcomes)
    print(json.dumps(found, indent=1) if options.json else accuracy.as_text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
