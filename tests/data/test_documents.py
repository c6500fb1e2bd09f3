"""Text in bites: nothing lost, no token changed by a cut, little memory."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import Counter
from itertools import pairwise

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from scalewright.data import documents
from scalewright.data.documents import Fragment, fragments, whole
from scalewright.data.inputs import describe, take_listed
from scalewright.data.pieces import Part, cut_pieces
from scalewright.data.tokenizer import read_tokenizer
from scalewright.spec.errors import UserError

from .texts import words, write_tokenizer


def read(path, notes=None, skip_bad=False, **keys):
    """All fragments of a file, in one part."""
    file = describe(path, path.name)
    part = Part(file, 0, file.size, file.size, **keys)
    return list(fragments(part, "text", notes if notes is not None else Counter(), skip_bad))


def join(found):
    """The documents that fragments make."""
    made = []
    for fragment in found:
        if fragment.opens:
            made.append("")
        made[-1] += fragment.text
    return made


def test_a_text_file_is_one_document(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n")
    assert read(tmp_path / "a.txt") == [Fragment("One.\n\nTwo.\n")]


def test_separators_part_documents(tmp_path):
    (tmp_path / "a.txt").write_text("One.<|endoftext|>Two.\n<|endoftext|>")
    assert join(read(tmp_path / "a.txt")) == ["One.", "Two.\n", ""]


def test_small_bites_lose_nothing(tmp_path, monkeypatch):
    text = "<|endoftext|>".join([words(900), words(3, 2), words(400, 3)])
    (tmp_path / "a.txt").write_text(text)
    monkeypatch.setattr(documents, "FRAGMENT", 512)
    found = read(tmp_path / "a.txt")
    assert len(found) > 10
    assert max(len(fragment.text.encode()) for fragment in found) < 2 * 512
    assert "<|endoftext|>".join(join(found)) == text


@pytest.mark.parametrize("unit", ["天地玄黃", "QUJDREVGR0hJ", "alpha "])
@pytest.mark.parametrize("count", [1, 3])
def test_a_separator_at_every_place_around_a_cut(tmp_path, monkeypatch, unit, count):
    """Also where two ranges meet: without spaces a cut may come anywhere."""
    monkeypatch.setattr(documents, "FRAGMENT", 256)
    path, body = tmp_path / "a.txt", unit * 200
    for shift in range(300 if count == 1 else 40):
        first = body[: shift // len(unit[0].encode()) + (0 if count == 1 else 240)] + "x" * (shift % 3)
        path.write_text(f"{first}<|endoftext|>{body[:500]}")
        file = describe(path, "a.txt")
        bounds = [0, file.size] if count == 1 else [0, len(first.encode()) + shift % 14, 900, file.size]
        parts = [Part(file, a, b, b - a, a == 0, b == file.size) for a, b in pairwise(bounds)]
        found = [fragment for part in parts for fragment in fragments(part, "text", Counter())]
        assert join(found) == [first, body[:500]], shift


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4"])
def test_cuts_change_no_token(tmp_path, monkeypatch, pattern):
    """Tokens of the bites, end to end, are the tokens of the whole text."""
    tokenizer = read_tokenizer(write_tokenizer(tmp_path / "t.json"))
    if pattern == "gpt4":
        rule = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        split = pre_tokenizers.Split(Regex(rule), "isolated")
        byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte])
    text = words(3000).replace("tide", "tide  \n\n  ").replace("deep", "deep.\n\n").replace("cold,", "cold\r\n\r\n")
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    expected = tokenizer.encode(text).ids
    monkeypatch.setattr(documents, "FRAGMENT", 700)
    bites = [tokenizer.encode(fragment.text).ids for fragment in read(path)]
    assert len(bites) > 10
    assert [token for ids in bites for token in ids] == expected
    bites = [tokenizer.encode(fragment.text).ids for fragment in whole(text)]
    assert [token for ids in bites for token in ids] == expected


@pytest.mark.parametrize("text", ["x" * 3000, "海" * 2000, "\n".join("海老。" for _ in range(900)), words(2000)])
def test_ranges_meet_exactly(tmp_path, monkeypatch, text):
    """A file read in ranges is the file, where it has spaces, where it has none, and inside characters."""
    path = tmp_path / "a.txt"
    path.write_text(text)
    monkeypatch.setattr(documents, "FRAGMENT", 256)
    file = describe(path, "a.txt")
    bounds = [0, 333, 1000, 1001, 2222, file.size]
    parts = [Part(file, a, b, b - a, a == 0, b == file.size) for a, b in pairwise(bounds)]
    notes = Counter()
    found = [fragment for part in parts for fragment in fragments(part, "text", notes)]
    assert "".join(fragment.text for fragment in found) == text
    assert [fragment.opens for fragment in found].count(True) == 1
    assert [fragment.closes for fragment in found].count(True) == 1
    assert not any(key.startswith("files with bytes that aren't UTF-8") for key in notes)


def test_wrong_bytes_are_replaced_and_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"na\xefve \xff")
    notes = Counter()
    assert read(tmp_path / "a.txt", notes)[0].text == "na\ufffdve \ufffd"
    assert notes[f"files with bytes that aren't UTF-8: {tmp_path / 'a.txt'}"] == 1


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello")
    assert read(tmp_path / "a.txt")[0].text == "hello"


def test_json_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        '{"text": "one"}',
        "",
        "not json",
        '{"text": null}',
        '{"text": "half \\ud800"}',
        '{"text": "three\\nlines"}',
    ]
    path.write_text("\n".join(lines))
    notes = Counter()
    assert join(read(path, notes, skip_bad=True)) == ["one", "half \ufffd", "three\nlines"]
    (bad,) = take_listed(notes)
    assert bad.startswith(f"{path}, line 3, byte 17: not JSON, Expecting value")
    assert notes == {"bad lines": 1, "empty documents": 1, "documents with broken characters": 1}
    with pytest.raises(UserError, match=r"not JSON, .*line 3, byte 17.*--skip-bad"):
        read(path)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_json_line_is_in_one_range(tmp_path, count):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": words(1 + k % 9, k)}) + "\n" for k in range(100)))
    file = describe(path, "a.jsonl")
    bounds = [file.size * k // count for k in range(count + 1)]
    parts = [Part(file, a, b, b - a, a == 0, b == file.size) for a, b in pairwise(bounds)]
    found = [fragment.text for part in parts for fragment in fragments(part, "text", Counter())]
    assert found == [words(1 + k % 9, k) for k in range(100)]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_bad_lines_are_named_by_their_number_in_the_file(tmp_path, count, suffix):
    """Whatever range they are in; the rest is read."""
    path = tmp_path / f"a.{suffix}"
    texts = [json.dumps({"text": f"line {k}"}) for k in range(1, 41)]
    texts[6], texts[19], texts[33] = '{"text": "cut', '{"body": 1}', "[" * 100_000
    data = ("\n".join(texts) + "\n").encode()
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    file = describe(path, path.name)
    bounds = [file.size * k // count for k in range(count + 1)] if not file.compressed else [0, file.size]
    parts = [Part(file, a, b, b - a, a == 0, b == file.size) for a, b in pairwise(bounds)]
    notes = Counter()
    found = [fragment.text for part in parts for fragment in fragments(part, "text", notes, True)]
    assert found == [f"line {k}" for k in range(1, 41) if k not in (7, 20, 34)]
    listed = take_listed(notes)
    assert [line.split(", ")[1] for line in listed] == ["line 7", "line 20", "line 34"]
    assert all(data[int(line.split("byte ")[1].split(":")[0]) - 1 :][:1] == b"\n" for line in listed)
    assert notes == {"bad lines": 3}
    with pytest.raises(UserError, match=r"not JSON.*line 7, byte \d+.*--skip-bad"):
        list(fragments(parts[0], "text", Counter()))


def test_a_missing_key_names_those_that_are_there(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"content": "x", "id": 1}\n')
    with pytest.raises(UserError, match="--text-key, such as content"):
        read(path)
    path.write_text('{"text": 5}\n')
    with pytest.raises(UserError, match="holds int, not text"):
        read(path)


def test_compressed(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    lines = [words(50, k) for k in range(30)]
    data = "".join(json.dumps({"text": line}) + "\n" for line in lines).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    with pyarrow.output_stream(str(tmp_path / "a.jsonl.zst"), compression="zstd") as stream:
        stream.write(data)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(words(80).encode()))
    assert join(read(tmp_path / "a.jsonl.gz")) == lines
    assert join(read(tmp_path / "a.jsonl.zst")) == lines
    assert join(read(tmp_path / "a.txt.gz")) == [words(80)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data)[:-20])
    with pytest.raises(UserError, match="cannot read on"):
        read(tmp_path / "a.jsonl.gz")


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [words(20, k) for k in range(500)]
    table = pyarrow.table({"id": list(range(500)), "text": texts})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=60)
    file = describe(tmp_path / "a.parquet", "a.parquet")
    parts = [part for piece in cut_pieces([file], 0.1) for part in piece.parts]
    assert join(fragment for part in parts for fragment in fragments(part, "text", Counter())) == texts
    with pytest.raises(UserError, match="no column 'body'"):
        list(fragments(parts[0], "body", Counter()))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(UserError, match="not a readable parquet"):
        cut_pieces([describe(tmp_path / "a.parquet", "a.parquet")], 0.1)


def test_memory_stays_small(tmp_path):
    """60 MB in one line without a space, and 60 MB of words: a few fragments are held."""
    block = words(4000).encode()
    for name, data in (("line.txt", b"x" * len(block)), ("words.txt", block)):
        with open(tmp_path / name, "wb") as file:
            for _ in range(60_000_000 // len(data)):
                file.write(data)
        tracemalloc.start()
        total = sum(len(fragment.text) for fragment in _lazily(tmp_path / name))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total > 40_000_000
        assert peak < 16 * documents.FRAGMENT  # some copies of a bite, 4 bytes a letter


def _lazily(path):
    file = describe(path, path.name)
    return fragments(Part(file, 0, file.size, file.size), "text", Counter())


def test_special_tokens_in_a_record_are_text(tmp_path):
    tokenizer = read_tokenizer(write_tokenizer(tmp_path / "t.json"))
    assert isinstance(tokenizer, Tokenizer)
    assert isinstance(tokenizer.model, models.BPE)
    ids = tokenizer.encode("a<|endoftext|>b").ids
    assert tokenizer.token_to_id("<|endoftext|>") not in ids
    assert tokenizer.decode(ids) == "a<|endoftext|>b"
