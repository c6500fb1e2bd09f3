"""Files that are no log, or a broken one, end in an answer or in one line; nothing hangs."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

import pytest
from tests.diagnose.logs.write import FORMS, Line, megatron_2021, write
from tests.diagnose.test_damage import damaged

from scalewright.cli.terminal import show
from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.logs.log import read_logs
from scalewright.report.present import show_answer
from scalewright.spec.errors import UserError


def test_an_unknown_format_tells_which_are_known(tmp_path: Path) -> None:
    path = tmp_path / "other.log"
    path.write_text("Batch 1 went well\n" * 9)
    answer = diagnose([path])
    assert (answer["kind"], answer["log"]["framework"], answer["log"]["steps"]) == ("log", None, [])
    assert "Megatron-LM, " in answer["warnings"][0]
    assert "torchtitan" in answer["warnings"][0]


def test_a_log_that_ends_before_the_first_step_keeps_what_it_states(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("  tensor_model_parallel_size ........ 8\n  num_layers ........ 32\nTraceback\n")
    answer = diagnose([path])
    assert (answer["log"]["framework"], answer["log"]["layout"]) == ("megatron-lm", {"tp": 8})
    assert "before the first step" in answer["warnings"][0]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\0\1\2", b"\xff\xfe\x00s\x00t", b"\xff\xfe" * 99])
def test_empty_and_binary_files_are_refused_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.log").write_bytes(content)
    with pytest.raises(UserError, match="can't be read"):
        diagnose([tmp_path / "run.log"])


def test_other_texts_in_a_folder_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, megatron_2021)
    (tmp_path / "README.md").write_text("# notes\n")
    assert len(diagnose([tmp_path])["log"]["steps"]) == 12


@pytest.mark.parametrize(
    ("line", "times"),
    [
        *(pytest.param(form, 12, id=form.__name__) for form in list(FORMS)[::3]),
        *(pytest.param(form, 40, id=f"{form.__name__} often", marks=pytest.mark.slow) for form in FORMS),
    ],
)
def test_damaged_logs_end_in_an_answer_or_a_line(
    tmp_path: Path, line: Line, times: int, capsys: pytest.CaptureFixture[str]
) -> None:
    source = random.Random(line.__name__)
    data = write(tmp_path, line).read_bytes()
    for _ in range(times):
        (tmp_path / "run.log").write_bytes(damaged(data, source))
        with contextlib.suppress(UserError):
            show(show_answer(diagnose([tmp_path / "run.log"])), everything=True)
    shown = capsys.readouterr().out
    assert not any(ord(sign) < 32 and sign != "\n" for sign in shown)


WORDS = (
    "9", "9,", "a: ", "step: 1  loss: ", "{'loss': ", "1:", "iteration 1 ", " ....", "[", "parallelism: ",
    "--zero_stage ", "Train a", "x/1 ", "NVIDIA A",
)  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_no_line_costs_more_than_its_length(tmp_path: Path, word: str) -> None:
    marks = "elapsed time per iteration (ms) iter time: 'loss': [batch= Train step: SamplesPerSec= world size: "

    def seconds(words: int) -> float:
        (tmp_path / "run.log").write_text((marks + word * words + "\n") * 5)
        begun = time.process_time()
        read_logs([tmp_path / "run.log"])
        return time.process_time() - begun

    # six times the length: 36 times the cost where it grows with the square, and what a file costs besides
    assert seconds(24_000) < 14 * max(seconds(4_000), 0.02)


def test_a_file_without_line_ends_takes_bounded_memory_and_time(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_bytes(b"step: " * 4_000_000)
    assert read_logs([tmp_path / "run.log"]).steps == []


def test_numbers_out_of_all_bounds(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    lines = [megatron_2021(step, 1.0, 3.0) for step in range(1, 13)]
    lines[3] = lines[3].replace("1000.0", "9e999").replace("0.500", "-1e999")
    lines[4] = lines[4].replace("       5/", "9" * 30 + "/")
    path.write_text("\n".join(lines))
    answer = diagnose([path])
    show(show_answer(answer), everything=True)
    assert answer["kind"] == "log"
