"""What goes out is what was trained: the ends of texts, and all files of the folder that it began from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from chat_folders import CHATS, TEXTS, make_folder, make_tokenizer
from scalewright.api import train
from scalewright.checkpoint.convert import convert
from scalewright.data.prepare import prepare
from scalewright.data.shards import open_shards
from scalewright.serve.load import load_for_generation
from scalewright.spec.common.formatting import markdown_text
from scalewright.spec.ends import json_object

MODEL = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "context": 64,
}  # fmt: skip


def prepared(folder: Path, tokenizer: Path, **keys: Any) -> Path:
    lines = folder / "docs.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    prepare(lines, folder / "data", tokenizer=tokenizer, workers=1, progress=None, **keys)
    return folder / "data"


def trained(folder: Path, data: Path, steps: int = 2, **keys: Any) -> Path:
    run = {
        "out_dir": str(folder / "run"),
        "device": "cpu",
        "model": MODEL,
        "layout": {"global_batch": 8, "precision": "fp32"},
        "data": {"train": str(data), "valid": str(data), "seq_len": 32},
        "train": {"steps": steps, "valid_every": steps},
        **keys,
    }
    train(run, quiet=True)
    return folder / "run"


def contents(folder: Path) -> dict[str, Any]:
    """Every file of a folder but the weights, JSON as data."""
    files = [path for path in sorted(folder.iterdir()) if path.suffix != ".safetensors"]
    return {p.name: json.loads(p.read_text()) if p.suffix == ".json" else p.read_text() for p in files}


@pytest.mark.parametrize("name", CHATS)
def test_a_folder_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    """To a checkpoint and back: bytes are equal, but of config.json's dtype."""
    source = make_folder(tmp_path / "theirs", name)
    config = json_object(source / "config.json")
    absent = {key: config[key] for key in config if config[key] is not None}  # as many files of theirs have it
    (source / "config.json").write_text(json.dumps(absent))
    if name == "qwen":
        (source / "generation_config.json").unlink()
    convert(source, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", "bfloat16")
    before, after = contents(source), contents(tmp_path / "back")
    assert after["config.json"].pop("dtype") == "bfloat16"
    assert before["config.json"].pop("dtype") == "float32"
    assert after == before
    for path in source.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("own_end", [False, True], ids=["its-end", "another-end"])
def test_the_export_ends_with_what_ended_documents(name: str, own_end: bool, tmp_path: Path) -> None:
    """A list of ends stays, with the trained one in it; the rest of each file is as it was."""
    source = make_folder(tmp_path / "theirs", name)
    extra = {"eod": CHATS[name].special[1]} if own_end else {}
    data = prepared(tmp_path, source, **extra)
    eod = open_shards(data / "train").eod
    run = trained(tmp_path, data, model=str(source), init=str(source))
    convert(run, tmp_path / "out")
    before, after = contents(source), contents(tmp_path / "out")
    listed = before["config.json"]["eos_token_id"]
    ends = [*({eod} - set(listed)), *listed] if isinstance(listed, list) else eod
    for file in ("config.json", "generation_config.json"):
        assert after[file] == {**before[file], "eos_token_id": ends}, file
    words = json.loads((source / "tokenizer.json").read_text())["added_tokens"]
    end = next(word["content"] for word in words if word["id"] == eod)
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        assert after[file] == {**before[file], "eos_token": end}, file
    changed = {file for file, text in after.items() if text != before[file]}
    assert changed <= {*(file for file in before if "config" in file), "README.md", "special_tokens_map.json"}
    assert after.keys() == before.keys()
    card = after["README.md"]
    assert card.startswith("---\nlicense: apache-2.0\n---\n")
    assert all(
        part in card for part in ("What it was.", markdown_text(data), "| steps | 2", "training loss", "validation")
    )
    # the oracle
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert tokenizer.eos_token_id == eod
    assert eod in (generation.eos_token_id if isinstance(listed, list) else [generation.eos_token_id])
    assert (generation.temperature, generation.top_p) == (0.6, 0.9)
    for place in (run, tmp_path / "out"):
        loaded = load_for_generation(str(place))
        assert loaded.end_of_text == set(listed if isinstance(listed, list) else []) | {eod}
        assert loaded.encode("alpha") == tokenizer("alpha")["input_ids"]
    assert load_for_generation(str(run)).end == eod


def test_a_fresh_model_stops_where_documents_ended(tmp_path: Path) -> None:
    """Qwen's tokenizer has two ends; ours, and transformers on the export, stop at the one of the data."""
    make_tokenizer(tmp_path / "tok", CHATS["qwen"])
    data = prepared(tmp_path, tmp_path / "tok")
    run = trained(tmp_path, data, 60, optimizer={"lr": 0.02})
    convert(run, tmp_path / "out")
    config = json_object(tmp_path / "out" / "config.json")
    assert (config["eos_token_id"], config["pad_token_id"], config["bos_token_id"]) == (2, 0, None)
    assert config["max_position_embeddings"] == 32  # that were trained, of a context of 64
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template == (tmp_path / "tok" / "chat_template.jinja").read_text()
    prompt = tokenizer("alpha beta", return_tensors="pt")
    theirs = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    from scalewright.serve.generate import generate_text

    ours = generate_text(str(run), "alpha beta", max_new_tokens=20, temperature=0)
    assert ours.stopped_by == "end_of_text"
    assert ours.tokens == theirs.tolist()
    assert ours.tokens[-1] == 2


@pytest.mark.parametrize(
    ("seq_len", "keys", "positions"),
    [
        (32, {}, 32),
        (96, {}, 96),
        (32, {"positions": "learned"}, 64),
        (32, {"rope": {"scaling": {"kind": "linear", "factor": 2.0}}}, 64),
        (32, {"rope": {"scaling": {"kind": "dynamic", "factor": 2.0}}}, 64),
        (96, {"rope": {"scaling": {"kind": "yarn", "factor": 4.0, "original_context": 16}}}, 96),
    ],
)
def test_positions_are_those_of_the_training(seq_len: int, keys: dict[str, Any], positions: int) -> None:
    from scalewright.model.companions import Training, _positions
    from scalewright.spec.model import ModelSpec

    spec = ModelSpec.parse({**MODEL, **keys})
    assert _positions(spec, Training(seq_len=seq_len, fresh=True)) == positions
    assert _positions(spec, Training(seq_len=16)) == 64  # a model that goes on keeps what it had


@pytest.mark.parametrize("bos", ["never", "always"])
def test_a_tokenizer_begins_texts_as_in_training(bos: str, tmp_path: Path) -> None:
    """Where --bos isn't what the tokenizer does, the export's tokenizer does as --bos."""
    name = "gemma" if bos == "never" else "qwen"
    make_tokenizer(tmp_path / "tok", CHATS[name])
    config = json_object(tmp_path / "tok" / "tokenizer_config.json")
    if bos == "always":
        config |= {"bos_token": "<|im_start|>"}
        (tmp_path / "tok" / "tokenizer_config.json").write_text(json.dumps(config))
    data = prepared(tmp_path, tmp_path / "tok", bos=bos)
    run = trained(tmp_path, data)
    convert(run, tmp_path / "out")
    start = [] if bos == "never" else [1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    plain = tokenizer("alpha", add_special_tokens=False)["input_ids"]
    for ids in (
        tokenizer("alpha")["input_ids"],
        load_for_generation(str(run)).encode("alpha"),
        load_for_generation(str(tmp_path / "out")).encode("alpha"),
    ):
        assert ids == [*start, *plain]
    assert json_object(tmp_path / "out" / "tokenizer_config.json")["add_bos_token"] == (bos == "always")


def forget_beginnings(data: Path) -> None:
    """Makes the metadata those of an older release."""
    for part in data.rglob("metadata.json"):
        record = json.loads(part.read_text())
        del record["bos"]
        part.write_text(json.dumps(record))


def test_a_checkpoint_without_a_record_exports_by_the_tokenizers_files(tmp_path: Path) -> None:
    """Of an older release: the state says nothing, and data prepared then don't either."""
    make_tokenizer(tmp_path / "tok", CHATS["gemma"])
    data = prepared(tmp_path, tmp_path / "tok", bos="never")
    forget_beginnings(data)
    run = trained(tmp_path, data)
    loaded = load_for_generation(str(run))
    assert loaded.encode("alpha")[0] == 2  # as it was: the tokenizer's own <bos>
    convert(run, tmp_path / "out")
    assert json_object(tmp_path / "out" / "config.json")["bos_token_id"] == 2


# -- new words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [0, 22], ids=["full", "padded"])
@pytest.mark.parametrize("through", ["folder", "checkpoint"])
def test_new_words_begin_as_the_mean_of_the_old(padding: int, through: str, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "theirs", "qwen")
    words = json_object(source / "config.json")["vocab_size"]
    if padding:
        source = make_folder(tmp_path / "padded", "qwen", words + padding)
    data = prepared(tmp_path, source, special_tokens=["<a>", "<b>"])
    size = words + (padding or 2)
    init = source
    if through == "checkpoint":
        convert(source, tmp_path / "theirs-ours")
        init = tmp_path / "theirs-ours"
    model = {**load_model_keys(source), "vocab_size": size}
    run = trained(tmp_path, data, 1, model=model, init=str(init), optimizer={"lr": 1e-12, "weight_decay": 0.0})
    convert(run, tmp_path / "out")
    before, after = (load_file(f / "model.safetensors") for f in (source, tmp_path / "out"))
    for key in ("model.embed_tokens.weight", "lm_head.weight"):
        old, new = before[key], after[key]
        assert len(new) == size
        torch.testing.assert_close(new[:words], old[:words], atol=1e-6, rtol=0)  # one step at lr 1e-12
        expected = old[:words].mean(0).expand(size - words, -1)
        torch.testing.assert_close(new[words:], expected, atol=1e-6, rtol=0)
    assert json_object(tmp_path / "out" / "config.json")["vocab_size"] == size
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("x<b>")["input_ids"][-1] == words + 1


def load_model_keys(folder: Path) -> dict[str, Any]:
    from scalewright.spec.presets import load_model_spec

    return load_model_spec(folder).dump()


def test_fewer_words_are_refused(tmp_path: Path) -> None:
    from scalewright.spec.errors import UserError

    source = make_folder(tmp_path / "theirs", "qwen", 400)
    data = prepared(tmp_path, source)
    model = {**load_model_keys(source), "vocab_size": 390}
    with pytest.raises(UserError, match=r"vocab_size 390 is less than the 400 that init has.*use vocab_size 400"):
        trained(tmp_path, data, model=model, init=str(source))


def remarks(folder: Path, data: Path, init: str, size: int) -> list[str]:
    from scalewright.data.dataset import open_data
    from scalewright.spec.run import RunSpec
    from scalewright.train.initial import begin_remarks

    keys = {"model": {**MODEL, "vocab_size": size}, "init": init, "data": {"train": str(data), "seq_len": 16}}
    run = RunSpec.parse(keys)
    return begin_remarks(run, open_data(run.data, "train"))


@pytest.mark.parametrize(("warmup", "steps", "told"), [(0, 4, False), (3, 4, False), (4, 4, True), (500, 3, True)])
def test_a_warm_up_that_the_run_does_not_outlast_is_told(tmp_path: Path, warmup: int, steps: int, told: bool) -> None:
    from scalewright.data.dataset import open_data
    from scalewright.spec.run import RunSpec
    from scalewright.train.initial import begin_remarks

    data = prepared(tmp_path, make_folder(tmp_path / "theirs", "gemma"))
    keys = {"model": MODEL, "data": {"train": str(data), "seq_len": 16}, "train": {"steps": steps}}
    run = RunSpec.parse({**keys, "lr_schedule": {"warmup_steps": warmup}})
    lines = begin_remarks(run, open_data(run.data, "train"))
    assert any("the rate never reaches its lr" in line for line in lines) == told


def test_a_run_tells_of_new_words_and_of_documents_that_begin_otherwise(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "theirs", "gemma")
    words = json_object(source / "config.json")["vocab_size"]
    data = prepared(tmp_path, source)
    assert remarks(tmp_path, data, str(source), words) == []
    (line,) = remarks(tmp_path, data, str(source), words + 3)
    assert line.startswith(f"vocabulary {words} -> {words + 3}: new rows")
    prepare(tmp_path / "docs.jsonl", tmp_path / "bare", tokenizer=source, bos="never", workers=1, progress=None)
    (line,) = remarks(tmp_path, tmp_path / "bare", str(source), words)
    assert line.endswith("begin with the tokens [2]; the documents begin with [] (prepare --bos)")
    assert remarks(tmp_path, tmp_path / "bare", "random", words) == []
    forget_beginnings(tmp_path / "bare")
    for init in (str(source), "random"):  # prepared by an older release
        (line,) = remarks(tmp_path, tmp_path / "bare", init, words)
        assert "the documents are not known to begin with any" in line


def test_evaluate_tells_of_data_that_begin_otherwise(call_cli: Any, tmp_path: Path) -> None:
    source = make_folder(tmp_path / "theirs", "gemma")
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(TEXTS))
    for bos in ("auto", "never"):
        prepare(tmp_path / "text.txt", tmp_path / bos, tokenizer=source, bos=bos, workers=1, progress=None)
        answer = call_cli("evaluate", source, "--data", tmp_path / bos, "--seq-len", 16, "--json")
        assert answer.json()["loss"] > 0
        assert ("begin with the tokens [2]" in answer.err) == (bos == "never")
