"""`prepare` on the command line: shards, one JSON document, and the same again does nothing twice."""

from __future__ import annotations

import json


def test_prepare_twice(call_cli, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"{a}{b} {b}ing {a}ly" for a in "abcdefgh" for b in ("cat", "dog", "sun", "rain")) * 9)
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


def test_bad_lines_are_left_out_and_listed(call_cli, tmp_path):
    """Without --skip-bad the first such line ends it; what it advises works in the same folder, and back."""
    words = [json.dumps({"text": f"the {a}{b} and {b}ing {a}ly " * 9}) for a in "abcdefgh" for b in "uvwxyz"]
    words[6], words[40] = '{"text": "cut', '{"body": "of another kind"}'
    path = tmp_path / "words.jsonl"
    path.write_text("\n".join(words) + "\n")
    arguments = ["prepare", path, "--out", tmp_path / "data", "--vocab-size", 300, "--workers", 2]
    refused = call_cli(*arguments)
    assert refused.code == 2
    assert "line 7" in refused.error
    assert "--skip-bad" in refused.error
    found = call_cli(*arguments, "--skip-bad", "--json").json()
    assert found["left_out"]["bad lines"] == 2
    assert [line.split(", ")[1] for line in found["bad_lines"]] == ["line 7", "line 41"]
    assert sum(split["documents"] for split in found["splits"].values()) == len(words) - 2
    shown = call_cli(*arguments, "--skip-bad").out
    assert "done already" in shown
    assert "line 7" in call_cli(*arguments).error  # what was left out isn't kept
    assert "left out: 2 bad lines" in shown
    assert "words.jsonl, line 7, byte" in shown
    assert "words.jsonl, line 41, byte" in shown


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
