"""Progress bars in a row: the last one is read, nothing between them is lost, and none costs what a line does."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.diagnose.logs.lines import Line, MarkedLines
from scalewright.diagnose.logs.log import read_log

STEP = "{'loss': 2.5, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}"


def bar(step: int, seconds: float, name: str = "", rest: str = "") -> str:
    return f"{name}{step % 100:3d}%|{'█' * (step % 9)}   | {step}/9000 [01:04<1:22:08,  {seconds:.2f}s/it{rest}]"


def bars(path: Path, text: str) -> list[Line]:
    path.write_text(text, encoding="utf-8", newline="")
    return [*MarkedLines(path, ["s/it", "'loss': ", "Error"])]


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n", "\r\r", "\n\r"])
@pytest.mark.parametrize("name", ["", "Training: ", "Epoch 3:"])
def test_of_bars_in_a_row_the_last_is_read(tmp_path: Path, end: str, name: str) -> None:
    text = "begin" + end + end.join(bar(step, 2 + step / 100, name) for step in range(1, 50))
    lines = bars(tmp_path / "log", text)
    assert len(lines) <= 2
    assert lines[-1].text.strip() == bar(49, 2.49, name).strip()
    assert read_log(tmp_path / "log").facts["mean_step_s"] == 2.49


@pytest.mark.parametrize(
    "between", [STEP, "ValueError: a batch is empty", bar(7, 2.0, rest=", loss=2.1"), bar(7, 0.0), "x" + bar(7, 2.0)]
)
def test_what_stands_between_bars_is_kept(tmp_path: Path, between: str) -> None:
    row = "\r".join(bar(step, 2.5) for step in range(1, 20))
    texts = [line.text for line in bars(tmp_path / "log", f"\r{row}\r{between}\r{row}\n")]
    assert between in texts
    assert len(texts) <= 5


def test_megabytes_of_bars_without_an_end_of_a_line_are_read(tmp_path: Path) -> None:
    row = "\r".join(bar(step, 2.5) for step in range(1, 12_000))
    texts = [line.text for line in bars(tmp_path / "log", f"{row}\rRuntimeError: it stopped\r{row}\r{row}")]
    assert "RuntimeError: it stopped" in texts
    assert len(texts) < 20
