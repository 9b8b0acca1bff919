"""How many parameters a model has, counted on the real module tree on the meta device.

It needs torch and transformers, so `bench/add_model.py` starts it as a process and reads its JSON:

    python -m bench.worker.count path/to/config.json
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

EXPERT = re.compile(r"(^|\.)experts\.")  # `shared_experts.` run for every token and don't match
COUNT_FIELDS = ("num_experts", "num_local_experts", "n_routed_experts")


def main(argv: list[str]) -> int:
    """Print {"params", "active_params"}; exit with 2 and one line if it can't be built."""
    with open(argv[0], encoding="utf-8") as file:
        config = json.load(file)
    try:
        print(json.dumps(count(config)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        print(" ".join(str(error).split())[:300], file=sys.stderr)
        return 2
    return 0


def count(config: dict[str, Any]) -> dict[str, int | None]:
    """Total parameters, tied weights once; and those a token meets, for mixtures of experts.

    Raises ValueError for an unknown `model_type`, and what transformers raises for a bad config.
    """
    network = build(config)
    sizes = {name: parameter.numel() for name, parameter in network.named_parameters()}
    total = sum(sizes.values())
    experts = sum(size for name, size in sizes.items() if EXPERT.search(name))
    text = network.config.get_text_config()
    number = next((n for f in COUNT_FIELDS if (n := getattr(text, f, None))), None)
    chosen = getattr(text, "num_experts_per_tok", None)
    if not (experts and number and chosen):
        return {"params": total, "active_params": None}
    return {"params": total, "active_params": total - experts + experts * chosen // number}


def build(config: dict[str, Any]) -> Any:
    """The causal language model of a config.json, without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    models: Any = AutoModelForCausalLM
    with torch.device("meta"):
        return models.from_config(AutoConfig.for_model(**config))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
