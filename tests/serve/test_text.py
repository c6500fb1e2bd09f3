"""Pieces of text add up to the text, whole characters at a time, and stop strings are found across pieces."""

from __future__ import annotations

import pytest

from scalewright.serve.text import Detokenizer, StopText


def _bytes(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def test_pieces_add_up_and_characters_stay_whole() -> None:
    text = "naïve 🦊 — ok"
    pieces = Detokenizer(_bytes, list("prompt é".encode()))
    found = [pieces.add(token) for token in text.encode()]
    assert "".join(found) + pieces.rest() == text
    assert not any("\ufffd" in piece for piece in found)
    assert "🦊" in found  # all four of its bytes at once


def test_an_unfinished_character_comes_at_the_end() -> None:
    pieces = Detokenizer(_bytes, [65])
    assert [pieces.add(token) for token in "x🦊".encode()[:3]] == ["x", "", ""]
    assert pieces.rest() == "\ufffd"
    assert pieces.rest() == ""


def test_decoders_that_drop_a_leading_space_keep_it_after_a_prompt() -> None:
    words = ["▁To", "▁be", "▁or"]

    def decode(ids: list[int]) -> str:
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    pieces = Detokenizer(decode, [0])
    assert [pieces.add(1), pieces.add(2)] == [" be", " or"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_stop_string_is_found_wherever_it_is_cut(size: int) -> None:
    text = "one END two ENDLESS\n\nUser: three"
    gate = StopText(["\n\nUser:", "ENDS"])
    out = ""
    for start in range(0, len(text), size):
        out += gate.add(text[start : start + size])
        assert text.startswith(out)  # nothing is given out that would have to be taken back
        if gate.stopped:
            break
    assert gate.stopped
    assert out == "one END two ENDLESS"


def test_the_earliest_stop_wins_and_near_misses_pass() -> None:
    gate = StopText(["bb", "ab"])
    assert gate.add("xabb") == "x"
    gate = StopText(["abc"])
    assert gate.add("ab") + gate.add("abd") + gate.rest() == "ababd"
    assert not gate.stopped
    assert StopText([]).add("all") == "all"
