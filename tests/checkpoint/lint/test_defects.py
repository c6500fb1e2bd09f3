"""Planted defects, each in an export that had none: found, with the file it is in, what it is and the way out."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from tests.checkpoint.lint.folders import (
    CHATML,
    INDEX,
    Change,
    copied,
    edited,
    export,
    headed,
    indexed,
    moved,
    removed,
    spoiled,
    tensors,
    written,
)  # fmt: skip

from scalewright.checkpoint.lint import lint, weights

C, G, T, M = "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"
W, J = "safetensors", "chat_template.jinja"
FIRST = "model-00001-of-"
YARN = {"rope_type": "yarn", "rope_theta": 10000.0}
LONG = {"rope_parameters": {"rope_type": "default"}, "max_position_embeddings": 32768}

# name: (change, kind, the file that is named, words of what is said)
CONFIG: dict[str, tuple[Change, str, str, str]] = {
    "no config": (removed(C), "problem", C, "there is none"),
    "config is cut off": (written(C, '{"model_type": "lla'), "problem", C, "isn't JSON"),
    "no model_type": (edited(C, "model_type"), "problem", C, "no model_type"),
    "no architectures": (edited(C, "architectures"), "problem", C, "no architectures"),
    "another class": (edited(C, architectures=["MistralForCausalLM"]), "problem", C, "isn't the class"),
    "no head_dim": (edited(C, "head_dim", num_attention_heads=3, num_key_value_heads=3), "problem", C, "no head_dim"),
    "another head_dim": (edited(C, head_dim=16), "problem", W, "q_proj.* config.json makes it"),
    "groups": (edited(C, num_key_value_heads=3), "problem", C, "doesn't divide"),
    "no rope_theta": (edited(C, "rope_theta", **LONG), "warn", C, "no rope_theta for 32768"),
    "two rope_thetas": (edited(C, rope_theta=5e5, rope_parameters=YARN | {"factor": 2.0}), "problem", C, "rope_theta"),
    "scaling without a type": (edited(C, rope_scaling={"factor": 4.0}), "problem", C, "without a rope_type"),
    "scaling without a factor": (edited(C, rope_parameters=YARN), "problem", C, "yarn without factor"),
    "a window of no size": (edited(C, sliding_window=-1), "problem", C, "sliding_window is -1"),
    "layers without a kind": (edited(C, layer_types=["full_attention"]), "problem", C, "1 layers of 2"),
    "windows without a size": (edited(C, layer_types=["sliding_attention"] * 2), "problem", C, "no sliding_window"),
    "an eos beyond the words": (edited(C, eos_token_id=9999), "problem", C, "9999 is no id below"),
    "another bos": (edited(T, bos_token="<|endoftext|>"), "", "", ""),  # config.json has none: nothing to differ
    "no dtype": (edited(C, "dtype", "torch_dtype"), "warn", C, "no dtype"),
    "another dtype": (edited(C, torch_dtype="float32"), "warn", C, "dtype is float32.*in bfloat16"),
    "two dtypes": (edited(C, dtype="float32", torch_dtype="bfloat16"), "problem", C, "float32 and bfloat16"),
    "an unknown dtype": (edited(C, "dtype", torch_dtype="bf16"), "problem", C, "dtype is 'bf16'"),
    "vocabulary was padded": (edited(C, vocab_size=320), "problem", W, r"embed_tokens.* makes it \[320, 32\]"),
    "code": (edited(C, auto_map={"AutoModel": "modeling.Model"}), "problem", C, "auto_map"),
    "code's file": (written("modeling.py", "import os\n"), "problem", "modeling.py", "code comes along"),
}
ENDS: dict[str, tuple[Change, str, str, str]] = {
    "no generation config": (removed(G), "warn", G, "there is none"),
    "no eos": (edited(G, "eos_token_id"), "problem", G, "no eos_token_id"),
    "not all eos": (edited(G, eos_token_id=[0]), "problem", G, r"without the tokenizer's <\|im_end\|>, id 2"),
    "not config's eos": (edited(C, eos_token_id=[2, 0]), "warn", G, r"without config.json's \[0\]"),
    "a temperature of -1": (edited(G, temperature=-1), "problem", G, "temperature is -1"),
    "no tokenizer": (removed("tokenizer.json"), "warn", "tokenizer.json", "no tokenizer"),
    "tokenizer is damaged": (written("tokenizer.json", "[1"), "problem", "tokenizer.json", "isn't a tokenizer"),
    "no tokenizer config": (removed(T), "warn", T, "there is none"),
    "words beyond the embedding": (edited(C, vocab_size=200), "problem", "tokenizer.json", "ids up to 282"),
    "an eos that is no word": (edited(T, eos_token="</s>"), "problem", T, "</s> isn't in tokenizer.json"),
    "two eos tokens": (edited(M, eos_token="<|endoftext|>"), "problem", M, r"and <\|im_end\|> in tokenizer_config"),
    "an added token's id": (edited(T, added_tokens_decoder={"7": {"content": "<|im_end|>"}}), "problem", T, "id 7"),
    "template has a typo": (written(J, "{% for m in messages %}{{ m.content }}"), "problem", J, "damaged chat"),
    "template raises": (written(J, "{{ raise_exception('no') }}"), "problem", J, "fails: no"),
    "template of attributes": (written(J, "{{ ''.__class__.__mro__ }}"), "problem", J, "unsafe"),
    "template hides answers": (written(J, "{{ messages[0].content }}<|im_end|>"), "problem", J, "leaves out"),
    "a turn without an end": (written(J, CHATML.replace("<|im_end|>", "")), "problem", J, "nothing ends"),
    "a turn's end is no eos": (
        written(J, CHATML.replace("<|im_end|>", "<|endoftext|>")), "warn", J, r"<\|endoftext\|> \(id 0\) ends a turn",
    ),
    "no generation prompt": (written(J, CHATML.split("{% if")[0]), "problem", J, "no generation prompt"),
    "two templates": (edited(T, chat_template="{{ messages }}"), "warn", J, "another template"),
}  # fmt: skip
WEIGHTS: dict[str, tuple[Change, str, str, str]] = {
    "cut off": (lambda f: tail(f), "problem", FIRST, "damaged or truncated"),
    "NaN": (tensors(lambda held: spoiled(held, float("nan"))), "problem", FIRST, "NaN or infinity in model"),
    "infinity": (tensors(lambda held: spoiled(held, float("-inf"))), "problem", FIRST, "NaN or infinity in model"),
    "two types": (tensors(lambda held: to_half(held)), "warn", FIRST, "weights of several types"),
    "no format": (tensors(lambda held: None, metadata={}), "warn", FIRST, "no `format: pt`"),
    "a tensor is missing": (lambda f: forgotten(f), "problem", C, "1 tensor is missing: model"),
    "a tensor that the index has": (tensors(lambda held: held.popitem()), "problem", INDEX, "that no file has: model"),
    "a tensor too many": (lambda f: extended(f), "problem", FIRST, "1 tensor that a llama"),
    "transposed": (tensors(lambda held: transpose(held), 1), "problem", "model-00002-of-", "makes it"),
    "in another shard": (moved, "problem", INDEX, "not where the index says"),
    "in two shards": (copied, "problem", W, "in two files"),
    "a shard is missing": (lambda f: last(f).unlink(), "problem", "model-00004-of-", "isn't here"),
    "no index": (removed(INDEX), "problem", INDEX, "no index"),
    "index of no names": (indexed(lambda content: content.pop("weight_map")), "problem", INDEX, "no weight_map"),
    "index of more": (indexed(lambda c: c["weight_map"].update(x=first_of(c))), "problem", INDEX, "no file has: x"),
    "index of less": (indexed(lambda content: content["weight_map"].popitem()), "problem", INDEX, "doesn't name"),
    "total_size": (indexed(lambda content: content["metadata"].update(total_size=1)), "warn", INDEX, "total_size is 1"),
    "a stale whole": (lambda f: stale(f, "model.safetensors"), "problem", "model.safetensors", "takes this one"),
    "a stale shard": (lambda f: stale(f, "model-00001-of-00002.safetensors"), "warn", "of-00002", "doesn't name"),
    "left over": (written("model-00001.safetensors.partial", b""), "warn", ".partial", "left over"),
    "a pickle": (written("training_args.bin", b"\x80"), "warn", "training_args.bin", "can run code"),
    "only a pickle": (lambda f: pickled(f), "problem", "pytorch_model.bin", "the weights are a pickle"),
}  # fmt: skip


def tail(folder: Path) -> None:
    path = sorted(folder.glob("*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:-9])


def last(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[-1]


def to_half(held: dict[str, torch.Tensor]) -> None:
    name = next(name for name, value in held.items() if value.dim() > 1)
    held[name] = held[name].half()


def transpose(held: dict[str, torch.Tensor]) -> None:
    name = next(name for name, value in held.items() if value.dim() > 1 and len(set(value.shape)) > 1)
    held[name] = held[name].t().contiguous()


def forgotten(folder: Path) -> None:
    tensors(lambda held: held.pop("model.embed_tokens.weight"))(folder)
    indexed(lambda c: (c["weight_map"].pop("model.embed_tokens.weight"), c["metadata"].pop("total_size")))(folder)


def extended(folder: Path) -> None:
    tensors(lambda held: held.update({"model.extra": torch.ones(2)}))(folder)
    indexed(lambda c: c["weight_map"].update({"model.extra": min(c["weight_map"].values())}))(folder)


def first_of(content: dict[str, dict[str, str]]) -> str:
    return next(iter(content["weight_map"].values()))


def stale(folder: Path, name: str) -> None:
    shutil.copyfile(sorted(folder.glob("*.safetensors"))[0], folder / name)


def pickled(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("clean"))


ALL = {**CONFIG, **ENDS, **WEIGHTS}


def test_an_export_without_a_defect(clean: Path) -> None:
    assert len(list(clean.glob("*.safetensors"))) > 2
    assert lint(clean) == []
    assert sum(bool(kind) for _, kind, _, _ in ALL.values()) > 25


@pytest.mark.parametrize("name", ALL)
def test_a_planted_defect_is_named(name: str, clean: Path, tmp_path: Path) -> None:
    change, kind, file, words = ALL[name]
    folder = tmp_path / "export"
    shutil.copytree(clean, folder)
    if file != J:  # rendering takes a process
        (folder / J).unlink()
    change(folder)
    findings = lint(folder)
    if not kind:
        assert findings == []
        return
    mine = [f for f in findings if file in f.where and re.search(words, f.what)]
    assert [f.severity for f in mine] == [kind], [f.line for f in findings]
    assert mine[0].how
    others = [f.line for f in findings if f not in mine and (f.severity == "problem" or kind == "warn")]
    assert len(others) == MORE.get(name, 0), others


MORE = {"words beyond the embedding": 1}  # errors that follow: the embedding has more rows


@pytest.mark.parametrize(("equal", "kind"), [(True, "warn"), (False, "problem")])
def test_a_tied_head_that_was_stored(equal: bool, kind: str, tmp_path: Path) -> None:
    folder = export(tmp_path, chat=False, shard=1 << 30, tie_word_embeddings=True)
    assert lint(folder) == []
    headed(equal)(folder)
    (finding,) = lint(folder)
    assert (finding.rule, finding.severity) == ("tied", kind)
    edited(C, tie_word_embeddings=False)(folder)
    assert lint(folder) == []


def test_a_head_that_is_missing(tmp_path: Path) -> None:
    folder = export(tmp_path, chat=False, shard=1 << 30, tie_word_embeddings=True)
    edited(C, tie_word_embeddings=False)(folder)
    assert [f.what for f in lint(folder)] == ["1 tensor is missing: lm_head.weight, and tie_word_embeddings is false"]


def test_large_shards(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MAX_SHARD_BYTES", 1000)
    assert {f.rule for f in lint(clean)} == {"shard"}


def test_code_that_is_meant(clean: Path, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    shutil.copytree(clean, folder)
    written("modeling.py", "")(folder)
    edited(C, auto_map={"AutoModel": "modeling.Model"})(folder)
    assert {f.rule for f in lint(folder)} == {"auto_map", "python"}
    assert lint(folder, code=True) == []
