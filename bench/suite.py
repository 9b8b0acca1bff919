"""YAML → Suite → ordered cells.  Every error names file, line, field and remedy.

The flow: read a suite file, look its names up in the folders beside it (`models/`, `methods/`,
`datasets/`, `targets/`), lay overrides over them, cross them, apply the rules.

    bench check suites/quick.yaml
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from bench.document import Document, Location, explain_first, read_yaml, shown, validate
from bench.errors import UserError, nearest
from bench.spec import (
    API,
    Budget,
    Cell,
    DatasetSpec,
    MethodSpec,
    ModelSpec,
    Reference,
    Rule,
    Spec,
    Strategy,
    Suite,
    SuiteFile,
    TargetSpec,
    When,
)

METHOD_KINDS = Path(__file__).parent / "worker" / "methods"
STRATEGIES = Path(__file__).parent / "worker" / "strategies"

COORDINATES = ("model", "method", "dataset", "target", "seed", "micro_batch", "id")  # of --only

S = TypeVar("S", bound=Spec)


def load(path: Path) -> Suite:
    """Read and resolve a suite file.

    Raises UserError: missing file, bad YAML, unknown key or name, wrong value, impossible cell.
    """
    document = read_yaml(path)
    written = validate(SuiteFile, document)
    folder = path.parent
    models = _resolve(ModelSpec, written.models, folder / "models", document, "models")
    methods = _resolve(MethodSpec, written.methods, folder / "methods", document, "methods")
    datasets = _resolve(DatasetSpec, written.datasets, folder / "datasets", document, "datasets")
    targets = _resolve(TargetSpec, written.targets, folder / "targets", document, "targets")
    if not targets and any(model.endpoint is None for model in models):
        raise UserError(f"{shown(path)}: targets is missing: which machines is this suite for?")
    _check_kinds(methods, document)
    _check_strategies(written, document)
    _check_files(datasets, folder.parent, document)
    _check_comparison(written, document, methods, datasets)
    places = [*targets, API] if any(model.endpoint for model in models) else targets
    _check_rules(written, document, (models, methods, datasets, places))
    cells, excluded = _crossed(written, document, (targets, models, datasets, methods))
    if not cells:
        why = "; ".join(f"{what}: {reason}" for what, reason in excluded)
        raise UserError(f"{shown(path)}: no cell is left: {why}")
    _check_converged(written, document, cells)
    return Suite(
        name=written.name,
        version=written.version,
        title=written.title,
        path=str(path),
        cells=tuple(cells),
        excluded=tuple(excluded),
    )


def find(name: str) -> Path:
    """The file of a suite given as a name (`quick`) or as a path (`suites/quick.yaml`)."""
    for path in (Path(name), Path("suites") / f"{name}.yaml"):
        if path.is_file():
            return path
    known = [p.stem for p in Path("suites").glob("*.yaml")]
    raise UserError(f"no suite {name}: not a file, and not in suites/. {nearest(name, known)}")


def select(cells: Sequence[Cell], only: str | None) -> list[Cell]:
    """The cells that match `--only`, e.g. `method=lora,model=llama-2-7b` (`a|b` for either).

    Raises UserError for an unknown key or a value that matches no cell.
    """
    chosen = list(cells)
    for condition in filter(None, (only or "").split(",")):
        key, _, value = (part.strip() for part in condition.partition("="))
        if key not in COORDINATES:
            raise UserError(f"--only {condition}: unknown key {key!r}. {nearest(key, COORDINATES)}")
        wanted = set(value.split("|"))
        known = {_coordinate(cell, key) for cell in cells}
        for name in sorted(wanted - known):
            raise UserError(
                f"--only {condition}: no cell has {key} {name!r}. " + nearest(name, known)
            )
        chosen = [cell for cell in chosen if _coordinate(cell, key) in wanted]
    return chosen


def _coordinate(cell: Cell, key: str) -> str:
    if key == "micro_batch":
        return str(cell.budget.micro_batch)
    if key in ("seed", "id"):
        return str(getattr(cell, key))
    return str(getattr(cell, key).name)


# ---------------------------------------------------------------- the matrix

Lists = tuple[list[TargetSpec], list[ModelSpec], list[DatasetSpec], list[MethodSpec]]
Combination = tuple[TargetSpec, ModelSpec, DatasetSpec, tuple[int, MethodSpec]]


def _crossed(
    written: SuiteFile, document: Document, lists: Lists
) -> tuple[list[Cell], list[tuple[str, str]]]:
    """The cells, and what is left out with its reason."""
    cells: list[Cell] = []
    excluded: list[tuple[str, str]] = []
    asked: dict[str, str] = {}  # what is asked of an API: by which method
    for target, model, dataset, (index, method) in _matrix(*lists):
        name = " × ".join(s.name for s in (model, method, dataset, target))
        rules = [r for r in written.rules if _applies(r.when, model, method, dataset, target)]
        barred = next((rule.reason for rule in rules if rule.exclude), None)
        if barred is None and model.endpoint is not None:
            barred = _unaskable(method, lists[1])
        if barred is not None:
            excluded.append((name, barred))
            continue
        point = _Point(written, rules, model, method, dataset, target)
        try:
            made = list(point.cells())
        except ValidationError as error:
            text = explain_first(Cell, error)
            place = point.origin(text) or ("methods", index)
            raise UserError(
                f"{document.where(place)}: {method.name} × {target.name}: {text}"
            ) from None
        if model.endpoint is not None:
            identity = made[0].identity()
            question = str(identity | {"method": identity["method"] | {"name": ""}})
            if asked.setdefault(question, method.name) != method.name:
                excluded.append((name, f"asks an API what {asked[question]} asks already"))
                continue
        cells += made
    return cells, excluded


def _matrix(
    targets: Sequence[TargetSpec],
    models: Sequence[ModelSpec],
    datasets: Sequence[DatasetSpec],
    methods: Sequence[MethodSpec],
) -> Iterator[Combination]:
    """Models with weights on every target; those behind an endpoint once, on no machine."""
    held = [model for model in models if model.endpoint is None]
    asked = [model for model in models if model.endpoint is not None]
    yield from itertools.product(targets, held, datasets, enumerate(methods))
    yield from itertools.product([API], asked, datasets, enumerate(methods))


def _unaskable(method: MethodSpec, models: Sequence[ModelSpec]) -> str | None:
    """Why a method can't be had from an API; None where it can."""
    if method.trains:
        return "an API's weights can't be trained here: it is only asked (methods of kind base)"
    if method.quantization is not None:
        return "an API's weights can't be quantised here: it is only asked (methods of kind base)"
    if not method.needs_model and any(model.endpoint is None for model in models):
        return "needs no model: it stands with those that have weights"
    return None


