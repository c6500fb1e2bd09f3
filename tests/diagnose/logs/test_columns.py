"""Metrics in columns, in forms of our own writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.diagnose.diagnose import diagnose
from scalewright.diagnose.logs.log import read_log
from scalewright.diagnose.logs.times import usual

# A table's first line, the lines of a step, and the step's norm and rate, and the usual time of a step.
TABLES: dict[str, tuple[str, str, tuple[float | None, ...]]] = {
    "Lightning": (
        "epoch,lr-AdamW,step,train_loss_step,val_loss",
        "0,3e-4,{n},,\n0,,{n},{loss},\n0,,{n},,4.1",
        (None,) * 3,
    ),
    "of milliseconds": (
        "step,loss,lr,norm,dt_ms,tok_per_sec",
        "{n},{loss},3e-4,0.5,1250.0,5242.5",
        (0.5, 5242.5, 1.25),
    ),
    "seconds since the start": ("step,loss,lr,elapsed_sec", "{n},{loss},3e-4,{since}", (None, None, 1.25)),
    "time since the start": ("step;train_loss;time", "{n};{loss};{since}", (None, None, 1.25)),
    "time of a step": ("iteration;train_loss;grad_norm;time", "{n};{loss};0.5;1.{hundredths}", (0.5, None, 1.25)),
    "dates": ("timestamp\tstep\tloss", "2024-01-01T10:{minute:02}:30\t{n}\t{loss}", (None, None, 60.0)),
    "Weights & Biases": ('"Step","run-a - train/loss","run-a - train/loss__MIN"', '"{n}","{loss}","1"', (None,) * 3),
    "steps a second": ("global_step,train/loss,train/grad_norm,steps_per_sec", "{n},{loss},0.5,0.8", (0.5, None, 1.25)),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_table(tmp_path: Path, name: str, end: str) -> None:
    first, row, (norm, rate, seconds) = TABLES[name]
    rows = [
        row.format(n=n, loss=9 - n / 50, since=n * 1.25, hundredths=(25, 23, 27)[n % 3], minute=n) for n in range(1, 41)
    ]
    path = tmp_path / "metrics.csv"
    path.write_text("\n".join([first, *rows]) + "\n", newline=end)
    steps = read_log(path).steps
    assert [step.step for step in steps] == list(range(1, 41))
    assert (steps[5].loss, steps[5].grad_norm, steps[5].tokens_per_s) == (pytest.approx(8.88), norm, rate)
    assert usual(steps).step_time_s == (pytest.approx(seconds) if seconds else None)
    assert diagnose([path])["kind"] == "log"


def test_a_line_of_a_log_with_commas_is_no_table(tmp_path: Path) -> None:
    lines = (f"'loss': {9 - n / 50}, 'grad_norm': 0.5, 'step': {n}}}\n" for n in range(1, 20))
    (tmp_path / "run.log").write_text("".join(lines))
    assert len(read_log(tmp_path / "run.log").steps) == 19


@pytest.mark.parametrize(
    "text",
    ["", "a,b\n1,2\n", "step,name\n1,x\n", "1,2,3\n", "step,loss", "step,loss\n\0\0,\n1,", 'step,loss\n"1,2\n3,4'],
)
def test_other_tables_and_damaged_ones_have_no_steps(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert len(read_log(tmp_path / "a.csv").steps) == 0
