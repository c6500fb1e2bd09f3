"""Pipelines, kernels of ncu and memory on the terminal: short, and no raw control characters."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.memory.job import Job as MemoryJob
from tests.diagnose.memory.test_timeline import STEP, write
from tests.diagnose.memory.test_traced import answer as traced
from tests.diagnose.memory.test_traced import step
from tests.diagnose.ncu.test_ncu import details
from tests.diagnose.operations.job import Job as Pipeline
from tests.diagnose.operations.job import write as write_pipeline

from scalewright.cli.terminal import show
from scalewright.diagnose.diagnose import diagnose
from scalewright.report.present import show_answer
from scalewright.report.present.diagnosis import words_for


@pytest.mark.parametrize("columns", ["80", "120"])
def test_kernels_fit_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    path = tmp_path / "kernels.csv"
    path.write_text(details().replace("small_reduce", "small\x1b[31m_reduce"))
    show(show_answer(diagnose([path])), everything=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("4 launches of 4 kernels")
    assert "1. latency-bound kernel: saves 6% (0 to 11%)" in lines
    assert max(map(len, lines)) <= int(columns)
    assert "\x1b" not in "".join(lines)


def test_a_pipeline_is_shown_as_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pipeline(Pipeline(slow={(1, 1): 1.8}), tmp_path / "job.parquet")
    show(show_answer(diagnose([tmp_path / "job.parquet"])), everything=True)
    text = capsys.readouterr().out
    assert "of 8 ranks; bound by straggler" in text
    assert "rank 101 (stage 1 of replica 1) takes for a forward 0.18 s (the others 0.1)" in text


def test_memory_of_a_trace_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # workers of xdist have one
    events = step()
    events[0]["name"] = "aten::\x07linear"
    traced(tmp_path, events)
    show(show_answer(diagnose([tmp_path / "trace.json"])), everything=True)
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("memory  ")]
    assert line.startswith("memory    peak 0.69 GiB: 0.50 (before the recording), 0.12 autograd::engine")
    assert "\x07" not in line


def test_snapshots_and_timelines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(show_answer(diagnose([MemoryJob().run().write(tmp_path / "snapshot.pickle")])), everything=True)
    text = capsys.readouterr().out
    assert "reserved" in text.splitlines()[0]
    assert "compute the loss in 8 chunks of the sequence" in " ".join(text.split())
    show(show_answer(diagnose([write(tmp_path, STEP)])), everything=True)
    assert capsys.readouterr().out.startswith(
        "peak 0.75 GiB; at the end 0.31 GiB allocated\ncause     peak (80% sure)\n"
    )


def test_a_cause_that_is_a_word_of_the_field_names_its_entry() -> None:
    (line,) = words_for([{"cause": cause} for cause in ("straggler", "ran out of paper", "bubble")])
    assert line.text == "scalewright explain straggler, scalewright explain bubble"
    assert words_for([{"cause": "ran out of paper"}]) == []
