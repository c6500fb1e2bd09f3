"""Whole, cut-off and damaged gzips."""

from __future__ import annotations

import gzip
from pathlib import Path

from scalewright.diagnose.traces.unpack import Unpacked

TEXT = b"0123456789" * 5000


def unpacked(path: Path, data: bytes) -> tuple[bytes, str]:
    path.write_bytes(data)
    reader = Unpacked(path, chunk=1000)
    return b"".join(reader), reader.damage


def test_plain_gzipped_and_several_members(tmp_path: Path) -> None:
    for data in (TEXT, gzip.compress(TEXT), gzip.compress(TEXT[:700]) + gzip.compress(TEXT[700:]) + b"\0" * 9):
        assert unpacked(tmp_path / "a", data) == (TEXT, "")


def test_a_gzip_without_its_end_gives_what_is_there(tmp_path: Path) -> None:
    text, damage = unpacked(tmp_path / "a", gzip.compress(TEXT, 0)[:20_000])
    assert TEXT.startswith(text)
    assert len(text) > 15_000
    assert "cut off" in damage


def test_rubbish_in_a_gzip_ends_it(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(TEXT, 0))
    data[40_000:40_100] = b"\xff" * 100
    text, damage = unpacked(tmp_path / "a", bytes(data))
    assert damage
    assert TEXT.startswith(text[:30_000])


def test_a_bomb_comes_in_small_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(b"\0" * 10_000_000))
    assert max(len(piece) for piece in Unpacked(path, chunk=1000)) <= 1000
