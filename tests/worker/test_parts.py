"""A quantised model loaded in parts: each rank reads and keeps its own, together they are it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.spec import Cell
from bench.worker import load, parts, quantize, shards
from bench.worker.proof import weights

from . import moe
from .conftest import changed

WORLD = 2


def as_ranks(monkeypatch: Any, action: Any) -> list[Any]:
    """What each of two ranks makes; loading in parts talks to no other rank."""
    made = []
    monkeypatch.setenv("WORLD_SIZE", str(WORLD))
    for rank in range(WORLD):
        monkeypatch.setenv("RANK", str(rank))
        with parts.loading():
            made.append(action())
    return made


def together(ranks: list[Any], name: str) -> torch.Tensor:
    """A parameter of all ranks, put together where each holds a part."""
    held = [model.get_parameter(name) for model in ranks]
    whole = getattr(held[0], parts.WHOLE_SHAPE, None)
    if whole is None:
        assert all(torch.equal(one, held[0]) for one in held)
        return held[0].data
    made = torch.cat([one.data for one in held])
    assert made.shape == whole
    return made


def are_parts_of(ranks: list[Any], single: Any) -> int:
    """Checks every parameter; returns how many are held in parts."""
    for name, expected in single.named_parameters():
        assert torch.equal(together(ranks, name), expected.data), name
    held = list(ranks[0].parameters())
    assert sum(p.numel() for p in held) < sum(p.numel() for p in single.parameters())
    return sum(hasattr(p, parts.WHOLE_SHAPE) for p in held)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_two_ranks_hold_what_one_would(family: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Read from one tensor an expert."""
    moe.save(family, tmp_path)
    single = moe.load(tmp_path)
    read: list[str] = []
    rows = parts._own

    def spied(*args: Any) -> Any:
        for (renamed, key), tensor in rows(*args):
            read.append(key)
            yield (renamed, key), tensor

    monkeypatch.setattr(parts, "_own", spied)
    ranks = as_ranks(monkeypatch, lambda: moe.load(tmp_path))
    linear = sum(type(p).__name__ == "Params4bit" for p in single.parameters())
    packed = 4 * len(moe.experts_of(single))
    assert are_parts_of(ranks, single) == linear + packed
    of_experts = [key for key in read if ".experts." in key]
    assert of_experts and len(of_experts) == len(set(of_experts))  # none by both


def test_whole_again_is_zero_where_another_rank_has_the_values(
    tmp_path: Path, monkeypatch: Any
) -> None:
    moe.save("qwen3_moe", tmp_path)
    single = moe.load(tmp_path)
    second = as_ranks(monkeypatch, lambda: moe.load(tmp_path))[1]
    parts.whole_again(second)
    name = "model.layers.1.mlp.experts.down_proj"
    codes = second.get_parameter(name)
    assert torch.equal(codes[4:], single.get_parameter(name)[4:]) and not codes[:4].any()
    assert not any(hasattr(p, parts.WHOLE_SHAPE) for p in second.parameters())
    shapes = [p.shape for p in second.parameters()]
    assert shapes == [p.shape for p in single.parameters()]


@pytest.mark.parametrize("how", ["random", "written"])
def test_fused_tensors_are_read_in_rows(
    cells: dict[tuple[str, str], Cell], tmp_path: Path, monkeypatch: Any, how: str
) -> None:
    monkeypatch.setenv("ADAPTBENCH_CACHE", str(tmp_path))
    cell = changed(cells["tiny-qwen3-moe", "qlora"], model={"weights": "random"})
    single = load.model(cell)
    if how == "written":
        quantize.write(cell.model, cell.method)
    ranks = as_ranks(monkeypatch, lambda: load.model(cell))
    assert are_parts_of(ranks, single) > 0
    for model in ranks:
        facts = model.load_facts
        assert facts.held_bytes == shards.held_bytes(model) < 0.8 * shards.held_bytes(single)
        assert facts.unquantized_bytes == weights.full_bytes(single, torch.float32)


def test_experts_that_do_not_divide_stay_whole(tmp_path: Path, monkeypatch: Any) -> None:
    moe.save("qwen3_moe", tmp_path, num_experts=7)
    single = moe.load(tmp_path)
    ranks = as_ranks(monkeypatch, lambda: moe.load(tmp_path))
    are_parts_of(ranks, single)
    experts = moe.experts_of(ranks[1])
    assert all(len(p) == 7 for module in experts for p in module.parameters())


@pytest.mark.parametrize("how", ["random", "written"])
def test_no_rank_ever_holds_the_model(
    cells: dict[tuple[str, str], Cell], tmp_path: Path, monkeypatch: Any, how: str
) -> None:
    """300 MiB in bf16, 78 in 4 bit, 12 layers: a rank's part and one layer, also at the peak."""
    monkeypatch.setenv("ADAPTBENCH_CACHE", str(tmp_path))
    width, layers, experts = 512, 12, 16
    small = changed(
        cells["tiny-qwen3-moe", "qlora"],
        model={"weights": "random"},
        method={"dtype": "bf16", "quantization": {"compute_dtype": "bf16"}},
    )
    shape = {"hidden_size": width, "num_hidden_layers": layers}
    shape |= {"moe_intermediate_size": width, "num_experts": experts}
    cell = changed(small, model={"config": {**small.model.config, **shape}})
    load.model(small)  # what libraries and the pool take stays, whatever is loaded next
    if how == "written":
        quantize.write(cell.model, cell.method)
    for model in as_ranks(monkeypatch, lambda: load.model(cell)):
        facts, layer_bytes = model.load_facts, experts * 3 * width * width * 2
        assert facts.unquantized_bytes > layers * layer_bytes == 288 * 2**20
        assert facts.held_bytes < 0.15 * facts.unquantized_bytes
        # Loaded whole, random weights grow the host by 123 to 208 MB; here by 51 to 67
        most = facts.held_bytes + 2 * layer_bytes if how == "random" else 0.1 * facts.held_bytes
        assert facts.host_peak_bytes is not None and facts.host_peak_bytes < most
