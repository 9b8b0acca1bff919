"""An adapter merged into its base and written once, in a process of its own:

python -m bench.worker.serving.merge ATTEMPT_FOLDER

Exit code 0 when the folder is there; else one line on stderr.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from bench import cache
from bench.errors import UserError
from bench.spec import Cell
from bench.worker.__main__ import die_with_parent
from bench.worker.serving import variants


def main(argv: list[str]) -> int:
    die_with_parent()
    from bench.worker.serving.server import cell_of

    attempt = Path(argv[0])
    try:
        merge(cell_of(attempt), attempt)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def merge(cell: Cell, attempt: Path) -> Path:
    """The merged model's folder, weights and tokenizer.

    Raises UserError where merging loses the adapter: then the merged model's first logits are
    nearer to the base's than to those of the adapter beside the base.
    """
    from bench.worker import data, load

    folder = variants.merged_folder(attempt)
    if folder.is_dir():
        return folder
    cell = variants.unquantized(cell)
    model = load.model(cell, cache.trained(attempt)).eval()
    tokenizer = load.tokenizer(cell.model)
    row = data.rows(cell.dataset, "test", 1)[0]
    ids = data.prompt_ids(tokenizer, cell, row)
    adapted = _logits(model, ids)
    with model.disable_adapter():
        base = _logits(model, ids)
    merged = model.merge_and_unload()
    after = _logits(merged, ids)
    if _distance(after, adapted) >= _distance(after, base):
        raise UserError("merging loses the adapter: the merged model answers as the base does")
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    merged.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)
    return folder


def _logits(model: Any, ids: list[int]) -> Any:
    import torch

    with torch.inference_mode():
        inputs = torch.tensor([ids], device=model.device)
        return model(input_ids=inputs, use_cache=False).logits.float().cpu()


def _distance(one: Any, other: Any) -> float:
    return float((one - other).norm())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
