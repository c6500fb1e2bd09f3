"""Files are found in one order, and judged by what is in them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from scalewright.data.inputs import find_files, kind_of
from scalewright.data.prepare import prepare
from scalewright.spec.errors import UserError

from .texts import words


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", "text"),
        ("a.py", "text"),
        ("Makefile", "text"),
        ("a.JSONL", "jsonl"),
        ("a.ndjson.gz", "jsonl"),
        ("a.b.jsonl.zst", "jsonl"),
        ("a.parquet", "parquet"),
        ("a.txt.gz", "text"),
    ],
)
def test_kinds(name, kind):
    assert kind_of(Path(name)) == kind


def test_one_order_whatever_the_disk_says(tmp_path):
    for name in ("b/2.txt", "b/10.txt", "a.txt", "c/d/e.txt", "B.txt"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    found = [file.name for file in find_files([tmp_path / "in"], Counter())]
    assert found == ["in/B.txt", "in/a.txt", "in/b/10.txt", "in/b/2.txt", "in/c/d/e.txt"]


def test_binary_by_content_and_compressed_by_name(tmp_path):
    (tmp_path / "code.tar.gz").write_bytes(b"\x1f\x8b\0\0")
    (tmp_path / "text.txt.gz").write_bytes(b"\x1f\x8b\0\0")
    (tmp_path / "picture.txt").write_bytes(b"a\0b")
    skipped = Counter()
    assert [file.name.split("/")[-1] for file in find_files([tmp_path], skipped)] == ["text.txt.gz"]
    assert skipped == {"binary files": 2}


def test_the_same_input_twice(tmp_path):
    (tmp_path / "a.txt").write_text(words(100))
    with pytest.raises(UserError, match="is given 2 times"):
        prepare([tmp_path / "a.txt", tmp_path], tmp_path / "out", progress=None)


@pytest.mark.skipif(os.name == "nt", reason="names are Unicode there")
def test_names_that_are_not_unicode(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    try:
        with open(os.path.join(os.fsencode(folder), b"caf\xe9.txt"), "w") as file:
            file.write(words(3000))
    except OSError:
        pytest.skip("this file system refuses them")
    first = prepare(folder, tmp_path / "out", vocab_size=300, progress=None)
    again = prepare(folder, tmp_path / "out", vocab_size=300, progress=None)
    assert again.pieces_kept == first.pieces
