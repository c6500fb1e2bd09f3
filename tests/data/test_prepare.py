"""From every kind of input to batches; the same bytes for any workers; a clear line for every mistake."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.data.whole import verify
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from scalewright.data.dataset import open_data
from scalewright.data.encode import choose_split
from scalewright.data.prepare import prepare
from scalewright.data.readers import open_tokens
from scalewright.data.tokenizer import read_tokenizer
from scalewright.spec.errors import UserError
from scalewright.spec.run import DataSpec

from .stores import document
from .texts import words, write_tokenizer


def quiet(inputs, out, **keys):
    keys.setdefault("workers", 1)
    return prepare(inputs, out, progress=None, **keys)


def texts_of(out, split="train"):
    """The documents in a prepared folder, as text."""
    store = open_tokens(out, split)
    tokenizer = read_tokenizer(store.tokenizer_path)
    documents = []
    for number in range(store.documents):
        ids = document(store, number).tolist()
        assert ids[-1] == store.eod
        documents.append(tokenizer.decode(ids[:-1], skip_special_tokens=False))
    return documents


def files_of(out):
    """Every file of a result by name, but for the records of the work."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(Path(out).rglob("*"))
        if path.is_file() and "pieces" not in path.parts
    }


def corpus(folder, documents=60, each=400):
    """A folder of small text files."""
    folder.mkdir()
    for number in range(documents):
        (folder / f"{number:03d}.txt").write_text(words(each, number))
    return folder


def test_one_text(tmp_path):
    text = words(5000)
    (tmp_path / "a.txt").write_text(text)
    summary = quiet(tmp_path / "a.txt", tmp_path / "out", vocab_size=300)
    cut = int(len(text.encode()) * 0.9)
    train, valid = texts_of(tmp_path / "out")[0], texts_of(tmp_path / "out", "valid")[0]
    assert train + valid == text
    assert cut - 3 <= len(train.encode()) <= cut  # the last tenth of the bytes validates, from a character's start
    assert summary.vocab_size == 300
    assert summary.splits["train"]["text_bytes"] == len(train.encode())
    assert verify(tmp_path / "out") == 4
    json.dumps(summary.plain())


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_records(tmp_path, kind):
    texts = [words(30, k) for k in range(300)]
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"body": texts}), path, row_group_size=64)
    else:
        data = "".join(json.dumps({"body": text}) + "\n" for text in texts).encode()
        path.write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
    quiet(path, tmp_path / "out", vocab_size=300, text_key="body")
    train, valid = texts_of(tmp_path / "out"), texts_of(tmp_path / "out", "valid")
    assert [text for text in texts if text in set(train)] == train  # in their order
    assert sorted(train + valid) == sorted(texts)
    assert 10 <= len(valid) <= 55  # a tenth of 300 by hash: 30 ± 5 standard deviations of 5.2


