"""`bench quantize MODEL`: the 4-bit checkpoint written once, so that later loads take seconds.

    python -m bench.worker.quantize MODEL METHOD     names of suites' files

One file a decoder layer, each through transformers' own conversion and the quantiser that loading
uses, so what is written is what loading would have made.  Memory holds one layer at a time.  A
layer's file appears whole or not at all: run it again after an interruption, and it goes on.  The
index is written last; until then nothing reads the folder.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import save_file

from bench import cache
from bench.errors import UserError
from bench.spec import Cell, MethodSpec, ModelSpec, RandomWeights
from bench.suite import load_named
from bench.worker import load, random_weights, weights
from bench.worker.methods import qlora

INDEX = "model.safetensors.index.json"
FIRST_NUMBER = re.compile(r"^(?P<before>.*?)\.(?P<number>\d+)\.")


def main(argv: list[str]) -> int:
    """Exit code 2 with one line on stderr where it can't be done."""
    try:
        model, method = load_named(ModelSpec, argv[0]), load_named(MethodSpec, argv[1])
        print(write(model, method))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def find(cell: Cell, arguments: dict[str, Any]) -> Path | None:
    """The folder with the 4-bit checkpoint that loading with these arguments would make, if it is
    finished."""
    quantization = cell.method.quantization
    if quantization is None or quantization.bits != 4:
        return None
    dtype = load.DTYPE_NAMES[arguments["dtype"]]
    folder = cache.quantized_folder(cell.model, quantization, dtype)
    return folder if (folder / INDEX).exists() else None


