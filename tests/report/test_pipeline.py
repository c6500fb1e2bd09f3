"""The picture of a pipeline's step: its boxes are the trace's, its bubble is what the times say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from report.page_checks import Seen, read_page
from report.pipeline_traces import make_trace, write_trace
from report.run_folders import make_run
from scalewright.report.run import write_report
from scalewright.report.sections import pipeline
from scalewright.spec.schedule import COMPUTE, bubble_fraction

CASES = [
    ("gpipe", 3, 1, 5),
    ("1f1b", 4, 1, 8),
    ("interleaved", 2, 2, 4),
    ("zb-h1", 4, 1, 8),
    ("zbv", 4, 2, 8),
    ("dualpipev", 2, 2, 6),
]


def _page(folder: Path, trace: dict[str, Any]) -> Seen:
    run = make_run(folder)
    write_trace(run, trace)
    return read_page(write_report(run))


@pytest.mark.parametrize(("kind", "ranks", "virtual", "micros"), CASES)
def test_every_computation_is_a_box_at_its_time(
    tmp_path: Path, kind: str, ranks: int, virtual: int, micros: int
) -> None:
    trace = make_trace(kind, ranks, virtual, micros, noise=0.2)
    page = _page(tmp_path / "run", trace)
    done = [a for actions in trace["actions"] for a in actions if a["kind"] in COMPUTE]
    boxes = [b for b in page.having("rect") if b["class"].split()[0] in COMPUTE]
    assert len(boxes) == 2 * len(done)  # measured, and ideal
    whole = max(a["end_s"] for a in done) - 0.5
    for box, action in zip(boxes, done, strict=False):
        assert box["class"].split()[0] == action["kind"]
        assert float(box["x"][:-1]) == pytest.approx(100 * (action["start_s"] - 0.5) / whole, abs=2e-3)
    assert {float(b["y"]) for b in boxes} == {float(rank * 32) for rank in range(ranks)}
    shades = {b["class"].split()[1] for b in boxes}
    assert shades == {f"shade{index}" for index in range(virtual)}  # chunks are told apart
    assert len(page.having("svg", role="img")) == 7 + 2  # the charts', and the two pictures


@pytest.mark.parametrize(("kind", "ranks", "virtual", "micros"), CASES)
def test_without_noise_all_three_bubbles_agree(
    tmp_path: Path, kind: str, ranks: int, virtual: int, micros: int
) -> None:
    trace = _read(tmp_path, make_trace(kind, ranks, virtual, micros))
    expected = bubble_fraction(kind, ranks, virtual, micros)
    assert pipeline.bubble(trace.ranks) == pytest.approx(expected, abs=1e-9)
    assert pipeline.formula(trace) == pytest.approx(expected, abs=1e-9)
    assert pipeline.bubble(pipeline.idealised(trace)) == pytest.approx(expected, abs=1e-9)


def _read(folder: Path, trace: dict[str, Any]) -> pipeline.PipelineStep:
    write_trace(folder, trace)
    found = pipeline.read(folder / "traces" / f"pipeline-step-{trace['step']:08d}.json")
    assert found is not None
    return found


def test_the_words_around_it(tmp_path: Path) -> None:
    write_trace(tmp_path / "run", make_trace("1f1b", 2, 1, 2, step=3))
    page = _page(tmp_path / "run", make_trace("interleaved", 4, 2, 8, step=5))
    for said in (
        "interleaved 4 ranks 8 stages 8 micro-batches step 5 1 other recorded step in traces/",
        "Bubble, measured 15.8%", "Bubble, formula 15.8%", "a: stages 0–3", "b: stages 4–7", "rank 3",
        "backward, micro-batch 7, stage 0: 20 ms at",
    ):  # fmt: skip
        assert said in page.body, said
    (measured, ideal) = [f["aria-label"] for f in page.having("svg") if "ranks" in f["aria-label"]]
    assert measured.startswith("Measured: interleaved on 4 ranks, 8 micro-batches; ")
    assert ideal.startswith("Ideal")


def test_numbers_stand_only_where_they_fit(tmp_path: Path) -> None:
    few, many = (_read(tmp_path, make_trace("1f1b", 2, 1, micros)) for micros in (2, 200))
    for trace, expected in ((few, True), (many, False)):
        drawing = pipeline.picture(trace, trace.ranks, pipeline.length(trace.ranks), "Measured", "")
        assert all(bool(box["label"]) == expected for box in drawing["boxes"])


@pytest.mark.parametrize("broken", ["{", "[]", '{"schedule": "1f1b"}', '{"schedule": "unheard-of", "ranks": 2}'])
def test_a_broken_trace_is_a_note(tmp_path: Path, broken: str) -> None:
    run = make_run(tmp_path / "run")
    (run / "traces").mkdir()
    (run / "traces" / "pipeline-step-00000005.json").write_text(broken)
    assert "pipeline-step-00000005.json can't be read" in read_page(write_report(run)).body


def test_a_trace_of_half_a_step_is_a_note(tmp_path: Path) -> None:
    trace = make_trace("1f1b", 2, 1, 4)
    trace["actions"][1] = [a for a in trace["actions"][1] if (a["kind"], a["micro"]) != ("backward", 3)]
    page = _page(tmp_path / "run", trace)
    assert re.search(r"isn't a whole step", page.body)


def test_a_run_without_a_pipeline_has_no_such_section(tmp_path: Path) -> None:
    page = read_page(write_report(make_run(tmp_path / "run")))
    assert "Pipeline" not in page.body
