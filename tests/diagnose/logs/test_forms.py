"""Step lines in the forms of twelve trainers are read into the same steps, whatever surrounds them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.write import FORMS, LR, NORM, RATE, TFLOPS, VALUES, Line, megatron_2021, titan, write

from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.logs.lines import clock, number
from scalewright.diagnose.logs.log import read_logs


@pytest.mark.parametrize("line", FORMS, ids=lambda line: line.__name__)
def test_each_form_is_read_into_the_same_steps(tmp_path: Path, line: Line) -> None:
    framework, states = FORMS[line]
    log = read_logs([write(tmp_path, line)])
    assert (log.framework, len(log.steps), log.restarts) == (framework, 12, 0)
    for key in (*VALUES, NORM, RATE, TFLOPS, LR):
        value = getattr(log.steps[4], key)
        assert value == (pytest.approx(VALUES[key]) if key in states else None), key


@pytest.mark.parametrize("line", FORMS, ids=lambda line: line.__name__)
def test_the_content_of_a_file_tells_that_it_is_a_log(tmp_path: Path, line: Line) -> None:
    answer = diagnose([write(tmp_path, line)])
    assert answer["kind"] == "log"
    assert set(answer) == {"kind", "log", "ended", "expected", "verdicts", "warnings"}


@pytest.mark.parametrize(
    ("before", "after", "end"),
    [("3: ", "", "\n"), ("[1,0]<stdout>:", "", "\n"), ("[rank7]: ", "", "\n"), ("", "", "\r\n"),
     ("\x1b[36m", "\x1b[0m", "\n"), ("job-1/0 [default0]:", "", "\n"), ("node7 ", " trailing words", "\n")],
)  # fmt: skip
@pytest.mark.parametrize("line", [megatron_2021, titan], ids=lambda line: line.__name__)
def test_prefixes_colours_and_line_ends(tmp_path: Path, line: Line, before: str, after: str, end: str) -> None:
    path = tmp_path / "run.log"
    lines = (before + line(step, 1.5, 3.25) + after + end for step in range(1, 6))
    path.write_bytes("".join(lines).encode())
    log = read_logs([path])
    assert [step.step for step in log.steps] == [1, 2, 3, 4, 5]
    assert log.steps[2].loss == 3.25


def test_validation_lines_are_no_steps(tmp_path: Path) -> None:
    path = write(tmp_path, titan, steps=3)
    with path.open("a") as file:
        file.write("[titan] 2025-06-04 11:09:00,1 - root - INFO - validate step: 3  loss: 9.0000  tps: 1,000\n")
    assert [step.loss for step in read_logs([path]).steps] == [3.25] * 3


def test_a_line_cut_in_the_middle_keeps_what_it_has(tmp_path: Path) -> None:
    path = write(tmp_path, megatron_2021, steps=3)
    path.write_bytes(path.read_bytes()[:-150])
    last = read_logs([path]).steps[-1]
    assert (last.step, last.step_time_s, last.grad_norm) == (3, 1.5, None)


def test_of_two_kinds_of_lines_the_trainer_s_own_count(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("".join(f"{megatron_2021(n, 1.5, 3.25)}\n{titan(n, 1.5, 3.25)}\n" for n in range(1, 9)))
    log = read_logs([path])
    assert (log.framework, len(log.steps)) == ("megatron-lm", 8)
    assert any("torchtitan" in note for note in log.notes)


def test_numbers_and_times() -> None:
    assert [number(text) for text in ("6,344", "-1.5e-3x", "nan", "INF", "n/a", "", "1" * 5000)][:2] == [6344, -0.0015]
    assert number("8.79K", units=True) == 8790
    assert number("8.79K") == 8.79
    assert clock("[2026-09-23 03:07:39.5] x") == clock("x 2026-09-23T03:07:38") + 1.5  # type: ignore[operator]
    assert clock("2026-99-99 03:07:39") is None or isinstance(clock("2026-99-99 03:07:39"), float)
