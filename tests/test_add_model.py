"""`bench add-model`: the file it writes, and one clear line for each thing that can go wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.add_model import (
    Found,
    _asked,
    add_endpoint,
    add_model,
    count_parameters,
    from_disk,
    model_from_config,
    slug,
    write_model,
)
from bench.errors import UserError
from bench.spec import ModelSpec
from bench.suite import load_spec

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "_name_or_path": "somewhere/private",
}


def found(config: dict[str, Any] = CONFIG, template: str | None = None) -> Found:
    return Found(config, "a" * 40, template, False, "apache-2.0", "config.json")


def counted(_: Any) -> dict[str, int | None]:
    return {"params": 5, "active_params": None}


@pytest.mark.parametrize(
    ("hub_id", "expected"),
    [("Qwen/Qwen3-8B", "qwen3-8b"), ("org/My Model!", "my-model"), ("gpt2", "gpt2")],
)
def test_slug(hub_id: str, expected: str) -> None:
    assert slug(hub_id) == expected


def test_offline_from_a_config_file(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
    folder = tmp_path / "models"
    line = add_model("org/My-Model", config_file=tmp_path / "config.json", folder=folder)
    assert "- my-model" in line
    model = load_spec(ModelSpec, folder / "my-model.yaml")
    # By hand: embeddings and head 2·256·64; a layer 2·64·64 + 2·32·64 attention, 3·64·128 MLP,
    # 2·64 norms; 64 for the last norm.
    assert model.params == 2 * 256 * 64 + 2 * (12288 + 24576 + 128) + 64
    assert model.chat and not model.thinking
    assert "torch_dtype" not in model.config and "_name_or_path" not in model.config
    assert (folder / "my-model.yaml").read_text().startswith("# yaml-language-server: $schema=")


def test_prompting_is_read_from_the_template() -> None:
    plain = model_from_config(found(), hub_id="o/m", name="m", count=counted)
    thinks = model_from_config(found(template="<think>"), hub_id="o/m", name="m", count=counted)
    assert (plain.chat, plain.thinking) == (False, False)
    assert (thinks.chat, thinks.thinking) == (True, True)
    assert plain.weights.kind == "hub" and plain.weights.revision == "a" * 40


def test_several_templates_the_default_counts(tmp_path: Path) -> None:
    several = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert from_disk(tmp_path).chat_template == "D"


def one_line(raised: pytest.ExceptionInfo[UserError]) -> str:
    message = str(raised.value)
    assert "\n" not in message and "Traceback" not in message
    return message


def test_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("mine")
    with pytest.raises(UserError) as raised:
        add_model("o/m", folder=tmp_path)  # and the hub isn't asked
    assert "exists already" in one_line(raised)
    model = model_from_config(found(), hub_id="o/m", name="m", count=counted)
    with pytest.raises(UserError, match="exists already"):
        write_model(model, tmp_path / "m.yaml")
    assert (tmp_path / "m.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"hidden_size": 4}', "no `model_type`"),
        ("[1]", "expected a JSON object"),
        ("not json", "not a JSON file"),
    ],
)
def test_config_that_is_none(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError) as raised:
        add_model("o/m", config_file=tmp_path / "config.json", folder=tmp_path / "out")
    assert says in one_line(raised)
    assert not (tmp_path / "out").exists()


def test_missing_config_file(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        add_model("o/m", config_file=tmp_path / "no.json", folder=tmp_path)
    assert "no file" in one_line(raised)


def test_architecture_that_transformers_does_not_know() -> None:
    pytest.importorskip("torch")
    with pytest.raises(UserError) as raised:
        count_parameters({"model_type": "no_such_architecture"})
    assert "no_such_architecture" in one_line(raised)


def hub_error(name: str) -> Exception:
    """One of the hub's errors, made without the response of the HTTP library it came from."""
    kind = getattr(pytest.importorskip("huggingface_hub.errors"), name)
    made: Exception = kind.__new__(kind)
    made.args = ("said no",)
    return made


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("GatedRepoError", "is gated"),
        ("RepositoryNotFoundError", "no such model"),
        ("HfHubHTTPError", "can't be reached"),
    ],
)
def test_the_hub_says_no(error: str, says: str) -> None:
    refusal = hub_error(error)

    def question() -> None:
        raise refusal

    with pytest.raises(UserError) as raised:
        _asked("o/m", question)
    assert says in one_line(raised)


def test_offline_without_a_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError) as raised:
        add_model("org/model", folder=tmp_path)
    assert "can't be reached" in one_line(raised) and "--config" in one_line(raised)


def test_no_network_whatever_the_http_library() -> None:
    pytest.importorskip("huggingface_hub")
    lost = type("ConnectError", (Exception,), {"__module__": "httpx2"})

    def question() -> None:
        raise lost("Name or service not known")

    with pytest.raises(UserError) as raised:
        _asked("o/m", question)
    assert "can't be reached (ConnectError)" in one_line(raised)


def test_a_bug_stays_a_traceback() -> None:
    pytest.importorskip("huggingface_hub")

    def question() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _asked("o/m", question)


# ---------------------------------------------------------------- behind an API


def test_an_api_s_model_needs_nothing_but_its_address(tmp_path: Path) -> None:
    url = "http://localhost:8000/v1"
    line = add_endpoint("org/My-Model", url, key_env=None, name=None, folder=tmp_path)
    assert line.split()[:2] == ["-", "my-model"]
    written = load_spec(ModelSpec, tmp_path / "my-model.yaml")
    assert written.endpoint and written.endpoint.model == "org/My-Model"
    assert written.endpoint.key_env is None and written.endpoint.base_url == url
    text = (tmp_path / "my-model.yaml").read_text(encoding="utf-8")
    assert "# without it the cost of this model's cells stays unknown" in text
    with pytest.raises(UserError) as raised:
        add_endpoint("org/My-Model", url, key_env=None, name=None, folder=tmp_path)
    assert "exists already" in one_line(raised)
    with pytest.raises(UserError) as raised:
        add_endpoint("other", "localhost:8000", key_env="K", name=None, folder=tmp_path)
    assert "expected http://" in one_line(raised)
