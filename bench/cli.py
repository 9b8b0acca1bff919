"""The `bench` command: what a person types, nothing else.  Heavy imports stay inside commands."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from bench.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.score.hygiene import Hygiene
    from bench.spec import Cell, Suite

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Which way of adapting a large language model to choose, and what it will cost.",
)
console = Console()
errors = Console(stderr=True)

CANNOT_RUN_HERE = 3
INTERRUPTED = 130

Results = Annotated[Path, typer.Option(help="Folder that holds the results.")]
Only = Annotated[
    str | None,
    typer.Option(help="Part of the matrix, e.g. 'method=lora|qlora,model=smollm2-135m'."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program.")]
SuiteName = Annotated[str, typer.Argument(help="A suite's name or file, e.g. quick.")]


@app.command("list")
def list_(
    suite: Annotated[str | None, typer.Argument(help="Its cells; without it, all suites.")] = None,
    only: Only = None,
    results: Results = Path("results"),
    as_json: Json = False,
) -> None:
    """List the suites, or a suite's cells and how each of them stands."""
    from bench import listing
    from bench import suite as suites

    if suite is None:
        rows = listing.suites_here()
        console.print_json(json.dumps(rows)) if as_json else console.print(listing.table(rows))
        return
    found = suites.load(suites.find(suite))
    cells = suites.select(found.cells, only)
    if as_json:
        rows = [listing.row(cell, results) for cell in cells]
        console.print_json(json.dumps(rows))
        return
    console.print(listing.cells_table(found, cells, results))
    for what, reason in found.excluded:
        console.print(f"left out: {what}: {reason}", markup=False, style="dim")


@app.command()
def check(
    suite: SuiteName,
    data: Annotated[
        bool, typer.Option("--data", help="Read the rows too: duplicates, leaks, lengths.")
    ] = False,
    results: Results = Path("results"),
    as_json: Json = False,
) -> None:
    """Resolve a suite and say how many cells it has, or what is wrong and where."""
    from bench import suite as suites
    from bench.report.show import many
    from bench.score.quality import validate_metrics

    found = suites.load(suites.find(suite))
    for dataset in {cell.dataset.name: cell.dataset for cell in found.cells}.values():
        for problem in validate_metrics(dataset):
            raise UserError(f"dataset {dataset.name}: {problem}")
    counts = {
        "cells": len(found.cells),
        "models": len({cell.model.name for cell in found.cells}),
        "methods": len({cell.method.name for cell in found.cells}),
        "datasets": len({cell.dataset.name for cell in found.cells}),
        "targets": len({cell.target.name for cell in found.cells}),
        "left_out": len(found.excluded),
    }
    if as_json:
        hygiene = {h.dataset: h.model_dump() for h in _inspected(found, results)} if data else {}
        told = {"suite": found.name, **counts, **({"data": hygiene} if data else {})}
        console.print_json(json.dumps(told))
        return
    numbers = [
        many(counts[f"{noun}s"], noun) for noun in ("cell", "model", "method", "dataset", "target")
    ]
    numbers.append(f"{counts['left_out']} left out")
    console.print(f"{found.path}: ok: {', '.join(numbers)}", markup=False)
    if data:
        _check_data(found, results)


@app.command()
def plan(
    suite: SuiteName, only: Only = None, results: Results = Path("results"), as_json: Json = False
) -> None:
    """Predict memory, time and cost of every cell, without a GPU; keep it in plan.json."""
    from bench import plan_table
    from bench import suite as suites
    from bench.run import planning

    path = suites.find(suite)
    cells = suites.select(suites.load(path).cells, only)
    planned = list(zip(cells, planning.plan_cells(path, only, cells, results), strict=True))
    if as_json:
        console.print_json(json.dumps(plan_table.as_json(planned)))
        return
    # Narrower than its columns it can't be read at all; a pipe has 80 characters
    Console(width=max(console.width, plan_table.WIDTH)).print(plan_table.table(planned))
    for remark in plan_table.remarks(planned):
        console.print(remark, markup=False, soft_wrap=True)