@dataclass(frozen=True)
class _Point:
    """One model × method × dataset × target, and the rules that apply to it."""

    written: SuiteFile
    rules: list[Rule]
    model: ModelSpec
    method: MethodSpec
    dataset: DatasetSpec
    target: TargetSpec

    def cells(self) -> Iterator[Cell]:
        budget = self.written.budget.model_dump(exclude_none=True)
        method = self.method.model_dump(mode="json")
        seeds = self.written.seeds
        strategy = self.written.strategy
        sizes = self.written.micro_batches
        local = self.method.needs_model and not self.model.endpoint
        serve = self.written.serve if local else None
        for rule in self.rules:
            budget = _budget(budget, rule)
            sizes = rule.micro_batches or (() if "micro_batch" in rule.budget else sizes)
            method = _merge(method, rule.method)
            seeds = rule.seeds or seeds
            strategy = rule.strategy or strategy
            serve = serve if rule.serve else None
        if not self.method.trains:
            # Greedy answers of untouched weights don't depend on a seed: one cell says it all.
            sizes, seeds = (), seeds[:1]
            budget.pop("score_rows", None)
        budgets = [budget | {"micro_batch": size} for size in dict.fromkeys(sizes)] or [budget]
        for spent, seed in itertools.product(budgets, seeds):
            yield Cell(
                suite=self.written.name,
                suite_version=self.written.version,
                model=self.model,
                method=MethodSpec.model_validate(method),
                dataset=self.dataset,
                target=self.target,
                strategy=Strategy() if self.model.endpoint else strategy,
                budget=Budget.model_validate(spent),
                seed=seed,
                converged=self.written.converged,
                comparison=self.written.comparison,
                constraints=self.written.constraints,
                serve=serve,
            )

    def origin(self, text: str) -> Location | None:
        """Where the suite gives the budget's field that a message begins with; None if nowhere."""
        field, _, rest = text.partition(" ")
        if field not in Budget.model_fields:
            return None
        for rule in reversed(self.rules):
            place: Location = ("rules", self.written.rules.index(rule))
            if field == "micro_batch" and rule.micro_batches:
                return *place, "micro_batches", _index(rule.micro_batches, rest)
            if field in rule.budget:
                return *place, "budget", field
        if field == "micro_batch" and self.written.micro_batches:
            return "micro_batches", _index(self.written.micro_batches, rest)
        return "budget", field