def reading_arguments(folder: Path, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments for reading such a folder: how it computes is asked for, not read."""
    from transformers import AutoConfig

    rest = dict(arguments)
    config = AutoConfig.from_pretrained(folder)
    config.quantization_config = rest.pop("quantization_config").to_dict()
    return {**rest, "config": config, "revision": None}


def write(model: ModelSpec, method: MethodSpec) -> Path:
    """Write what is missing of the checkpoint; returns its folder.

    Raises UserError for methods that don't hold 4 bits, and for experts that can't be held in 4.
    """
    if method.quantization is None or method.quantization.bits != 4:
        raise UserError(f"method {method.name} holds nothing in 4 bit: name one of kind qlora")
    config = qlora.load_arguments(method)["quantization_config"]
    folder = cache.quantized_folder(model, method.quantization, method.dtype)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / INDEX).exists():
            with _Source(model) as source:
                _Writer(source, config, load.torch_dtype(method.dtype), folder).run()
    return folder


# ---------------------------------------------------------------- where weights come from


class _Source:
    """A checkpoint's tensors, none of them read yet, and the model's configuration."""

    def __init__(self, model: ModelSpec) -> None:
        from transformers import AutoConfig

        self._files: list[Any] = []
        self.tensors: dict[str, Any] = {}
        if isinstance(model.weights, RandomWeights):
            self.config = random_weights.config_of(model)
            self.tensors = dict(random_weights.stand_ins(model, self.config))
            return
        place, revision = load.guarded(model, lambda: weights.locate(model))
        folder = load.guarded(model, lambda: _local(place, revision))
        self.config = AutoConfig.from_pretrained(folder)
        for file in sorted(folder.glob("*.safetensors")):
            opened = safe_open(file, framework="pt", device="cpu")
            self._files.append(opened)
            self.tensors |= {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
        if not self.tensors:
            raise UserError(f"model {model.name}: {place} has no safetensors files")

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *_: Any) -> None:
        for file in self._files:
            file.__exit__(None, None, None)

    def groups(self) -> dict[str, list[str]]:
        """Part of the model → its tensors' names: each decoder layer, and everything else."""
        found: dict[str, list[str]] = {}
        for name in self.tensors:
            match = FIRST_NUMBER.match(name)
            part = f"{match['before']}.{int(match['number']):05}" if match else ""
            found.setdefault(part, []).append(name)
        return dict(sorted(found.items()))


def _local(place: str, revision: str | None) -> Path:
    """The folder of a checkpoint, downloaded where it is a hub id."""
    if Path(place).is_dir():
        return Path(place)
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.json"]
    return Path(snapshot_download(place, revision=revision, allow_patterns=patterns))


# ---------------------------------------------------------------- writing


class _Writer:
    """Converts one group after another on a skeleton that stays on meta otherwise."""

    def __init__(
        self, source: _Source, quantization: Any, dtype: torch.dtype, folder: Path
    ) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.modeling_utils import LoadStateDictConfig
        from transformers.quantizers.auto import AutoHfQuantizer

        self.source, self.folder, self.dtype = source, folder, dtype
        self.quantization = quantization
        self.device = "cuda:0" if torch.cuda.is_available() else "cpu"
        self.quantizer = AutoHfQuantizer.from_config(quantization, pre_quantized=False)
        with torch.device("meta"):
            self.skeleton: Any = AutoModelForCausalLM.from_config(source.config, dtype=self.dtype)
        place = {"": self.device}
        self.quantizer.preprocess_model(self.skeleton, dtype=self.dtype, device_map=place)
        self.empty = dict(self.skeleton.named_parameters())
        mapping: Any = get_model_conversion_mapping(self.skeleton, None, self.quantizer)
        self.load_config = LoadStateDictConfig(
            device_map=place,
            dtype=self.dtype,
            dtype_plan=self.skeleton._get_dtype_plan(self.dtype),
            hf_quantizer=self.quantizer,
            weight_mapping=mapping,
        )

    def run(self) -> None:
        groups = self.source.groups()
        names: dict[str, str] = {}
        total = 0
        for index, (part, keys) in enumerate(groups.items(), start=1):
            file = self.folder / f"model-{index:05}-of-{len(groups):05}.safetensors"
            started = time.perf_counter()
            if not file.exists():
                self._write_group(keys, file)
            with safe_open(file, framework="pt") as written:
                names |= dict.fromkeys(written.keys(), file.name)
            total += file.stat().st_size
            _say(f"{part or 'the rest'}: {file.name}", started, total)
        self._write_config()
        index_text = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
        _whole(self.folder / INDEX, json.dumps(index_text, indent=2))

    def _write_group(self, keys: list[str], file: Path) -> None:
        from transformers.core_model_loading import convert_and_load_state_dict_in_model

        tensors = {key: self.source.tensors[key] for key in keys}
        found, _ = convert_and_load_state_dict_in_model(self.skeleton, tensors, self.load_config)
        if found.conversion_errors:
            raise UserError(f"{file.name}: {next(iter(found.conversion_errors.values()))}")
        made = {name: tensor.contiguous().cpu() for name, tensor in self._made()}
        partial = file.with_suffix(".partial")
        save_file(made, partial, metadata={"format": "pt"})
        partial.rename(file)
        self._empty_again()

    def _made(self) -> Iterator[tuple[str, torch.Tensor]]:
        state = self.skeleton.state_dict()
        for name, tensor in state.items():
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                yield name, tensor

    def _empty_again(self) -> None:
        for name, parameter in list(self.skeleton.named_parameters()):
            if parameter.device.type != "meta":
                parent, _, last = name.rpartition(".")
                self.skeleton.get_submodule(parent)._parameters[last] = self.empty[name]

    def _write_config(self) -> None:
        from transformers import GenerationConfig

        config = self.skeleton.config
        config.quantization_config = self.quantization
        config.dtype = self.dtype
        config.save_pretrained(self.folder)
        GenerationConfig.from_model_config(config).save_pretrained(self.folder)


def _whole(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.rename(path)


def _say(what: str, started: float, total: int) -> None:
    seconds = time.perf_counter() - started
    print(f"{what}, {seconds:.1f} s, {total / 2**30:.2f} GiB so far", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
