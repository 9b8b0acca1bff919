"""The folder for what is large and can be made again: converted models, trained weights.

Never inside results/.  `ADAPTBENCH_CACHE` moves it.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from bench.spec import ModelSpec, QuantizationSpec


def root() -> Path:
    return Path(os.environ.get("ADAPTBENCH_CACHE", "~/.cache/adaptbench")).expanduser()


def digest(value: Any) -> str:
    """8 hex digits of a JSON value: the part of a name that changes when the content does."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def model_folder(model: ModelSpec) -> Path:
    """Where a converted or pre-trained model is kept; its name holds what it is made from."""
    return root() / "models" / f"{model.name}-{digest(model.identity())}"


def quantized_folder(model: ModelSpec, quantization: QuantizationSpec, dtype: str) -> Path:
    """Where `bench quantize` keeps a model; `dtype` is that of the weights left unquantised.

    What its name holds decides the bytes; the dtype that is computed in does not.
    """
    computing = ("compute_dtype", "experts_at_once")
    held = {k: v for k, v in quantization.identity().items() if k not in computing}
    what = digest([model.identity(), held, dtype])
    return root() / "quantized" / f"{model.name}-{what}"


def ready(model: ModelSpec) -> bool:
    """Whether nothing has to be made before the model can be loaded."""
    made_here = model.weights is not None and model.weights.kind in ("package", "tiny", "random")
    return not made_here or model_folder(model).exists()


def trained(attempt: Path) -> Path:
    """Where an attempt keeps the weights that it trained."""
    cell = attempt.parent
    # The results folder is part of the name: two checkouts may run the same cell at once.
    return root() / "trained" / f"{cell.name}.{attempt.name}.{digest(str(attempt.resolve()))}"


def checkpoints(attempt: Path) -> Path:
    """Where an attempt keeps what its training can go on from."""
    return root() / "checkpoints" / trained(attempt).name


def sha256(folder: Path) -> str:
    """One hash over all safetensors files of a folder, by name."""
    total = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        total.update(path.name.encode())
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