@app.command()
def fit(  # noqa: PLR0913, PLR0917 - a command's options
    model: Annotated[str, typer.Argument(help="A name in suites/models, a config.json, a hub id.")],
    method: Annotated[str, typer.Option(help="A name in suites/methods.")] = "qlora",
    target: Annotated[str | None, typer.Option(help="Without it: all of suites/targets.")] = None,
    gpu: Annotated[str | None, typer.Option(help="E.g. h100-80gb, instead of --target.")] = None,
    gpus: Annotated[int | None, typer.Option(help="How many of them (1).")] = None,
    host_ram: Annotated[float | None, typer.Option(help="GiB of the node, with --gpu.")] = None,
    strategy: Annotated[
        str, typer.Option(help="auto, single, ddp, fsdp, zero2, zero3; +offload after the last 3.")
    ] = "auto",
    seq_len: Annotated[int, typer.Option(help="Tokens of the longest sequence.")] = 1024,
    mean_len: Annotated[
        float | None, typer.Option(help="Lengths vary: their mean (log-normal).")
    ] = None,
    micro_batch: Annotated[str, typer.Option(help="A number, or max.")] = "1",
    global_batch: Annotated[int | None, typer.Option(help="Sequences of one update.")] = None,
    packed: Annotated[
        bool | None, typer.Option("--packed/--padded", help="Packed: flash attention, no mask.")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="E.g. adamw_8bit.")] = None,
    rank: Annotated[int | None, typer.Option(help="Of the adapters.")] = None,
    target_modules: Annotated[
        str | None, typer.Option(help="all-linear, or names with commas between.")
    ] = None,
    adapter_dtype: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16.")] = None,
    base_dtype: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16.")] = None,
    attention: Annotated[str | None, typer.Option(help="eager, sdpa or flash_attention_2.")] = None,
    bits: Annotated[int | None, typer.Option(help="4 or 8, of a quantised base.")] = None,
    double_quant: Annotated[
        bool | None, typer.Option("--double-quant/--no-double-quant", help="Quantise scales too.")
    ] = None,
    grad_checkpointing: Annotated[
        bool | None, typer.Option("--grad-checkpointing/--no-grad-checkpointing")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict whether one configuration fits, and what would make it fit.

    Options that aren't given are as in the method's file.
    """
    told = {name: value for name, value in locals().items() if name not in ("model", "as_json")}
    more = [flag for name, value in told.items() for flag in _flags(name, value)]
    raise typer.Exit(_predict("fit", model, *more, *(["--json"] if as_json else [])))


@app.command()
def accuracy(
    cases: Annotated[Path, typer.Argument(help="Measured runs, a JSON object a line.")],
    models: Annotated[Path, typer.Option(help="The dimensions of their models, JSON.")],
    as_json: Json = False,
) -> None:
    """Predict published measurements and say how far off the predictions are."""
    more = ["--json"] if as_json else []
    raise typer.Exit(_predict("accuracy", str(cases), "--models", str(models), *more))


@app.command()
def calibrate(
    results: Annotated[Path, typer.Argument(help="Folder that holds the results.")] = Path(
        "results"
    ),
    as_json: Json = False,
) -> None:
    """Say what measured runs make of the predictor's constants; writes nothing."""
    raise typer.Exit(_predict("calibrate", str(results), *(["--json"] if as_json else [])))


@app.command()
def run(
    suite: SuiteName,
    only: Only = None,
    fresh: Annotated[bool, typer.Option(help="Run again, as new attempts.")] = False,
    run_anyway: Annotated[
        bool, typer.Option(help="Run cells, too, that are predicted not to fit.")
    ] = False,
    results: Results = Path("results"),
) -> None:
    """Run the cells that aren't finished, then draw the report."""
    from bench import environment
    from bench import suite as suites
    from bench.run import planning
    from bench.run.runner import check_keys

    found = suites.load(suites.find(suite))
    cells = suites.select(found.cells, only)
    here = environment.gpus()
    runnable = [cell for cell in cells if environment.can_run(cell.target, here)]
    if not runnable:
        _cannot_run(found, cells, environment.describe(here), results)
        raise typer.Exit(CANNOT_RUN_HERE)
    if len(runnable) < len(cells):
        console.print(f"{len(cells) - len(runnable)} cells are for other machines: left out")
    check_keys(runnable, results, fresh)
    planning.plan_missing(Path(found.path), only, runnable, results)
    failed = _run_cells(runnable, results, fresh, run_anyway)
    from bench.report.build import CLAIMS, build

    path = build(results, found.name, claims_folder=CLAIMS)
    console.print(f"report: {path.with_name('index.html')}", markup=False, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


@app.command()
def report(  # noqa: PLR0913, PLR0917 - typer makes an option of each
    suite: SuiteName,
    results: Results = Path("results"),
    max_usd: Annotated[float | None, typer.Option(help="Of one run, all phases.")] = None,
    max_hours: Annotated[float | None, typer.Option(help="Of one run, all phases.")] = None,
    targets: Annotated[str | None, typer.Option(help="Machines you can have: a,b.")] = None,
    min_score: Annotated[float | None, typer.Option(help="Of the first metric.")] = None,
    max_loss_vs_full: Annotated[float | None, typer.Option(help="In the metric's units.")] = None,
    monthly_tokens: Annotated[float | None, typer.Option(help="Tokens to be served.")] = None,
    max_latency_ms: Annotated[float | None, typer.Option(help="First token, p95.")] = None,
) -> None:
    """Redraw page, tables and charts from results/; constraints replace the suite's own."""
    from pydantic import ValidationError

    from bench.document import explain_first
    from bench.report.build import CLAIMS, build
    from bench.spec import Constraints

    asked = {
        "max_usd": max_usd,
        "max_hours": max_hours,
        "targets": tuple(filter(None, (targets or "").split(","))) or None,
        "min_score": min_score,
        "max_loss_vs_full": max_loss_vs_full,
        "monthly_tokens": monthly_tokens,
        "max_latency_ms": max_latency_ms,
    }
    given = {key: value for key, value in asked.items() if value is not None}
    try:
        constraints = Constraints.model_validate(given) if given else None
    except ValidationError as error:
        raise UserError(f"constraints: {explain_first(Constraints, error)}") from None
    path = build(results, Path(suite).stem, constraints, CLAIMS)
    console.print(f"report: {path.with_name('index.html')}", markup=False, soft_wrap=True)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="A suite, or a folder results/<suite>.")],
    b: Annotated[str, typer.Argument(help="What is held against it.")],
    results: Results = Path("results"),
    as_json: Json = False,
) -> None:
    """What changed from A to B, whether beyond noise, and whether they may be compared at all."""
    from bench import listing
    from bench.report import changes

    found = changes.changes(changes.load(a, results), changes.load(b, results))
    made = changes.table(found)
    if as_json:
        lists = {"obstacles": found.obstacles, "only_a": found.only_a, "only_b": found.only_b}
        console.print_json(json.dumps({"changes": made.to_dict("records")} | lists))
        return
    console.print(listing.table(made.to_dict("records")))
    for name, only in (("A", found.only_a), ("B", found.only_b)):
        if only:
            console.print(f"only in {name}: {', '.join(only)}", markup=False)
    for obstacle in found.obstacles:
        errors.print(f"careful: {obstacle}", markup=False, soft_wrap=True, style="yellow")