def test_equal_documents_stay_together(tmp_path):
    lines = [json.dumps({"text": words(20, k % 25)}) for k in range(400)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    quiet(tmp_path / "a.jsonl", tmp_path / "out", vocab_size=300, valid_fraction=0.3)
    assert not set(texts_of(tmp_path / "out")) & set(texts_of(tmp_path / "out", "valid"))


def test_folder_of_source_files(tmp_path):
    folder = tmp_path / "src"
    (folder / "sub").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "__pycache__").mkdir()
    (folder / "a.py").write_text("def f():\n    return 1\n" * 30)
    (folder / "sub" / "b.py").write_bytes(b"# caf\xe9\n" * 40)  # Latin-1
    (folder / "empty.py").write_text("")
    (folder / "blank.py").write_text("\n\n")
    (folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    (folder / ".git" / "config").write_text("[core]")
    (folder / "__pycache__" / "a.pyc").write_bytes(b"\0")
    (folder / "loop").symlink_to(folder)
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe")
    summary = quiet(folder, tmp_path / "out", vocab_size=257, valid_fraction=0)
    assert summary.splits["train"]["documents"] == 2
    assert "valid" not in summary.splits
    expected = {
        "symbolic links": 1,
        "binary files": 1,
        "empty files": 1,
        "empty documents": 1,
        "hidden or generated": 2,
        "not regular files": 1,
    }
    assert summary.left_out == expected
    assert summary.mended == {"files with bytes that aren't UTF-8": 1}
    assert len(summary.mended_files) == 1
    assert Path(summary.mended_files[0]).is_file()


def test_result_inside_the_input(tmp_path):
    folder = corpus(tmp_path / "c")
    first = quiet(folder, folder / "tokens", vocab_size=300)
    again = quiet(folder, folder / "tokens", vocab_size=300)
    assert again.pieces_kept == again.pieces
    assert again.splits == first.splits


def test_any_number_of_workers_gives_the_same_bytes(tmp_path):
    folder = corpus(tmp_path / "c", 120, 4000)  # some 2.5 MB: several pieces
    one = quiet(folder, tmp_path / "one", vocab_size=400)
    two = quiet(folder, tmp_path / "two", vocab_size=400, workers=2)
    assert one.pieces > 2
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert one.splits == two.splits


def test_a_long_file_in_several_pieces(tmp_path):
    text = words(330_000)
    path = tmp_path / "long.txt"
    path.write_text(text)
    tokenizer = write_tokenizer(tmp_path / "t.json")
    summary = quiet(path, tmp_path / "out", tokenizer=tokenizer, valid_fraction=0)
    assert summary.pieces > 1
    assert summary.mended == {"documents cut into pieces": summary.pieces - 1}
    store = open_tokens(tmp_path / "out")
    found = np.concatenate([document(store, number) for number in range(store.documents)])
    assert found[:-1].tolist() == read_tokenizer(tokenizer).encode(text).ids  # no token was changed by the cuts
    assert found[-1] == store.eod


def test_a_given_tokenizer(tmp_path):
    tokenizer = write_tokenizer(tmp_path / "t.json", 333)
    (tmp_path / "a.txt").write_text(words(2000))
    summary = quiet(tmp_path / "a.txt", tmp_path / "out", tokenizer=tokenizer)
    assert not summary.tokenizer_trained
    assert (summary.vocab_size, summary.eod) == (333, 0)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    data = open_data(DataSpec.parse({"train": str(tmp_path / "out")}), "train")
    assert (data.vocab_size, data.eod) == (333, 0)
    assert data.tokenizer_path == tmp_path / "out" / "tokenizer.json"


def test_large_vocabularies_take_four_bytes(tmp_path):
    path = tmp_path / "t.json"
    data = json.loads(write_tokenizer(path).read_text())
    data["added_tokens"].append({**data["added_tokens"][0], "id": 70_000, "content": "<|far|>"})
    data["model"]["vocab"]["<|far|>"] = 70_000
    path.write_text(json.dumps(data))
    (tmp_path / "a.txt").write_text(words(1000))
    summary = quiet(tmp_path / "a.txt", tmp_path / "out", tokenizer=path, eod="<|far|>")
    assert (summary.dtype, summary.vocab_size, summary.eod) == ("uint32", 70_001, 70_000)
    assert texts_of(tmp_path / "out")[0] + texts_of(tmp_path / "out", "valid")[0] == words(1000)


def test_few_records_without_validation(tmp_path):
    texts = [words(50, k) for k in range(20)]
    few = [text for text in texts if choose_split(text, 0.1) == "train"][:3]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in few))
    summary = quiet(tmp_path / "a.jsonl", tmp_path / "out", vocab_size=300)
    assert list(summary.splits) == ["train"]
    fraction = float(re.search(r"share of 0.1: give --valid-fraction (0.\d+) --overwrite", summary.unvalidated)[1])
    again = quiet(tmp_path / "a.jsonl", tmp_path / "out3", vocab_size=300, valid_fraction=fraction)
    assert list(again.splits) == ["train", "valid"]
    assert not again.unvalidated
    with pytest.raises(UserError, match="--valid-fraction"):
        open_data(DataSpec.parse({"train": str(tmp_path / "out"), "valid": str(tmp_path / "out")}), "valid")
    with pytest.raises(
        UserError, match=f"no document fell into the validation split.*give --valid-fraction {fraction:g},"
    ):
        quiet(tmp_path / "a.jsonl", tmp_path / "out2", vocab_size=300, valid_fraction=0.01)
    (tmp_path / "one.jsonl").write_text(json.dumps({"text": few[0]}))  # no fraction splits one document
    assert "name another text" in quiet(tmp_path / "one.jsonl", tmp_path / "one", vocab_size=300).unvalidated


