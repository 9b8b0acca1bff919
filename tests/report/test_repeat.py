"""Two attempts of a cell: the same to the last digit, the same within noise, or not the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.record import Status, StepEvent
from bench.report.repeat import Line, Repeat, notes, repeat, table
from bench.store import CellResult, append_line

from .made import ENVIRONMENT, Run, add, cell


def again(tmp_path: Path, first: Run, second: Run, method: str = "lora") -> Repeat:
    made = cell("m", method)
    folder = add(tmp_path, made, first)
    add(tmp_path, made, second)
    found = CellResult(made, folder)
    one, two = found.attempts
    return repeat(found, one, two)


def line(found: Repeat, what: str) -> Line:
    return next(one for one in found.lines if one.what == what)


def test_the_same_again(tmp_path: Path) -> None:
    found = again(tmp_path, Run(), Run())
    assert found.agrees and found.words == "attempt-002 is attempt-001 again, to the last digit"
    whats = [one.what for one in found.lines]
    assert whats[:4] == ["outcome", "step losses", "validation losses", "answers"]
    assert {"score intent.f1", "tokens/s", "peak of train, GiB"} <= set(whats)
    assert {one.verdict for one in found.lines if one.result} == {"identical"}
    assert list(table(found).columns)[1:3] == ["attempt-001", "attempt-002"]
    assert next(notes(found)).startswith("environment: the same")


def test_other_answers_with_the_same_scores_are_noise(tmp_path: Path) -> None:
    found = again(tmp_path, Run(right=0.70, rows=120), Run(right=0.75, rows=120))
    assert line(found, "answers").verdict == "within noise"
    assert line(found, "answers").told.startswith("6 of 120 are other words, e.g. row-")
    assert found.agrees and found.words == "attempt-002 agrees with attempt-001 within noise"


def test_worse_answers_are_no_noise(tmp_path: Path) -> None:
    found = again(tmp_path, Run(right=0.9, rows=120), Run(right=0.4, rows=120))
    assert not found.agrees
    assert line(found, "score intent.accuracy").verdict == "differs"
    assert line(found, "answers").verdict == "differs"
    assert "does not agree with attempt-001: answers, score" in found.words
    assert found.as_json()["agrees"] is False


def test_losses_that_drift_are_told_from_losses_that_part(tmp_path: Path) -> None:
    parted = again(tmp_path / "a", Run(loss=(3.0, 1.5)), Run(loss=(3.0, 1.9)))
    assert line(parted, "step losses").verdict == "differs" and not parted.agrees
    drifted = _with_noise(tmp_path / "b", 1e-4)
    told = line(drifted, "step losses")
    assert told.verdict == "within noise" and told.told.startswith("part at 1 of 20; largest")


def _with_noise(folder: Path, size: float) -> Repeat:
    """A second attempt whose losses are off by a little, up and down."""
    made = cell("m", "lora")
    path = add(folder, made)
    add(folder, made)
    found = CellResult(made, path)
    events = found.attempts[1].path / "events.jsonl"
    steps = CellResult(made, path).attempts[1].events
    events.unlink()
    rng = np.random.default_rng(0)
    for event in steps:
        if event["event"] == "step":
            noisy = StepEvent.model_validate(event)
            noisy.loss = (noisy.loss or 0) + rng.normal(0, size)
            append_line(events, noisy)
        else:
            append_line(events, event)
    return repeat(found, *found.attempts)


def test_slower_or_larger_is_told_but_decides_nothing(tmp_path: Path) -> None:
    found = again(tmp_path, Run(), Run(step_s=1.0, peak_bytes=6 * 2**30))
    assert line(found, "tokens/s").verdict == "differs"
    assert line(found, "tokens/s").told.startswith("×0.5")
    assert line(found, "peak of train, GiB").told == "×1.50"
    assert found.agrees


def test_another_environment_is_listed_and_speeds_not_compared(tmp_path: Path) -> None:
    other = ENVIRONMENT.model_copy(
        update={"driver": "560", "git_dirty": True, "packages": {"torch": "2.12.0"}}
    )
    found = again(tmp_path, Run(), Run(environment=other))
    assert set(found.environment) == {
        "driver: none → 560",
        "torch: 2.13.0 → 2.12.0",
        "transformers: 5.24.0 → not there",
        "uncommitted changes: no → yes",
    }
    assert line(found, "tokens/s").verdict == "not compared"


def test_a_failure_is_no_repetition(tmp_path: Path) -> None:
    failed = Run(steps=3, train={"status": Status.OOM_HOST, "reason": "no memory"})
    found = again(tmp_path, Run(), failed)
    assert not found.agrees
    assert (line(found, "outcome").second, line(found, "outcome").told) == (
        "oom_host",
        "no memory",
    )


def test_what_chance_decides_is_named(tmp_path: Path) -> None:
    found = again(tmp_path, Run(), Run(audit={"nondeterministic_ops": ["put_"]}))
    assert found.chance == ("put_",)
    assert "put_" in list(notes(found))[1]


def test_untrained_cells_have_answers_alone(tmp_path: Path) -> None:
    found = again(tmp_path, Run(), Run(), method="base")
    assert found.agrees and "step losses" not in {one.what for one in found.lines}