@app.command()
def rerun(
    cell: Annotated[str, typer.Argument(help="A cell's id, or enough of it.")],
    compare: Annotated[
        bool, typer.Option("--compare", help="Say whether it agrees with the attempt before.")
    ] = False,
    results: Results = Path("results"),
    as_json: Json = False,
) -> None:
    """Run one cell again, as a new attempt; the report then speaks of the new one."""
    from bench import environment, listing
    from bench import show as shows
    from bench.report import repeat
    from bench.run.runner import check_keys
    from bench.store import CellResult

    found = shows.find(results, cell)
    here = environment.gpus()
    if not environment.can_run(found.cell.target, here):
        wanted = f"{found.cell.target.devices * found.cell.target.nodes} × {found.cell.target.gpu}"
        errors.print(f"{found.cell.id} is for {wanted}; here: {environment.describe(here)}")
        raise typer.Exit(CANNOT_RUN_HERE)
    check_keys([found.cell], results, fresh=True)
    before = found.latest
    out = errors if as_json else console
    failed = _run_cells([found.cell], results, fresh=True, anyway=True, out=out)
    after = CellResult(found.cell, found.path).latest
    if compare and before and after and after.path != before.path:
        told = repeat.repeat(found, before, after)
        if as_json:
            print(json.dumps(told.as_json()))
        else:
            console.print(listing.table(repeat.table(told).to_dict("records")))
            for line in [*repeat.notes(told), told.words]:
                console.print(line, markup=False, soft_wrap=True)
    elif compare:
        errors.print("there was no earlier attempt to compare with")
    if failed:
        raise typer.Exit(1)