@pytest.mark.parametrize(
    "mistake", [{"text_key": "content"}, {"vocab_size": 280, "text_key": "nothing"}, {"eod": "<|no|>"}]
)
def test_a_first_try_that_finished_nothing_is_in_nobody_s_way(tmp_path, mistake):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": words(50, k)}) for k in range(20)))
    with pytest.raises(UserError):
        quiet(tmp_path / "a.jsonl", tmp_path / "out", **{"vocab_size": 300, **mistake})
    assert quiet(tmp_path / "a.jsonl", tmp_path / "out", vocab_size=300).splits
    with pytest.raises(UserError, match="begun with --vocab-size 300, now with --vocab-size 301"):
        quiet(tmp_path / "a.jsonl", tmp_path / "out", vocab_size=301)


def test_statistics(tmp_path):
    summary = quiet(corpus(tmp_path / "c"), tmp_path / "out", vocab_size=300, stats=True)
    found = summary.statistics["train"]
    assert sum(entry["documents"] for entry in found["histogram"]) == summary.splits["train"]["documents"]
    assert sum(entry["tokens"] for entry in found["histogram"]) == summary.splits["train"]["tokens"]


def test_progress_is_told(tmp_path):
    told = []
    (tmp_path / "a.txt").write_text(words(2000))
    prepare(tmp_path / "a.txt", tmp_path / "o", vocab_size=300, progress=lambda *row: told.append(row))
    stages = [stage for stage, *_ in told]
    assert stages[0] == "learn"
    assert stages[-1] == "tokenize"
    assert told[-1][1] == told[-1][2] == len(words(2000).encode())


@pytest.mark.parametrize(
    ("make", "keys", "message"),
    [
        (lambda p: p / "none.txt", {}, "no such file or folder"),
        (lambda p: (p / "e.txt").touch() or p / "e.txt", {}, "no text in the input: 1 empty files"),
        (lambda p: (p / "b.bin").write_bytes(b"a\0b") and p / "b.bin", {}, "a binary file"),
        (lambda p: (p / "w.txt").write_text("\n \n") and p / "w.txt", {}, "no training text"),
        (lambda p: "shakespear", {}, "did you mean shakespeare"),
        (lambda p: [], {}, "nothing to prepare"),
        (lambda p: "wikitext-2", {"valid_fraction": 0.1}, "its own validation split"),
        (lambda p: "shakespeare", {"vocab_size": 256}, "at least 257"),
        (lambda p: "shakespeare", {"valid_fraction": 1.0}, "validation fraction"),
        (lambda p: "shakespeare", {"workers": 0}, "--workers"),
        (lambda p: "shakespeare", {"tokenizer": "nope.json"}, "no such tokenizer"),
        (lambda p: "shakespeare", {"tokenizer": "x", "vocab_size": 300}, "keep one of them"),
    ],
)
def test_mistakes(tmp_path, make, keys, message):
    with pytest.raises(UserError, match=message) as caught:
        quiet(make(tmp_path), tmp_path / "out", **keys)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / "metadata.json").exists()


def test_damaged_tokenizer(tmp_path):
    (tmp_path / "t.json").write_text('{"model": {}')
    with pytest.raises(UserError, match="not a readable tokenizer"):
        quiet("shakespeare", tmp_path / "out", tokenizer=tmp_path / "t.json")


