"""Write suites/models/<name>.yaml from a hub id, a config.json on disk, or an API's address.

Offline with `config_file`; else only the repository's small files are asked for, never weights.
Parameters are counted in a process of their own (`bench.worker.count`), because torch stays out of
every command.

    bench add-model Qwen/Qwen3-8B
    bench add-model my-org/my-model --config path/to/config.json
    bench add-model gpt-4o-mini --endpoint https://api.openai.com/v1
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from bench.document import explain_first, shown
from bench.errors import UserError
from bench.spec import HubWeights, ModelSpec

FOLDER = Path("suites/models")
HEADER = "# yaml-language-server: $schema=../schema/model.json\n"
# What says how the file was saved, not what the model is.
NOT_ARCHITECTURE = frozenset(
    {"_name_or_path", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)

# A price is looked up, never guessed
PRICE = """\
  # price: # without it the cost of this model's cells stays unknown
  #   usd_per_million_input:
  #   usd_per_million_output:
  #   provider:
  #   date: # when you looked
  #   source: # where
"""

Count = Callable[[Mapping[str, Any]], dict[str, int | None]]


@dataclass(frozen=True)
class Found:
    """A model's small files: its config.json, and what says how it is prompted."""

    config: dict[str, Any]
    revision: str
    chat_template: str | None
    gated: bool
    licence: str
    source: str


def add_model(
    hub_id: str, *, name: str | None = None, config_file: Path | None = None, folder: Path = FOLDER
) -> str:
    """Write the model's file; returns the line to add to a suite.

    Raises UserError, one line: unknown or unreachable id, gated repository, config that is no
    model's, file that exists already.
    """
    name = name or slug(hub_id)
    file = folder / f"{name}.yaml"
    if file.exists():  # before the network is asked for anything
        raise UserError(f"{shown(file)} exists already: choose another --name, or delete it first")
    found = from_disk(config_file) if config_file else from_hub(hub_id)
    model = model_from_config(found, hub_id=hub_id, name=name)
    write_model(model, file)
    return f"  - {name}   # under `models:` in a suite"


def add_endpoint(
    model: str, base_url: str, *, key_env: str | None, name: str | None, folder: Path = FOLDER
) -> str:
    """Write the file of a model behind an OpenAI-compatible API; asks nothing of it.

    Returns the line to add to a suite.  Raises UserError, one line.
    """
    name = name or slug(model)
    endpoint = {"provider": "openai", "base_url": base_url, "model": model, "key_env": key_env}
    data = {"name": name, "endpoint": endpoint}
    try:
        ModelSpec.model_validate(data)
    except ValidationError as error:
        raise UserError(f"model {name}: {explain_first(ModelSpec, error)}") from None
    _write(data, PRICE, folder / f"{name}.yaml")
    return f"  - {name}   # under `models:` in a suite, with `methods: [base]`"


def slug(hub_id: str) -> str:
    """`Qwen/Qwen3-8B` → `qwen3-8b`."""
    last = hub_id.rstrip("/").rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9._-]+", "-", last).strip("-._") or "model"


def model_from_config(
    found: Found, *, hub_id: str, name: str, count: Count | None = None
) -> ModelSpec:
    """The spec of a model, its parameters counted.

    Raises UserError for a config without `model_type`, or one that transformers can't build.
    """
    if not isinstance(found.config.get("model_type"), str):
        raise UserError(f"{found.source}: no `model_type`: this is not a model's config.json")
    config = {key: value for key, value in found.config.items() if key not in NOT_ARCHITECTURE}
    counted = (count or count_parameters)(config)
    template = found.chat_template or ""
    try:
        return ModelSpec(
            name=name,
            title=hub_id,
            weights=HubWeights(id=hub_id, revision=found.revision, gated=found.gated),
            config=config,
            params=counted["params"] or 0,
            active_params=counted["active_params"],
            chat=bool(template),
            thinking="<think>" in template,
            licence=found.licence,
            config_source=f"{found.source}, {datetime.date.today().isoformat()}",
        )
    except ValidationError as error:
        raise UserError(f"model {name}: {explain_first(ModelSpec, error)}") from None


def write_model(model: ModelSpec, file: Path) -> None:
    """Write a model's YAML file.  Raises UserError if it exists."""
    _write(model.model_dump(mode="json", exclude_none=True), "", file)