@app.command()
def export(
    suite: SuiteName,
    parquet: Annotated[Path | None, typer.Option(help="A file to write.")] = None,
    csv: Annotated[Path | None, typer.Option(help="A file to write.")] = None,
    scores: Annotated[
        Path | None, typer.Option(help="A .parquet or .csv file: one row a test row instead.")
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(help="A tracking server, e.g. http://localhost:5000: one run a cell."),
    ] = None,
    results: Results = Path("results"),
) -> None:
    """Write one row a cell for your own dashboards: all scores, times, costs, peaks, plans."""
    from bench.report import export as exports

    if parquet is None and csv is None and scores is None and mlflow is None:
        raise UserError("say where to: --parquet FILE, --csv FILE, --scores FILE or --mlflow URI")
    if mlflow is not None:
        from bench.report import mlflow as runs

        done = runs.export(results, Path(suite).stem, mlflow)
        console.print(
            f"{mlflow}: {done.written} runs written, {done.known} there already, "
            f"{done.never_ran} cells never ran",
            markup=False,
            soft_wrap=True,
        )
    if scores is not None:
        rows = exports.scores(results, Path(suite).stem)
        (exports.parquet if scores.suffix == ".parquet" else exports.csv)(rows, scores)
        console.print(f"{scores}: {len(rows)} test rows", markup=False, soft_wrap=True)
    if parquet is None and csv is None:
        return
    made = exports.table(results, Path(suite).stem)
    for file, write in ((parquet, exports.parquet), (csv, exports.csv)):
        if file is not None:
            write(made, file)
            console.print(f"{file}: {len(made)} cells", markup=False, soft_wrap=True)


@app.command()
def show(
    cell: Annotated[str, typer.Argument(help="A cell's id, or enough of it.")],
    results: Results = Path("results"),
    as_json: Json = False,
) -> None:
    """Show everything that was found about a cell, and where it stands on disk."""
    from bench import show as shows

    found = shows.find(results, cell)
    if as_json:
        console.print_json(json.dumps(shows.as_json(found)))
    else:
        shows.render(found, console)


@app.command()
def quantize(
    model: Annotated[str, typer.Argument(help="A name in suites/models.")],
    method: Annotated[str, typer.Option(help="A name in suites/methods.")] = "qlora",
) -> None:
    """Write a model's 4-bit checkpoint once, layer by layer; later loads read it."""
    import subprocess

    from bench.spec import MethodSpec, ModelSpec
    from bench.suite import load_named

    load_named(ModelSpec, model)  # a wrong name is told at once
    load_named(MethodSpec, method)
    command = [sys.executable, "-m", "bench.worker.quantize", model, method]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


