"""Allocator, quantised bytes, kernels, lengths, sharding and the accuracy statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch
import torch.nn.functional as F

from bench.fit import accuracy, growth, kernels, lengths
from bench.fit.allocator import ALLOC, FREE, MIB, CachingAllocator
from bench.fit.build import build
from bench.fit.cache import Cache
from bench.fit.cases import request_of
from bench.fit.constants import constant
from bench.fit.memory import step_memory
from bench.fit.precision import Autocast
from bench.fit.quantize import quant_state_tensors
from bench.fit.request import Adapter, Quantization, Request, Sharding
from bench.fit.steptime import find_gpu
from bench.plan import StepMemory

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
TINY = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
}
ADAPTER = Adapter(rank=8, dtype="bf16")


def tiny(**fields: Any) -> Request:
    return Request(**{"config": TINY, "seq_len": 256, **fields})


# ---------------------------------------------------------------- allocator


def test_small_requests_share_a_two_mebibyte_segment() -> None:
    allocator = CachingAllocator().run([(ALLOC, 1, 1000, 0), (ALLOC, 2, 1000, 0)])
    assert (allocator.allocated, allocator.reserved) == (2048, 2 * MIB)


def test_medium_and_large_segments() -> None:
    assert CachingAllocator().run([(ALLOC, 1, 3 * MIB, 0)]).reserved == 20 * MIB
    assert CachingAllocator().run([(ALLOC, 1, 11 * MIB, 0)]).reserved == 12 * MIB


def test_freed_block_is_reused_and_neighbours_merge() -> None:
    events = [(ALLOC, i, 4 * MIB, 0) for i in range(5)] + [(FREE, i, 0, 0) for i in range(5)]
    allocator = CachingAllocator().run([*events, (ALLOC, 9, 18 * MIB, 0)])
    assert allocator.max_reserved == 20 * MIB


def test_growing_lengths_fragment_segments_but_not_an_expandable_range() -> None:
    events = []
    for step in range(1, 9):
        events += [(ALLOC, step, step * 30 * MIB, 0), (FREE, step, 0, 0)]
    assert CachingAllocator().run(events).max_reserved > 1000 * MIB
    assert CachingAllocator(expandable=True).run(events).max_reserved == 240 * MIB


def test_streams_do_not_share_blocks() -> None:
    events = [(ALLOC, 1, 30 * MIB, 0), (FREE, 1, 0, 0), (ALLOC, 2, 30 * MIB, 1)]
    assert CachingAllocator().run(events).max_reserved == 60 * MIB


def test_near_the_limit_the_cache_is_returned_before_failing() -> None:
    events = [(ALLOC, 1, 30 * MIB, 0), (FREE, 1, 0, 0), (ALLOC, 2, 40 * MIB, 0)]
    allocator = CachingAllocator(capacity=50 * MIB).run(events)
    assert (allocator.retries, allocator.out_of_memory) == (1, False)
    assert CachingAllocator(capacity=39 * MIB).run(events).out_of_memory


# ---------------------------------------------------------------- weights and kernels


@pytest.mark.parametrize(("double", "scale_bytes"), [(False, 4), (True, 1)])
def test_nf4_bytes_are_exact(double: bool, scale_bytes: int) -> None:
    quantization = Quantization(double_quant=double)
    model = build(tiny(method="qlora", adapter=ADAPTER, quantization=quantization))
    packed = [p.numel() for p in model.parameters() if p.dtype == torch.uint8]
    linear = 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512)
    assert sum(packed) == linear // 2
    held = sum(t.numel() * t.element_size() for t in quant_state_tensors(model))
    blocks = linear // 64
    per_layer = 64 + (1024 + 4 if double else 0)  # codes, second-level codes, offset
    second = sum(-(-size * 2 // 64 // 256) * 4 for size in packed) if double else 0
    assert held == blocks * scale_bytes + len(packed) * per_layer + second


def test_attention_without_a_mask_is_flash_and_keeps_no_scores() -> None:
    tensors = [torch.empty(1, 4, 512, 64, dtype=torch.bfloat16, device="meta") for _ in range(3)]
    with kernels.cuda_kernels_selected():
        out = F.scaled_dot_product_attention(*tensors, is_causal=True)
    assert out.shape == (1, 4, 512, 64)


# ---------------------------------------------------------------- steps


def test_checkpointing_saves_memory_and_costs_recomputation() -> None:
    plain = step_memory(tiny(method="full", checkpointing="none"))
    saved = step_memory(tiny(method="full", checkpointing="full"))
    assert saved.phases["steady/forward"] < plain.phases["steady/forward"]
    assert _flops(saved) > 1.1 * _flops(plain)


def _flops(memory: StepMemory) -> int:
    return sum(flops * count for flops, _, _, count in memory.micro_costs)


def test_quantised_products_are_counted_in_the_flops() -> None:
    lora = step_memory(tiny(method="lora", adapter=ADAPTER))
    qlora = step_memory(tiny(method="qlora", adapter=ADAPTER, quantization=Quantization()))
    assert _flops(qlora) == pytest.approx(_flops(lora), rel=0.1)


@pytest.mark.parametrize("loss", ["native", "chunked", "liger"])
def test_other_loss_paths_need_less_than_the_upcast(loss: str) -> None:
    upcast = step_memory(tiny(method="lora", adapter=ADAPTER))
    other = step_memory(tiny(method="lora", adapter=ADAPTER, loss=loss))
    assert other.allocated_bytes < upcast.allocated_bytes


def test_sharding_divides_states_and_offload_moves_them() -> None:
    one = step_memory(tiny(method="full"))
    kinds = ("ddp", "fsdp", "zero2", "zero3")
    shards = {
        kind: step_memory(tiny(method="full", sharding=Sharding(kind=kind, devices=4)))
        for kind in kinds
    }
    assert shards["ddp"].allocated_bytes > one.allocated_bytes > shards["fsdp"].allocated_bytes
    away = Sharding(kind="zero3", devices=4, offload_params=True, offload_optimizer=True)
    moved = step_memory(tiny(method="full", sharding=away))
    assert moved.allocated_bytes < shards["zero3"].allocated_bytes
    assert moved.host_bytes > shards["zero3"].host_load_bytes


def test_varying_lengths_reserve_more_than_the_longest_alone() -> None:
    drawn = lengths.typical_lengths(2048)
    varied = tiny(method="lora", adapter=ADAPTER, lengths=drawn, checkpointing="none")
    found = growth.growth(varied, remedies=True)
    fixed = Cache().memory(varied).reserved_bytes
    assert 0 < found.median_bytes <= found.high_bytes < fixed
    assert found.expandable_bytes is not None and found.expandable_bytes < found.median_bytes


def test_a_mean_batch_takes_its_share_of_the_longest_ones_time() -> None:
    alike = tiny(method="full", attention="eager", lengths=(256, 1024))
    costs = growth.pace(alike)
    flops = [
        sum(f * count for f, _, _, count in rows)
        for rows in (costs.mean_costs, costs.longest_costs)
    ]
    # products with weights grow with the length, those of attention with its square
    assert (640 / 1024) ** 2 < flops[0] / flops[1] < 640 / 1024


def test_lengths_beyond_the_positions_are_one_clear_line() -> None:
    with pytest.raises(ValueError, match="exceeds the model's 4096 positions"):
        tiny(seq_len=8192)


def test_autocast_never_hands_out_another_tensors_cast() -> None:
    """A dead tensor's identity is soon another one's."""
    with Autocast(torch.bfloat16), torch.no_grad():  # a cast's history would keep its source alive
        rows = torch.empty(3, 4, device="meta")
        for width in (8, 16) * 20:
            weight = torch.empty(4, width, device="meta", requires_grad=True)
            assert torch.mm(rows, weight).shape == (3, width)
            del weight


def test_autocast_caches_weights_and_not_their_views() -> None:
    kept = torch.empty(2, 4, 8, device="meta", requires_grad=True)
    rows = torch.empty(3, 4, device="meta")
    with Autocast(torch.bfloat16) as mode:
        torch.mm(rows, kept[0])
        assert not mode.cache
        torch.matmul(rows, kept)
        torch.matmul(rows, kept)
        assert len(mode.cache) == 1


# ---------------------------------------------------------------- published cases


def test_statistics_of_errors() -> None:
    def outcome(error: float) -> accuracy.Outcome:
        return accuracy.Outcome(
            "x", "f", "reserved", 1.0, 1 + error, 1.0, error, "fits", "fits", "", 0.0
        )

    found = accuracy.summary([outcome(e) for e in (-0.02, 0.04, 0.3)])
    assert (found["n"], found["median"], found["signed"]) == (3, 0.04, 0.04)
    assert found["within_5"] == pytest.approx(2 / 3)


@pytest.mark.skipif(not CASES.exists(), reason="the cases are not part of the project")
def test_a_published_reserved_figure_is_met_within_two_percent(tmp_path: Path) -> None:
    models = json.loads((CASES / "models.json").read_text())
    rows = map(json.loads, (CASES / "vram_measured.jsonl").read_text().splitlines())
    row = next(row for row in rows if row["id"] == "peft-lora-rank64")
    assert request_of(row, models).padded
    found = accuracy.predict_case(row, models, Cache(tmp_path))
    assert found.error == pytest.approx(0, abs=0.02)
    assert accuracy.predict_case(row, models, Cache(tmp_path)).seconds < 1


def test_gpu_names_find_their_peaks() -> None:
    assert (find_gpu("A100-SXM4-80GB") or {})["tflops"] == 312
    assert (find_gpu("H20 96GB") or {})["tflops"] == 148
    assert find_gpu("Voodoo 2") is None


MIXTURE = {
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 1024,
}


def test_a_sharded_rank_loads_its_part_and_a_layer() -> None:
    """Of a mixture in 4 bit; the unpacked rest is whole on each rank until it is sharded."""
    adapter = Adapter(rank=8, dtype="bf16", target_modules=("q_proj", "v_proj"))
    fields = {"config": MIXTURE, "method": "qlora", "adapter": adapter, "seq_len": 64}
    fields["quantization"] = Quantization(experts=True)
    single, two, four = (
        step_memory(Request(**fields, sharding=Sharding(kind=kind, devices=devices)))
        for kind, devices in (("single", 1), ("fsdp", 2), ("zero3", 4))
    )
    assert single.load_bytes == 0
    experts, attention = 2 * 8 * 3 * 128 * 256, 2 * 2 * 256 * (256 + 128)
    packed = (experts + attention) // 2 + experts // 64 + 4 * experts // 64 // 256
    assert two.load_bytes - four.load_bytes == pytest.approx(packed / 4, rel=0.001)
    assert two.load_bytes == pytest.approx(
        single.held_bytes - packed / 2 + 4 * packed / 2, rel=0.001
    )
    processes = 2 * int(constant("process_host_gib") * (1 << 30))
    assert two.host_load_bytes - processes == 2 * (2 * single.parameters) // 2


def test_experts_are_held_as_the_worker_holds_them() -> None:
    """4 bits a weight and an 8-bit scale for 64 of them; a layer's experts unpacked at a time."""
    adapter = Adapter(rank=8, dtype="bf16", target_modules=("q_proj", "v_proj"))
    fields = {"config": MIXTURE, "method": "qlora", "adapter": adapter, "seq_len": 64}
    plain = step_memory(Request(**fields, quantization=Quantization()))
    packed = step_memory(Request(**fields, quantization=Quantization(experts=True)))
    weights = 2 * 8 * 3 * 128 * 256
    scales = weights // 64 + 4 * weights // 64 // 256
    saved = plain.held_bytes - packed.held_bytes
    assert saved == pytest.approx(2 * weights - weights / 2 - scales, rel=0.001)
    assert packed.parameters == plain.parameters
    assert _flops(packed) >= _flops(plain)
