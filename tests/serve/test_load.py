"""Models come from presets, files, folders and checkpoints, and what isn't there is named."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from torch import nn

from model.tiny_specs import SPECS, make, tokens
from scalewright.checkpoint.boxes import StoredBox, StoredTensor
from scalewright.checkpoint.format import Manifest
from scalewright.checkpoint.pieces import describe_file
from scalewright.checkpoint.verify import commit_text
from scalewright.model.init import init_tensor
from scalewright.serve.generate import generate_text
from scalewright.serve.load import check_model, load_for_generation, load_model
from scalewright.spec.base import write_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.tensors import tensors


def write_checkpoint(run: Path, step: int, model: nn.Module, spec: dict[str, Any]) -> Path:
    """A finished checkpoint, every tensor in two boxes."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    pieces, stored = {}, {}
    for name, value in model.state_dict().items():
        cut, boxes = value.shape[0] // 2, []
        for key, start, stop in ((f"{name}:0", 0, cut), (f"{name}:1", cut, value.shape[0])):
            pieces[key] = value[start:stop].contiguous()
            offset, size = (start, *(0 for _ in value.shape[1:])), (stop - start, *value.shape[1:])
            boxes.append(StoredBox("model-00000-000.safetensors", offset, size, key))
        stored[name] = StoredTensor(tuple(value.shape), "float32", tuple(boxes))
    save_file(pieces, folder / "model-00000-000.safetensors")
    files = {"model-00000-000.safetensors": describe_file(folder / "model-00000-000.safetensors")}
    manifest = Manifest(step, step, "run", spec, {}, stored, files, version=1)
    (folder / "manifest.json").write_text(json.dumps(asdict(manifest)))
    (folder / "state.json").write_text("{}")
    (folder / "COMMIT").write_text(commit_text(folder, step))
    return folder


@pytest.mark.parametrize("name", ["llama", "tied", "bloom"])
def test_a_runs_newest_checkpoint_and_a_named_one(name: str, tmp_path: Path) -> None:
    spec = SPECS[name].dump()
    older, newer = make(name, seed=1), make(name, seed=2)
    first = write_checkpoint(tmp_path, 10, older, spec)
    write_checkpoint(tmp_path, 20, newer, spec)
    ids = tokens()
    assert torch.equal(load_model(tmp_path)(ids), newer(ids))
    assert torch.equal(load_model(tmp_path / "checkpoints")(ids), newer(ids))
    assert torch.equal(load_model(first)(ids), older(ids))
    assert load_model(first, dtype="bfloat16")(ids).dtype == torch.bfloat16


def test_text_from_a_checkpoint_with_the_runs_tokenizer(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 10, make("llama"), SPECS["llama"].dump())
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        load_for_generation(str(tmp_path))
    words = {"<|endoftext|>": 0, **{chr(ord("a") + i): i + 1 for i in range(26)}}
    Tokenizer(models.WordLevel(words, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    for source in (tmp_path, folder):
        result = generate_text(str(source), "b", max_new_tokens=6, temperature=0)
        assert 1 <= len(result.tokens) <= 6


def test_a_users_own_module_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import torch\ndef build(n):\n    return torch.nn.Sequential(torch.nn.Embedding(n, n))\n"
    (tmp_path / "their_module.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    trained = nn.Sequential(nn.Embedding(5, 5))
    write_checkpoint(tmp_path / "run", 3, trained, {"python": "their_module:build", "n": 5})
    ids = torch.tensor([[1, 4]])
    with pytest.raises(UserError, match=r"'their_module:build', and using it would run that code .*--trust-code"):
        load_model(tmp_path / "run")
    assert "their_module" not in sys.modules
    assert torch.equal(load_model(tmp_path / "run", trust_code=True)(ids), trained(ids))


def test_a_preset_and_a_file_give_fresh_weights(tmp_path: Path) -> None:
    spec = SPECS["llama"]
    write_yaml(tmp_path / "tiny.yaml", spec.dump())
    state = load_model(tmp_path / "tiny.yaml").state_dict()
    for t in tensors(spec):
        assert torch.equal(state[t.name], init_tensor(t, spec, 0))


def test_the_package_gives_it_too() -> None:
    import scalewright

    assert scalewright.load_model is load_model


@pytest.mark.parametrize(
    ("source", "keys", "message"),
    [
        ("llama-3.2-1bb", {}, r"llama-3\.2-1b"),
        ("tiny.yaml", {"dtype": "float8"}, "unknown dtype 'float8'"),
        ("tiny.yaml", {"device": "gpu"}, "unknown device 'gpu'"),
        ("empty", {}, r"no config\.json"),
    ],
)
def test_mistakes_are_named(
    source: str, keys: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_yaml("tiny.yaml", SPECS["llama"].dump())
    Path("empty").mkdir()
    with pytest.raises(UserError, match=message):
        load_model(source, **keys)


def test_a_checkpoint_without_commit_does_not_exist(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 10, make("llama"), SPECS["llama"].dump())
    (folder / "COMMIT").unlink()
    with pytest.raises(UserError, match="COMMIT"):
        load_model(folder)
    with pytest.raises(UserError, match="no finished checkpoint"):
        load_model(tmp_path)


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"})[:-4])
    with pytest.raises(UserError, match=r"config\.json"):
        load_model(tmp_path)


def test_where_no_model_is(tmp_path: Path) -> None:
    """The runs that lie there are named."""
    (tmp_path / "run.yaml").write_text("model: tiny\n")
    with pytest.raises(UserError, match="a file, and no model's folder"):
        check_model(tmp_path / "run.yaml")
    with pytest.raises(UserError, match=r"there is no model here .*: give a Hugging Face folder"):
        check_model(tmp_path)
    (tmp_path / "mine" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match=f"there is no model here .*: did you mean {tmp_path / 'mine'}\\?"):
        check_model(tmp_path)
    check_model(tmp_path / "mine")