def _write(data: Mapping[str, Any], more: str, file: Path) -> None:
    text = HEADER + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=98) + more
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UserError(f"{shown(file)} exists already: delete it first") from None
    except OSError as error:
        raise UserError(f"{shown(file)}: can't be written: {error.strerror}") from None


def count_parameters(config: Mapping[str, Any]) -> dict[str, int | None]:
    """Total and active parameters, counted by `bench.worker.count` in its own process.

    Raises UserError with its reason, or where torch and transformers aren't installed.
    """
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "config.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        command = [sys.executable, "-m", "bench.worker.count", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        if "ModuleNotFoundError" in lines[-1]:
            raise UserError(
                'counting parameters needs torch and transformers: pip install "adaptbench[train]"'
            )
        raise UserError(
            f"can't build {config['model_type']!r} to count its parameters: {lines[-1]}"
        )
    counted: dict[str, int | None] = json.loads(done.stdout.strip().splitlines()[-1])
    return counted


# ---------------------------------------------------------------- where the files come from


def from_disk(config_file: Path) -> Found:
    """A config.json on disk, and the tokenizer files beside it, where there are any.

    The licence and the revision aren't known there: empty, and the moving `main`.
    """
    if config_file.is_dir():
        config_file = config_file / "config.json"
    beside = config_file.parent
    tokenizer = _json(beside / "tokenizer_config.json", missing_ok=True)
    template = _text(beside / "chat_template.jinja") or _default(tokenizer.get("chat_template"))
    return Found(
        config=_json(config_file),
        revision="main",
        chat_template=template,
        gated=False,
        licence="",
        source=config_file.name,
    )


def from_hub(hub_id: str) -> Found:
    """The same files of a hub repository, at the commit that `main` is now.

    Raises UserError: unknown id, hub not reachable, gated repository.
    """
    try:
        from huggingface_hub import HfApi, hf_hub_download
    except ModuleNotFoundError:
        raise UserError(
            'asking the hub needs huggingface_hub: pip install "adaptbench[train]", '
            "or give --config path/to/config.json"
        ) from None
    info = _asked(hub_id, lambda: HfApi().model_info(hub_id))
    names = {entry.rfilename for entry in info.siblings or ()}
    if "config.json" not in names:
        raise UserError(f"{hub_id}: this repository has no config.json")

    def get(name: str) -> Path | None:
        if name not in names:
            return None
        return Path(_asked(hub_id, lambda: hf_hub_download(hub_id, name, revision=info.sha)))

    config, tokenizer, jinja = map(
        get, ("config.json", "tokenizer_config.json", "chat_template.jinja")
    )
    assert config is not None
    settings = _json(tokenizer) if tokenizer else {}
    return Found(
        config=_json(config),
        revision=info.sha or "main",
        chat_template=(_text(jinja) if jinja else None) or _default(settings.get("chat_template")),
        gated=bool(info.gated),
        licence=str((info.card_data or {}).get("license") or ""),
        source=f"https://huggingface.co/{hub_id}/blob/{info.sha}/config.json",
    )


def _asked(hub_id: str, question: Callable[[], Any]) -> Any:
    """Put a question to the hub; its many ways of saying no become one line."""
    from huggingface_hub import errors

    offline = "or give --config path/to/config.json"
    try:
        return question()
    except errors.GatedRepoError:  # before its parent, RepositoryNotFoundError
        raise UserError(
            f"{hub_id} is gated: accept its licence on https://huggingface.co/{hub_id} and set "
            f"HF_TOKEN, {offline}"
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise UserError(
            f"{hub_id}: the hub has no such model (or it is private and HF_TOKEN is not set)"
        ) from None
    except (errors.HfHubHTTPError, OSError) as error:
        reason = (" ".join(str(error).split()) or type(error).__name__)[:120]
        raise UserError(
            f"{hub_id}: the hub can't be reached ({reason}): try again, {offline}"
        ) from None
    except Exception as error:
        # The HTTP library's own errors; which library it is (httpx, httpx2) depends on the version.
        if not type(error).__module__.startswith("http"):
            raise
        raise UserError(
            f"{hub_id}: the hub can't be reached ({type(error).__name__}): try again, {offline}"
        ) from None


def _default(template: Any) -> str | None:
    """The template named `default` where a tokenizer has several."""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _text(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _json(file: Path, missing_ok: bool = False) -> dict[str, Any]:
    if missing_ok and not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no file {shown(file)}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{shown(file)}: not a JSON file: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{shown(file)}: expected a JSON object")
    return data
