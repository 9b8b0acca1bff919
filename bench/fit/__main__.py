"""Commands; `bench` starts them as processes and reads their JSON.

python -m bench.fit plan SUITE.yaml [--json] [--cache DIR]
python -m bench.fit fit MODEL --method qlora [--target 1xl40s-48gb] [--json]
python -m bench.fit accuracy CASES.jsonl --models MODELS.json [--json] [--cache DIR]
python -m bench.fit calibrate RESULTS [--json]
python -m bench.fit speed THROUGHPUT.jsonl --cases CASES.jsonl --models MODELS.json
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TypeAlias

Parsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(arguments: list[str] | None = None) -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(prog="python -m bench.fit", description=__doc__)
    commands = parser.add_subparsers(required=True)
    _add_plan(commands)
    _add_fit(commands)
    _add_accuracy(commands)
    _add_speed(commands)
    _add_calibrate(commands)
    _add_gpu_check(commands)
    options = parser.parse_args(arguments)
    if "/" not in getattr(options, "model", ""):  # a hub id: its config.json is asked for
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from bench.errors import UserError

    try:
        return int(options.run(options))
    except (UserError, ValueError) as error:
        print(_one_line(error), file=sys.stderr)
        return 2


def _one_line(error: Exception) -> str:
    """pydantic's errors hold several lines; the one after the field's name says it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("Value error")), lines[0])


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cache", type=Path, help="folder that keeps traces")


def _add_accuracy(commands: Parsers) -> None:
    parser = commands.add_parser("accuracy", help="predict published cases and say how far off")
    parser.add_argument("cases", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--processes", type=int, help="default: one a core")
    _common(parser)
    parser.set_defaults(run=_accuracy)


def _accuracy(options: argparse.Namespace) -> int:
    from bench.fit import accuracy
    from bench.fit.cache import Cache

    outcomes = accuracy.run(
        options.cases,
        options.models,
        Cache(options.cache),
        progress=not options.json,
        processes=options.processes,
    )
    found = accuracy.report(outcomes)
    print(json.dumps(found, indent=1) if options.json else accuracy.as_text(found))
    return 0


def _add_calibrate(commands: Parsers) -> None:
    parser = commands.add_parser("calibrate", help="what measured runs say of the constants")
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"))
    _common(parser)
    parser.set_defaults(run=_calibrate)


def _calibrate(options: argparse.Namespace) -> int:
    from bench.fit import calibrate

    found = calibrate.calibrate(options.results)
    as_json = calibrate.as_json(found)
    print(json.dumps(as_json, indent=1) if options.json else calibrate.as_text(found))
    return 0


def _add_gpu_check(commands: Parsers) -> None:
    parser = commands.add_parser("gpu-check", help="real steps on this GPU beside predictions")
    parser.add_argument("--suites", type=Path, default=Path("suites"))
    parser.add_argument("--out", type=Path, default=Path("results/gpu-check.jsonl"))
    parser.set_defaults(run=_gpu_check)
    rung = commands.add_parser("gpu-rung", help="one of them: a request on stdin")
    rung.set_defaults(run=_gpu_rung)


def _gpu_check(options: argparse.Namespace) -> int:
    from bench.fit.gpu_check import check

    return check(options.suites, options.out)


def _gpu_rung(_: argparse.Namespace) -> int:
    from bench.fit.gpu_check import measure
    from bench.fit.request import Request

    print(json.dumps(measure(Request.model_validate_json(sys.stdin.read()))))
    return 0


def _add_speed(commands: Parsers) -> None:
    parser = commands.add_parser("speed", help="predict published speeds and say how far off")
    parser.add_argument("rows", type=Path)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    _common(parser)
    parser.set_defaults(run=_speed)


def _speed(options: argparse.Namespace) -> int:
    from bench.fit import speed
    from bench.fit.cache import Cache

    found, skipped = speed.run(options.rows, options.cases, options.models, Cache(options.cache))
    write = speed.as_json if options.json else speed.as_text
    out = write(found, skipped)
    print(json.dumps(out, indent=1) if options.json else out)
    return 0


def _add_plan(commands: Parsers) -> None:
    parser = commands.add_parser("plan", help="predict every cell of a suite")
    parser.add_argument("suite", type=Path)
    parser.add_argument("--only", help="part of the matrix, as for bench run")
    _common(parser)
    parser.set_defaults(run=_plan)


def _plan(options: argparse.Namespace) -> int:
    from bench.fit import commands

    rows = commands.plan_suite(options.suite, options.only, options.cache)
    print(json.dumps(rows, indent=1) if options.json else commands.table(rows))
    return 0


def _add_fit(commands: Parsers) -> None:
    parser = commands.add_parser("fit", help="predict one configuration")
    parser.add_argument("model", help="a name in suites/models, a config.json or a hub id")
    parser.add_argument("--suites", type=Path, default=Path("suites"))
    _add_machine(parser)
    _add_step(parser)
    _add_method(parser)
    _common(parser)
    parser.set_defaults(run=_fit)


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", help="name in suites/targets; without: all of them")
    parser.add_argument("--gpu", help="e.g. h100-80gb, instead of --target")
    parser.add_argument("--gpus", type=int, help="how many of them (1)")
    parser.add_argument("--host-ram", type=float, help="GiB of the node, with --gpu")
    parser.add_argument("--strategy", default="auto", help="as in suites, and +offload")


def _add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument(
        "--mean-len", type=float, help="lengths vary: their mean; --seq-len is the longest"
    )
    parser.add_argument("--micro-batch", default="1", help="a number, or max")
    parser.add_argument("--global-batch", type=int, help="sequences of one update, all devices")
    parser.add_argument(
        "--packed", action="store_true", default=None, help="no padding, with flash attention"
    )
    parser.add_argument("--padded", dest="packed", action="store_false")


def _add_method(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--method", default="qlora", help="name in suites/methods")
    parser.add_argument("--optimizer")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--target-modules", help="all-linear, or names with commas between")
    parser.add_argument("--adapter-dtype")
    parser.add_argument("--base-dtype")
    parser.add_argument("--attention")
    parser.add_argument("--bits", type=int)
    parser.add_argument("--double-quant", action=argparse.BooleanOptionalAction)
    parser.add_argument("--grad-checkpointing", action=argparse.BooleanOptionalAction)


def _fit(options: argparse.Namespace) -> int:
    from bench.fit import one

    rows = one.fit(options)
    print(json.dumps(rows, indent=1) if options.json else one.text(rows, detailed=len(rows) == 1))
    return 0 if any(row["plan"]["fits"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
