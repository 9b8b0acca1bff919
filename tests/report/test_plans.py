"""plan.json as it is written is what the report reads; what is absent stays unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import UserError
from bench.plan import Limit, Plan
from bench.report import compare, fits, plans
from bench.report.rows import PLANNED, rows
from bench.store import read_suite

from . import scale
from .made import GIB, Run, add, cell, gpu_target

TARGET = gpu_target("1xl40s-48gb", device_memory_gib=44.4, devices=1)


def test_a_written_plan_is_read_whole(tmp_path: Path) -> None:
    asked = cell("m", "full", target=TARGET)
    scale.write(tmp_path, asked, run=False)
    written = scale.plan(asked)
    (row,) = rows(read_suite(tmp_path, "made"))
    assert row.status == PLANNED and not row.failed and row.link("plan.json")
    found = row.plan
    assert found and found.device_bytes == written.device_bytes and found.fits
    assert found.breakdown["activations"] == 3 * GIB
    assert found.hours == pytest.approx((written.train_s or 0) / 3600)
    assert set(found.phases) == {"forward", "backward"}


def test_what_a_plan_lacks_is_unknown() -> None:
    nothing = Plan(fits=None, strategy="single", micro_batch=4, notes=["can't be built"])
    assert plans.of(nothing) == plans.Planned(
        strategy="single", micro_batch=4, notes=("can't be built",)
    )
    found = plans.of(
        Plan(
            fits=False,
            strategy="zero3",
            micro_batch=1,
            offload_params=True,
            train_s=3600,
            generate_s=1800,
            generation_bytes=GIB,
            limits=[Limit(name="gpu", phase="load", need_bytes=3 * GIB, have_bytes=GIB)],
        )
    )
    assert (found.strategy, found.hours) == ("zero3+offload", 1.5)
    assert found.phases == {"generate": GIB} and found.breaks == "gpu in load: 2.0 GiB too little"


def test_a_damaged_plan_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(UserError, match=r"plan\.json: .*damaged"):
        plans.read(tmp_path)


def test_fits_sets_predicted_beside_measured(tmp_path: Path) -> None:
    asked = cell("m", "full", target=TARGET)
    scale.write(tmp_path, asked, run=False)
    add(tmp_path, asked, Run(peak_bytes=5 * GIB))
    panels = compare.panels(rows(read_suite(tmp_path, "made")))
    (fit,) = fits.fits(panels)
    assert fit.answer == "fits" and fit.measured_bytes == 5 * GIB and fit.predicted_bytes
    assert list(fits.table(panels)["measured, GiB"]) == ["5.00"]
    assert len(fits.errors(panels)) == len(fits.breakdown(panels)) == 1