def _index(sizes: Sequence[int], text: str) -> int:
    """Which of the sizes a text begins with."""
    return [str(size) for size in sizes].index(text.split(maxsplit=1)[0])


def _budget(base: dict[str, Any], rule: Rule) -> dict[str, Any]:
    """A rule that counts in steps replaces a budget that counts in epochs, and the reverse."""
    length = {"max_steps", "epochs"}
    if length & rule.budget.keys():
        base = {key: value for key, value in base.items() if key not in length}
    return base | rule.budget


def _applies(
    when: When, model: ModelSpec, method: MethodSpec, dataset: DatasetSpec, target: TargetSpec
) -> bool:
    pairs = (
        (when.model, model.name),
        (when.method, method.name),
        (when.dataset, dataset.name),
        (when.target, target.name),
    )
    return all(not names or name in names for names, name in pairs)


# ---------------------------------------------------------------- names and overrides


def load_spec(kind: type[S], path: Path) -> S:
    """Read one model, method, dataset or target file; its `name` is the file's stem."""
    document = read_yaml(path)
    spec = validate(kind, document)
    name = getattr(spec, "name", None)
    if name != path.stem:
        where = document.where(("name",))
        raise UserError(f"{where}: name is {name!r}, but the file is {path.name}: make them equal")
    return spec


def load_named(kind: type[S], name: str) -> S:
    """The model, method, dataset or target of that name in suites/.

    Raises UserError with the names that there are.
    """
    folder = Path("suites") / f"{kind.__name__.removesuffix('Spec').lower()}s"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = [p.stem for p in folder.glob("*.yaml")]
        raise UserError(f"no file {shown(path)}. {nearest(name, known)}")
    return load_spec(kind, path)


