"""The machine and software that a run really had.  No torch: `bench list` asks it too."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib import metadata

import psutil

from bench.errors import UserError
from bench.record import Environment
from bench.spec import ModelSpec, TargetSpec

PACKAGES = (
    "adaptbench",
    "torch",
    "transformers",
    "trl",
    "peft",
    "bitsandbytes",
    "accelerate",
    "deepspeed",
    "datasets",
    "openai",
    "tokenizers",
    "numpy",
    "rouge_score",
    "sacrebleu",
    "scikit-learn",
)


@dataclass(frozen=True)
class Gpus:
    """What the NVIDIA driver reports; empty where there is none."""

    names: tuple[str, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    driver: str | None = None
    cuda: str | None = None


def gpus() -> Gpus:
    """Ask the driver (nvidia-ml-py).  No driver means no GPUs, which is not an error."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Gpus()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        version = pynvml.nvmlSystemGetCudaDriverVersion()
        return Gpus(
            names=tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles),
            memory_bytes=tuple(int(pynvml.nvmlDeviceGetMemoryInfo(h).total) for h in handles),
            driver=str(pynvml.nvmlSystemGetDriverVersion()),
            cuda=f"{version // 1000}.{version % 1000 // 10}",
        )
    finally:
        pynvml.nvmlShutdown()


def can_run(target: TargetSpec, here: Gpus) -> bool:
    """Whether this machine is the target: a CPU target always is, a GPU one by name and count; an
    API can be asked from anywhere."""
    if target.device != "cuda":
        return True
    return len(matching(target, here)) == target.devices and target.nodes == 1


def api_key(model: ModelSpec) -> str | None:
    """The key of a model's endpoint, from its variable; None where it takes none.

    Raises UserError where the variable isn't set.
    """
    name = model.endpoint.key_env if model.endpoint else None
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise UserError(
            f"model {model.name}: the environment variable {name} isn't set: export it with the "
            "key (or write `key_env: null` for a server without one, or leave the model out with "
            "--only)"
        )
    return key


def matching(target: TargetSpec, here: Gpus) -> list[int]:
    """Indices of this machine's GPUs that are the target's: no more than it has."""
    pattern = target.match or ""
    found = [index for index, name in enumerate(here.names) if re.search(pattern, name)]
    return found[: target.devices]


def describe(here: Gpus) -> str:
    """`2 × NVIDIA A10` or `no NVIDIA GPU`, for the line that says why a suite can't run."""
    if not here.names:
        return "no NVIDIA GPU"
    counts = {name: here.names.count(name) for name in dict.fromkeys(here.names)}
    return ", ".join(f"{count} × {name}" for name, count in counts.items())


def snapshot() -> Environment:
    """Everything that may explain a difference between two runs."""
    found = gpus()
    commit, dirty = _git()
    return Environment(
        hostname_hash=hashlib.sha256(platform.node().encode()).hexdigest()[:8],
        os=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        cpu=_cpu(),
        cpu_cores=psutil.cpu_count(logical=True) or 1,
        ram_bytes=psutil.virtual_memory().total,
        gpus=list(found.names),
        gpu_memory_bytes=list(found.memory_bytes),
        driver=found.driver,
        cuda=found.cuda,
        packages=_packages(),
        load_average=round(os.getloadavg()[0], 2),
        git_commit=commit,
        git_dirty=dirty,
    )


def _packages() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _git() -> tuple[str | None, bool | None]:
    """Commit of the working tree and whether code differs from it (results don't count)."""
    try:
        commit = _run("git", "rev-parse", "HEAD").strip()
        status = _run("git", "status", "--porcelain", "--", ".", ":!results")
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None, None
    return commit or None, bool(status.strip())


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