@app.command("add-model")
def add_model(
    model: Annotated[str, typer.Argument(help="E.g. Qwen/Qwen3-8B; of an API, its own name.")],
    config: Annotated[Path | None, typer.Option(help="A config.json, to work offline.")] = None,
    name: Annotated[str | None, typer.Option(help="The model's name in suites.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Address of an OpenAI-compatible API, up to and with /v1.")
    ] = None,
    key_env: Annotated[
        str, typer.Option(help="Environment variable with its key; '' where it takes none.")
    ] = "OPENAI_API_KEY",
) -> None:
    """Write suites/models/NAME.yaml from a model's config, and say how to use it."""
    from bench import add_model as adding

    if endpoint is None:
        line = adding.add_model(model, name=name, config_file=config)
    elif config is None:
        line = adding.add_endpoint(model, endpoint, key_env=key_env or None, name=name)
    else:
        raise UserError("--config describes weights, --endpoint an API: give one of them")
    console.print("written; add this line to a suite:", markup=False)
    console.print(line, markup=False)


# ---------------------------------------------------------------- helpers


def _flags(name: str, value: Any) -> list[str]:
    """An option as bench.fit spells it; nothing where it wasn't given."""
    flag = name.replace("_", "-")
    if value is None:
        return []
    if name == "packed":
        return ["--packed" if value else "--padded"]
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}={value}"]


def _predict(*arguments: str) -> int:
    import subprocess

    from bench.run.planning import command

    return subprocess.run(command(*arguments), check=False).returncode


def _inspected(found: Suite, results: Path) -> Iterator[Hygiene]:
    from bench.run.inspection import inspect

    return inspect(found.cells, results)


def _check_data(found: Suite, results: Path) -> None:
    """What was found about each dataset's rows; warnings go to stderr."""
    from bench.report import datasets

    for hygiene in _inspected(found, results):
        for line in datasets.lines(hygiene):
            console.print(line, markup=False, soft_wrap=True)
        for warning in hygiene.warnings:
            text = f"{hygiene.dataset}: warning: {warning}"
            errors.print(text, markup=False, soft_wrap=True, style="yellow")


def _run_cells(
    cells: list[Cell], results: Path, fresh: bool, anyway: bool, out: Console = console
) -> bool:
    """Run, tell how it went; returns whether any cell ended in an error."""
    from bench.record import Status
    from bench.report.show import many
    from bench.run.progress import Progress
    from bench.run.runner import Run, run_suite

    try:
        with Progress(out) as progress:
            states = run_suite(cells, Run(results, progress, fresh, anyway))
    except KeyboardInterrupt:
        errors.print("interrupted: what is finished is kept; run the same command to go on")
        raise typer.Exit(INTERRUPTED) from None
    counts = {status: sum(s.status is status for s in states) for status in Status}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    out.print(f"{many(len(states), 'cell')}: {told}", markup=False)
    served = [state.serving for state in states if state.serving]
    if served:
        told = ", ".join(f"{served.count(s)} {s}" for s in dict.fromkeys(served))
        out.print(f"{len(served)} of them served: {told}", markup=False)
    return bool(counts[Status.ERROR]) or Status.ERROR in served


def _cannot_run(found: Suite, cells: list[Cell], here: str, results: Path) -> None:
    from bench import listing

    targets = {cell.target.name: cell.target for cell in cells}.values()
    wanted = " or ".join(f"{t.devices * t.nodes} × {t.gpu}" for t in targets)
    errors.print(
        f"suite {found.name} is for {wanted}; here: {here}. Nothing was run.", markup=False
    )
    console.print(listing.cells_table(found, cells, results))
    console.print(
        f"What each cell needs, before you rent a machine: bench plan {found.path}", markup=False
    )


def main() -> None:
    """Run the command; everything a person can cause becomes one line."""
    try:
        app()
    except UserError as error:
        errors.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        place = error.filename or "results/"
        errors.print(
            f"error: {place}: {error.strerror}: what is finished is kept; make room or fix "
            "permissions, then run the same command again",
            style="red",
            markup=False,
            soft_wrap=True,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
