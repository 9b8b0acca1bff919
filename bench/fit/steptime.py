"""Seconds of a step: a roofline over every traced operator, plus what links carry.

    operator   max(flops / (peak × efficiency), bytes / (bandwidth × efficiency), shortest kernel)
    launches   the host hands kernels out ahead of the GPU: the slower of the two sets the pace
    sharding   FSDP and ZeRO-3 gather every weight in the forward and again in the backward and
               reduce every gradient; DDP and ZeRO-1/2 reduce gradients once an update.  Ring
               collectives move (n-1)/n of the bytes through each rank's link.
    offload    weights come and gradients go over PCIe, the update runs at host memory speed

Communication overlaps compute: the longer of the two counts, with a stated share of the shorter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.fit.constants import constant
from bench.fit.costs import Cost, StepCosts
from bench.fit.request import DTYPE_BYTES, Request
from bench.plan import StepTime

GPUS = Path(__file__).with_name("gpus.yaml")


@dataclass(frozen=True)
class Gpu:
    """Peaks of one device and its links, per second; links one way."""

    flops: float
    fp32_flops: float
    memory: float
    link: float
    pcie: float
    nvlink: bool
    name: str = ""  # its `match` in gpus.yaml: constants can be its own


def find_gpu(name: str) -> dict[str, Any] | None:
    """The first entry of gpus.yaml whose pattern matches."""
    entries: list[dict[str, Any]] = yaml.safe_load(GPUS.read_text())
    return next((entry for entry in entries if re.search(entry["match"], name)), None)


def gpu_of(facts: dict[str, Any]) -> Gpu:
    """Table figures (both directions, GB/s and TFLOP/s) → per second, one way."""
    nvlink = float(facts.get("nvlink_gbs") or 0)
    pcie = float(facts.get("pcie_gbs") or 32) * 1e9 / 2
    return Gpu(
        flops=float(facts["tflops"]) * 1e12,
        fp32_flops=float(facts["fp32_tflops"]) * 1e12,
        memory=float(facts["memory_gbs"]) * 1e9,
        link=nvlink * 1e9 / 2 if nvlink else pcie,
        pcie=pcie,
        nvlink=nvlink > 0,
        name=str(facts.get("match", "")),
    )


def roofline_s(costs: dict[Cost, int], gpu: Gpu) -> float:
    """Seconds of a set of operator calls: on the GPU, or of the host that launches them."""
    peak = gpu.flops * constant("matmul_efficiency", gpu.name)
    fp32 = gpu.fp32_flops * constant("matmul_efficiency", gpu.name)
    bandwidth = gpu.memory * constant("memory_efficiency")
    shortest = constant("kernel_s")
    device = sum(
        count * max(cost.flops / (fp32 if cost.fp32 else peak), cost.size / bandwidth, shortest)
        for cost, count in costs.items()
    )
    return max(device, sum(costs.values()) * constant("dispatch_s"))


@dataclass(frozen=True)
class Weights:
    """Bytes of a model's weights: all as held (packed if quantised), and the trained ones."""

    held: int
    trained: int


def step_time(
    request: Request, costs: StepCosts, weights: Weights, gpu: Gpu, mean_share: float = 1.0
) -> StepTime:
    """One optimizer update of the whole job.

    `costs` are those of the longest batch, of whose seconds the mean batch takes `mean_share`.
    """
    micro = mean_share * roofline_s(costs.micro, gpu) / costs.micro_batches
    compute = micro * request.accumulation + _update_s(request, costs, weights, gpu)
    communication = communication_s(request, weights, gpu)
    offload = offload_s(request, weights, gpu)
    hidden = constant("overlap")
    other = communication + offload
    total = max(compute, other) + (1 - hidden) * min(compute, other)
    spread = constant("time_spread")
    lengths = request.lengths or (request.seq_len,)
    batch = sum(lengths) / len(lengths)
    ranks = 1 if request.sharding.kind in ("single", "pipeline") else request.sharding.devices
    sequences = request.micro_batch * request.accumulation * ranks
    return StepTime(
        compute_s=compute,
        communication_s=communication,
        offload_s=offload,
        step_s=total,
        low_s=total / (1 + spread),
        high_s=total * (1 + spread),
        flops=mean_share * costs.flops(request.accumulation),
        tokens=round((request.example_tokens or batch) * sequences),
        padded_tokens=round(batch * sequences),
    )


def _update_s(request: Request, costs: StepCosts, weights: Weights, gpu: Gpu) -> float:
    sharding = request.sharding
    if not (sharding.offload_optimizer or sharding.offload_params):
        return roofline_s(costs.update, gpu)
    ranks = sharding.devices
    traffic = (
        weights.trained // DTYPE_BYTES[request.dtype] * 28 / ranks
    )  # fp32 master, states, grad
    moved = traffic * min(ranks, sharding.devices_per_node) / constant("host_memory_bytes_per_s")
    return max(moved, sum(costs.update.values()) * constant("dispatch_s"))


def communication_s(request: Request, weights: Weights, gpu: Gpu) -> float:
    """Seconds that one rank's link is busy in an update."""
    sharding = request.sharding
    n = sharding.devices
    if n == 1 or sharding.kind in ("single", "pipeline"):
        return 0.0
    ring = (n - 1) / n
    if sharding.kind in ("fsdp", "zero3"):
        gathers = 2 if sharding.reshard else 1
        moved = (gathers * weights.held + weights.trained) * request.accumulation
    else:
        moved = 2 * weights.trained
    link = gpu.link * constant("link_efficiency" if gpu.nvlink else "pcie_efficiency")
    if n > sharding.devices_per_node:
        link = min(link, constant("network_bytes_per_s"))
    return moved * ring / link


def offload_s(request: Request, weights: Weights, gpu: Gpu) -> float:
    """Seconds of host traffic in an update."""
    sharding = request.sharding
    moved = 0.0
    if sharding.offload_params:
        moved += 2 * weights.held / sharding.devices * request.accumulation
    if sharding.offload_params or sharding.offload_optimizer:
        moved += 2 * weights.trained / sharding.devices * request.accumulation
    return moved / (gpu.pcie * constant("pcie_efficiency"))
