"""The first five lines of an answer are the answer, on a terminal of 80 columns and 24 rows."""

from __future__ import annotations

import pytest

PREDICT = ("predict", "llama-3.1-70b", "--cluster", "dgx-h100", "--seq-len", "8192", "--nodes", "64")
SMALL = ("predict", "llama-3.1-8b", "--cluster", "dgx-h100", "--seq-len", "8192", "--devices", "64")
PLAN = ("plan", "llama-3.2-1b", "--cluster", "dgx-h100", "--devices", "8", "--seq-len", "2048", "--global-batch", "64")
LABELS = ["how sure", "next", "assumed"]


@pytest.mark.parametrize(
    ("command", "title", "next_step"),
    [
        (SMALL, "llama-3.1-8b on 64 x h100-sxm: ", "scalewright plan llama-3.1-8b -c dgx-h100 --devices 64"),
        ((*PREDICT, "--tp", "8", "--zero-stage", "1", "--global-batch", "1024"), "llama-3.1-70b on 512",
         "the smallest change that makes it fit: pp 2"),
        (PLAN, "llama-3.2-1b on 8 x h100-sxm: ", "add `--out run.yaml --data DIR`, then scalewright train"),
        (("diagnose", "example"), "14.1 ms of 4 ranks", "look at rank 2"),
        (("diagnose", "example-log"), "295.8 TFLOP/s a device on 128 devices", "save asynchronously"),
    ],
)  # fmt: skip
def test_what_how_sure_what_next_what_was_assumed(call_cli, monkeypatch, command, title, next_step):
    monkeypatch.setenv("COLUMNS", "80")
    lines = call_cli(*command).out.splitlines()
    assert lines[0].startswith(title)
    assert lines[1].startswith(("step ", "cause "))
    assert [line[:9].strip() for line in lines[2:5]] == LABELS
    assert lines[3][10:].startswith(next_step)
    assert max(len(line) for line in lines if not line.startswith(("next", "or "))) <= 80
    assert len(lines) <= 30  # the first of them are still on the screen, or a line or two above it
    assert lines[-1] == "--all shows the rest"
    everything = call_cli(*command, "--all").out.splitlines()
    assert [line[:9] for line in everything if line[:8].strip() in LABELS][:3] == [line[:9] for line in lines[2:5]]
    assert len(everything) > len(lines)


def test_a_pipe_has_each_of_the_five_whole(call_cli):
    lines = call_cli(*PREDICT, "--tp", "8").out.splitlines()
    assert lines[4].startswith("assumed ")
    assert lines[4].endswith("optimizer adamw")


def test_another_trainers_plan_ends_in_its_words(call_cli, tmp_path):
    shown = call_cli(*PLAN, "--framework", "megatron", "--out", tmp_path / "run.yaml").out.splitlines()
    assert shown[3].startswith(f"next      scalewright emit megatron {tmp_path / 'run.yaml'}; ")


def test_a_layout_to_beat_is_in_the_second_line(call_cli):
    shown = call_cli(*PLAN, "--near", "tp=8,micro_batch=1").out.splitlines()
    assert "as fast as yours" in shown[1]
    assert any(line.startswith("yours     tp 8") for line in shown[5:])
