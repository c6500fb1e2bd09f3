"""`scalewright explain`: an entry, the list, a page, and what is refused."""

from __future__ import annotations

import subprocess
import sys

RUN = """name: mine
model: llama-3.2-1b
cluster: dgx-h100
data: {train: tokens, seq_len: 4096}
layout: {devices: 16, tp: 2, pp: 4, micro_batch: 1, global_batch: 32}
"""


def test_a_term_in_words_of_any_spelling(call_cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = call_cli("explain", "Pipeline", "Bubbles")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("pipeline bubble: ")
    for label in ("what ", "formula", "source", "number", "next", "see ", "read "):
        assert any(line.startswith(label) for line in answer.out.splitlines()), label
    assert "16 micro-batches" in answer.out  # of the picture


def test_a_run_s_own_number_as_json(call_cli, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(RUN, encoding="utf-8")
    answer = call_cli("explain", "bubble", "--run", path, "--json").json()
    assert set(answer) >= {"term", "title", "text", "formula", "value", "source", "command", "see"}
    assert set(answer["value"]) >= {"number", "unit", "of"}
    assert answer["value"]["number"] == 3 / (16 + 3)  # 4 stages; 32 sequences over 2 replicas
    assert "mine.yaml" in answer["value"]["run"]


def test_the_list(call_cli):
    answer = call_cli("explain", "--list")
    assert "  pipeline bubble " in answer.out
    assert len(call_cli("explain", "--list", "--json").json()["terms"]) > 250


def test_a_page(call_cli, tmp_path):
    page = tmp_path / "page.html"
    assert call_cli("explain", "ZeRO", "--out", page).code == 0
    text = page.read_text(encoding="utf-8")
    for words in ("ZeRO-3", "Rajbhandari", "Scalewright", 'class="track"'):
        assert words in text
    page.write_text("mine", encoding="utf-8")
    assert "no report" in call_cli("explain", "ZeRO", "--out", page).error


def test_what_is_refused(call_cli):
    assert "did you mean 'pipeline bubble'" in call_cli("explain", "pipline bubble").error
    assert "no term" in call_cli("explain").error
    assert "--list" in call_cli("explain", "ZeRO", "--list").error
    assert "no such file" in call_cli("explain", "ZeRO", "--run", "none.yaml").error
    assert "end it in .html" in call_cli("explain", "ZeRO", "--out", "page.md").error


def test_it_needs_no_torch():
    script = "import sys; from scalewright.cli import main; print(main(['explain', 'MFU']), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("0 False\n"), done.stderr