def test_tokenizer_without_an_end(tmp_path):
    data = json.loads(write_tokenizer(tmp_path / "t.json").read_text().replace("<|endoftext|>", "<|x|>"))
    (tmp_path / "t.json").write_text(json.dumps(data))
    (tmp_path / "a.txt").write_text(words(300))
    with pytest.raises(UserError, match="--eod TOKEN"):
        quiet(tmp_path / "a.txt", tmp_path / "out", tokenizer=tmp_path / "t.json")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|x|>"}}')
    assert quiet(tmp_path / "a.txt", tmp_path / "out", tokenizer=tmp_path / "t.json").eod == 0


def test_out_that_cannot_be_written(tmp_path):
    (tmp_path / "a.txt").write_text(words(300))
    with pytest.raises(UserError, match="among its own input"):
        quiet(tmp_path, tmp_path)
    (tmp_path / "b.txt").write_text("b")
    with pytest.raises(UserError, match="a file, not a folder"):
        quiet(tmp_path / "a.txt", tmp_path / "b.txt")
    with pytest.raises(UserError, match="cannot write there"):
        quiet(tmp_path / "a.txt", tmp_path / "a.txt" / "below")
    (tmp_path / "mine" / "train").mkdir(parents=True)
    with pytest.raises(UserError, match="already holds train"):
        quiet(tmp_path / "a.txt", tmp_path / "mine")


def test_script_without_a_main_guard_works_with_one_worker(tmp_path):
    """Small inputs stay in the process, so the three lines that people try first work."""
    (tmp_path / "a.txt").write_text(words(2000))
    script = "from scalewright.data.prepare import prepare\nprint(prepare('a.txt', 'out', vocab_size=300).dtype)\n"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "uint16\n", done.stderr


@pytest.mark.parametrize("kind", ["jsonl", pytest.param("txt", marks=pytest.mark.slow)])
@pytest.mark.parametrize("text", ["words", "han"])
def test_a_text_in_many_pieces_has_the_tokens_of_the_whole(tmp_path, kind, text):
    """With a tokenizer that puts a sign before every text it is given, as Llama 2's normalizer does."""
    small = words(3000)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    alphabet = [chr(0x4E00 + k) for k in range(60)]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([small], trainer)
    config = json.loads(tokenizer.to_str())
    config["pre_tokenizer"] = {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Isolated", "invert": False}
    steps = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    config["normalizer"] = {"type": "Sequence", "normalizers": steps}
    (tmp_path / "t.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_str(json.dumps(config))
    han = "".join(alphabet[(k * k * 7 + k) % 59] for k in range(600_000))
    document = words(400_000)[:1_700_000] if text == "words" else han
    path = tmp_path / f"a.{kind}"
    path.write_text(json.dumps({"text": document}) if kind == "jsonl" else document)
    quiet(path, tmp_path / "out", tokenizer=tmp_path / "t.json", eod="</s>", valid_fraction=0)
    files = sorted((tmp_path / "out" / "train").glob("tokens-*.bin"))
    ids = np.concatenate([np.fromfile(file, "<u2") for file in files]).tolist()
    assert len(files) == 1 or kind == "txt"
    assert ids == [*tokenizer.encode(document, add_special_tokens=False).ids, tokenizer.token_to_id("</s>")]


@pytest.mark.parametrize("fraction", [0, 0.1, 0.5])
def test_a_file_of_a_training_and_a_validation_part_is_one_repaired_file(tmp_path: Path, fraction: float) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "latin.txt").write_bytes("Stra\u00dfe \u00fcber ".encode("latin-1") * 400)
    (folder / "plain.txt").write_text("one two three " * 400)
    (folder / "other.txt").write_bytes(b"na\xefve words " * 400)
    summary = quiet(folder, tmp_path / "out", vocab_size=257, valid_fraction=fraction)
    assert summary.mended == {"files with bytes that aren't UTF-8": 2}
    assert [Path(path).name for path in summary.mended_files] == ["latin.txt", "other.txt"]
