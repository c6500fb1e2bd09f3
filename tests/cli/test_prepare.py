"""`prepare` on the command line: shards, one JSON document, and the same again does nothing twice."""

from __future__ import annotations


def test_prepare_twice(call_cli, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(
        " ".join(f"{a}{b} {b}ing {a}ly" for a in "abcdefgh" for b in ("cat", "dog", "sun", "rain")) * 9
    )
    arguments = ["prepare", text, "--out", tmp_path / "data", "--vocab-size", 300, "--workers", 1]
    first = call_cli(*arguments, "--json")
    assert first.code == 0, first.err
    summary = first.json()
    assert summary["vocab_size"] == 300
    assert summary["pieces_kept"] == 0
    again = call_cli(*arguments, "--json").json()
    assert again["pieces_kept"] == again["pieces"]
    assert again["splits"] == summary["splits"]
    shown = call_cli(*arguments, "--stats")
    assert "done already" in shown.out
    assert "documents by tokens" in shown.out


def test_other_options_are_refused(call_cli, tmp_path):
    (tmp_path / "t.txt").write_text("words and words " * 300)
    arguments = ["prepare", tmp_path / "t.txt", "--out", tmp_path / "data", "--workers", 1]
    assert call_cli(*arguments, "--vocab-size", 300).code == 0
    answer = call_cli(*arguments, "--vocab-size", 290)
    assert answer.code == 2
    assert "--vocab-size" in answer.error


def test_a_misspelt_text_gets_the_nearest(call_cli, tmp_path):
    answer = call_cli("prepare", "shakespear", "--out", tmp_path / "x")
    assert answer.code == 2
    assert "did you mean shakespeare?" in answer.error
    assert not (tmp_path / "x").exists()