def _resolve(
    kind: type[S],
    entries: Sequence[str | Reference],
    folder: Path,
    document: Document,
    key: str,
) -> list[S]:
    """The specs that a suite's list names, overrides applied, in the suite's order."""
    specs: list[S] = []
    for index, entry in enumerate(entries):
        name = entry if isinstance(entry, str) else entry.use
        path = folder / f"{name}.yaml"
        where = document.where((key, index))
        if not path.is_file():
            known = [p.stem for p in folder.glob("*.yaml")]
            raise UserError(f"{where}: {key}: no file {shown(path)}. {nearest(name, known)}")
        spec = load_spec(kind, path)
        if isinstance(entry, Reference):
            merged = _merge(spec.model_dump(mode="json"), entry.model_extra or {})
            spec = validate(kind, Document(document.path, merged, document.lines), (key, index))
        if any(getattr(spec, "name", None) == getattr(s, "name", None) for s in specs):
            raise UserError(
                f"{where}: {key}: {name} is listed twice: give the variant a `name` of its own"
            )
        specs.append(spec)
    return specs


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`; mappings merge, everything else replaces."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(base.get(key), dict) and isinstance(value, dict)
        merged[key] = _merge(base[key], value) if both else value
    return merged


def _check_kinds(methods: Sequence[MethodSpec], document: Document) -> None:
    kinds = _file_names(METHOD_KINDS)
    for index, method in enumerate(methods):
        if method.kind not in kinds:
            where = document.where(("methods", index))
            raise UserError(
                f"{where}: method {method.name}: unknown kind {method.kind!r}. "
                f"{nearest(method.kind, kinds)}"
            )


def _check_strategies(written: SuiteFile, document: Document) -> None:
    known = {"auto", *_file_names(STRATEGIES)}
    places: dict[Location, Strategy] = {("strategy",): written.strategy}
    for index, rule in enumerate(written.rules):
        if rule.strategy:
            places["rules", index, "strategy"] = rule.strategy
    for place, strategy in places.items():
        if strategy.name not in known:
            raise UserError(
                f"{document.where(place)}: strategy: no {strategy.name} yet. "
                f"{nearest(strategy.name, known)}"
            )


def _file_names(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}


def _check_files(datasets: Sequence[DatasetSpec], root: Path, document: Document) -> None:
    for index, dataset in enumerate(datasets):
        sources = (*dataset.train, *dataset.validation, *dataset.test)
        for file in itertools.chain.from_iterable(source.files for source in sources):
            if not (root / file).is_file():
                where = document.where(("datasets", index))
                raise UserError(
                    f"{where}: dataset {dataset.name}: no file {shown(root / file)} "
                    "(paths are relative to the folder that holds suites/)"
                )


def _check_comparison(
    written: SuiteFile,
    document: Document,
    methods: Sequence[MethodSpec],
    datasets: Sequence[DatasetSpec],
) -> None:
    """Names that a person wrote must exist; the default reference may be missing."""
    comparison = written.comparison
    names = [method.name for method in methods]
    if "reference" in comparison.model_fields_set and comparison.reference not in names:
        where = document.where(("comparison", "reference"))
        raise UserError(
            f"{where}: comparison: this suite has no method {comparison.reference!r}. "
            f"{nearest(comparison.reference, names)}"
        )
    known = [f"{f.name}.{metric}" for d in datasets for f in d.answer for metric in f.metrics]
    for metric in comparison.margins:
        if metric not in known:
            where = document.where(("comparison", "margins", metric))
            raise UserError(
                f"{where}: comparison: no dataset has a metric {metric!r}. {nearest(metric, known)}"
            )


def _check_converged(written: SuiteFile, document: Document, cells: Sequence[Cell]) -> None:
    """The method exists; the metric is every dataset's own, and somebody will measure it."""
    target = written.converged
    trained = [cell for cell in cells if cell.method.trains]
    if target is None or not trained:
        return
    names = sorted({cell.method.name for cell in trained})
    if target.relative_to and target.relative_to not in names:
        where = document.where(("converged", "relative_to"))
        raise UserError(
            f"{where}: converged: no trained method {target.relative_to!r} here. "
            f"{nearest(target.relative_to, names)}"
        )
    if target.score is None:
        return
    where = document.where(("converged", "score"))
    for dataset in {cell.dataset.name: cell.dataset for cell in trained}.values():
        known = [f"{f.name}.{metric}" for f in dataset.answer for metric in f.metrics]
        metric = target.metric(dataset)
        if metric not in known or ":" in metric:  # others' metrics: which way is better?
            raise UserError(
                f"{where}: converged: dataset {dataset.name} has no built-in metric {metric!r}. "
                f"{nearest(metric, [name for name in known if ':' not in name])}"
            )
    if all(cell.budget.score_rows is None for cell in trained):
        raise UserError(
            f"{where}: converged: a score is known only where validation rows are answered during "
            "training: set `budget: {score_rows: 64}`"
        )


def _check_rules(written: SuiteFile, document: Document, lists: Sequence[Sequence[Spec]]) -> None:
    known = dict(zip(("model", "method", "dataset", "target"), lists, strict=True))
    for index, rule in enumerate(written.rules):
        for key, specs in known.items():
            names = [str(getattr(spec, "name", "")) for spec in specs]
            for name in getattr(rule.when, key):
                if name not in names:
                    where = document.where(("rules", index, "when", key))
                    raise UserError(
                        f"{where}: rules: this suite has no {key} {name!r}. {nearest(name, names)}"
                    )
        try:
            Budget.model_validate(_budget(written.budget.model_dump(exclude_none=True), rule))
        except ValidationError as error:
            where = document.where(("rules", index, "budget"))
            raise UserError(f"{where}: rules: budget: {explain_first(Cell, error)}") from None
