"""transformers' own OpenAI-compatible server around a cell's model:

python -m bench.worker.serving.server ATTEMPT VARIANT NAME PORT FACTS.json continuous|one-by-one

`transformers serve` alone can't load what is trained here: an adapter beside a 4-bit base, experts
in 4 bit, a chosen attention or compute dtype.  So HTTP, streaming and batching are transformers',
and the model comes from `bench.worker.load`, as in the generate phase.  What was loaded is counted
and written to FACTS.json before the first request.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

from bench import cache
from bench.spec import Cell
from bench.store import read_record, write_json
from bench.worker.__main__ import die_with_parent
from bench.worker.serving import engines, variants


def main(argv: list[str]) -> int:
    attempt, variant, name, port, facts, batching = argv
    die_with_parent()
    try:
        model, tokenizer, counted = loaded(cell_of(Path(attempt)), Path(attempt), variant)
        write_json(Path(facts), counted)
        serve(model, tokenizer, name, int(port), continuous=batching == "continuous")
    except Exception as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {' '.join(str(error).split())}"[:300], flush=True)
        return 1
    return 0


def cell_of(attempt: Path) -> Cell:
    cell = read_record(Cell, attempt / "cell.json")
    cell = cell or read_record(Cell, attempt.parent / "cell.json")
    assert cell is not None, f"{attempt.parent} holds no cell.json"
    return cell


def loaded(cell: Cell, attempt: Path, variant: str) -> tuple[Any, Any, dict[str, Any]]:
    """(model, tokenizer, what was counted on the model)."""
    import torch

    from bench.worker import audit, load
    from bench.worker.generate import greedy

    served = variants.as_served(cell, variant)
    trained = variants.trained_folder(cell, attempt, variant)
    tokenizer = load.tokenizer(cell.model)
    model = load.model(served, trained).eval()
    model.config.use_cache = True
    # Chat models ship sampling settings and penalties that would leak into every answer
    model.generation_config = greedy(model, tokenizer, cell.budget.max_new_tokens)
    proof = audit.loaded(served, model, served.method.autocast or served.method.dtype)
    counted = {
        "dtypes": proof.bytes_by_dtype,
        "held_bytes": sum(proof.bytes_by_dtype.values()) + proof.quantization_state_bytes,
        "quantized_params": proof.quantized_params,
        "adapted_modules": sum(proof.adapted_modules.values()),
        "weights_sha256": cache.sha256(trained) if trained else None,
        "problems": proof.problems,
        "threads": torch.get_num_threads(),
    }
    return model, tokenizer, counted


def serve(model: Any, tokenizer: Any, name: str, port: int, *, continuous: bool) -> None:
    """Answer requests for `name` until the process is ended."""
    from transformers.cli.serve import Serve
    from transformers.cli.serving.model_manager import ModelManager

    manager: Any = ModelManager  # loads by itself otherwise; it has no public way to be given one
    manager._load_model = lambda *_, **__: model
    manager._load_processor = lambda *_, **__: tokenizer
    Serve(force_model=name, continuous_batching=continuous, host=engines.HOST, port=port)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
