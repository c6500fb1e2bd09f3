"""Documents begin as the tokenizer begins a text, unless one says otherwise; special tokens of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from chat_folders import CHATS, TEXTS, make_tokenizer
from scalewright.data.dataset import open_data
from scalewright.data.items import ItemReader
from scalewright.data.prepare import Summary, prepare
from scalewright.data.shards import open_shards
from scalewright.spec.errors import UserError
from scalewright.spec.run import DataSpec


def made(folder: Path, texts: list[str] = TEXTS, out: str = "data", **keys: Any) -> Summary:
    lines = folder / "docs.jsonl"
    if not lines.exists():
        lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return prepare(lines, folder / out, workers=1, progress=None, **keys)


def documents(folder: Path) -> list[list[int]]:
    store = open_shards(folder / "train")
    starts = store.offsets
    return [store.gather(starts[n : n + 1], starts[n + 1 : n + 2] - starts[n]).tolist() for n in range(store.documents)]


def tokenizer(folder: Path, name: str, suffix: str | None = None) -> Path:
    """A family's tokenizer; `suffix`: its post-processor also puts this token after a text, as T5's does."""
    made_one = make_tokenizer(folder, CHATS[name])
    if suffix:
        pieces = [p for p in (CHATS[name].bos if CHATS[name].adds_bos else None, "$A", suffix) if p]
        ids = [(p, made_one.token_to_id(p)) for p in pieces if p != "$A"]
        made_one.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=ids)
        made_one.save(str(folder / "tokenizer.json"))
    return folder


def by_flag(folder: Path) -> Path:
    """A tokenizer without a post-processor, whose config has add_bos_token."""
    make_tokenizer(folder, CHATS["qwen"])
    config = json.loads((folder / "tokenizer_config.json").read_text())
    added = {"add_bos_token": True, "bos_token": {"content": "<|im_start|>", "lstrip": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | added))
    return folder


KINDS = {
    "llama3": (lambda p: tokenizer(p, "llama3"), "auto", [0], 3),
    "gemma": (lambda p: tokenizer(p, "gemma"), "auto", [2], 1),
    "gemma-never": (lambda p: tokenizer(p, "gemma"), "never", [], 1),
    "qwen": (lambda p: tokenizer(p, "qwen"), "auto", [], 2),
    "add_bos_token": (by_flag, "auto", [1], 2),
    "add_bos_token-never": (by_flag, "never", [], 2),
    "like-t5": (lambda p: tokenizer(p, "qwen", "<|im_end|>"), "auto", [], 2),
    "both-ends": (lambda p: tokenizer(p, "gemma", "<eos>"), "auto", [2], 1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_begins_and_ends_once(kind: str, tmp_path: Path) -> None:
    make, bos, start, end = KINDS[kind]
    folder = make(tmp_path / "tok")
    summary = made(tmp_path, tokenizer=folder, bos=bos, valid_fraction=0)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = [[*start, *plain.encode(t, add_special_tokens=False).ids, end] for t in TEXTS]
    assert documents(tmp_path / "data") == expected
    assert list(summary.bos) == start
    assert open_shards(tmp_path / "data" / "train").bos == tuple(start)
    assert json.loads((tmp_path / "data" / "metadata.json").read_text())["bos"] == start
    reader = ItemReader.of(str(folder), "text", None, bos)  # the same for text that a run reads itself
    assert [reader.document(text, "").tokens.tolist() for text in TEXTS[:3]] == expected[:3]
    assert (reader.eod, reader.bos) == (end, tuple(start))


def test_a_long_document_begins_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewright.data.documents.FRAGMENT", 64)
    made(tmp_path, [" ".join(TEXTS[:20])], tokenizer=tokenizer(tmp_path / "tok", "gemma"), valid_fraction=0)
    (only,) = documents(tmp_path / "data")
    assert (only.count(2), only[0], only.count(1), only[-1]) == (1, 2, 1, 1)


def test_always_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no token that begins a document.*--special-tokens"):
        made(tmp_path, vocab_size=300, bos="always")
    summary = made(tmp_path, out="again", vocab_size=300, bos="always", special_tokens=["<bos>"])
    assert summary.bos == (1,)
    with pytest.raises(UserError, match="unknown bos 'alway'"):
        made(tmp_path, vocab_size=300, bos="alway")


def test_a_rerun_redoes_what_began_otherwise(tmp_path: Path) -> None:
    """Pieces of an older release have no <bos>: they are never mixed with those that have."""
    folder = tokenizer(tmp_path / "tok", "gemma")
    made(tmp_path, tokenizer=folder, valid_fraction=0)
    assert made(tmp_path, tokenizer=folder, valid_fraction=0).pieces_kept == 1
    with pytest.raises(UserError, match="begun with no --bos, now with --bos never"):
        made(tmp_path, tokenizer=folder, valid_fraction=0, bos="never")
    made(tmp_path, tokenizer=folder, valid_fraction=0, bos="never", overwrite=True)
    plan = tmp_path / "data" / "pieces" / "plan.json"
    older = json.loads(plan.read_text())
    del older["options"]["bos"]
    plan.write_text(json.dumps(older))
    assert made(tmp_path, tokenizer=folder, valid_fraction=0).pieces_kept == 0
    assert all(document[0] == 2 for document in documents(tmp_path / "data"))


def test_sources_that_begin_otherwise_are_not_mixed(tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "tok", "gemma")
    made(tmp_path, tokenizer=folder, out="one")
    made(tmp_path, tokenizer=folder, out="two", bos="never")
    paths = [{"path": str(tmp_path / name)} for name in ("one", "two")]
    with pytest.raises(UserError, match=r"one begin with the tokens \[2\], those of .*two with \[\].*same --bos"):
        open_data(DataSpec.parse({"train": paths, "seq_len": 16}), "train")


# -- special tokens of one's own ----------------------------------------------------------------------

CHAT_TEXTS = ["<|user|>hello there<|bot|> well", "<|user|><|user|>", "no token", "<|bot|"]


@pytest.mark.parametrize("given", ["list", "file"])
@pytest.mark.parametrize("source", ["learnt", "llama3"])
def test_special_tokens_are_tokens_of_the_tokenizer(given: str, source: str, tmp_path: Path) -> None:
    names = ["<|user|>", "<|bot|>"]
    (tmp_path / "names.txt").write_text("<|user|>\n\n<|bot|>\n")
    keys: dict[str, Any] = {"special_tokens": names if given == "list" else str(tmp_path / "names.txt")}
    keys |= {"vocab_size": 300} if source == "learnt" else {"tokenizer": tokenizer(tmp_path / "tok", source)}
    summary = made(tmp_path, CHAT_TEXTS, valid_fraction=0, **keys)
    words = Tokenizer.from_file(str(tmp_path / "data" / "tokenizer.json"))
    user, bot = (words.token_to_id(name) for name in names)
    assert (user, bot) == ((1, 2) if source == "learnt" else (summary.vocab_size - 2, summary.vocab_size - 1))
    end = 3 if source == "llama3" else 0
    assert documents(tmp_path / "data") == [[*words.encode(text).ids, end] for text in CHAT_TEXTS]
    record = json.loads((tmp_path / "data" / "metadata.json").read_text())
    assert record["special_tokens"] == {"<|user|>": user, "<|bot|>": bot}
    assert all(token["special"] for token in json.loads(words.to_str())["added_tokens"])
