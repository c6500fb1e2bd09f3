"""The report of every kind of run folder: valid, self-contained, and true to the files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from report.browser import in_browser, needs_browser
from report.page_checks import read_page
from report.run_folders import make_run, train_row, write_lines
from scalewright.report.run import write_report
from scalewright.spec.errors import UserError

SUMMARY = {"seconds": 312.0, "predicted_step_time_s": 0.188, "measured_step_time_s": 0.2213}
SECTIONS = [
    "health", "overview", "curves", "wall-time", "comparison", "sample", "timeline", "configuration", "environment",
]  # fmt: skip


def test_a_whole_run_shows_everything(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", bad=[30, 31], resumed_at=40, summary=SUMMARY)
    (folder / "sample.txt").write_text("To be, or not to be")
    path = write_report(folder)
    assert path == folder / "report.html"
    page = read_page(path)
    assert [found["id"] for found in page.having("section")] == SECTIONS
    charts = ["loss", "tokens_per_s", "step_time_s", "mfu", "grad_norm", "lr", "memory_gib"]
    assert list(page.charts) == charts
    assert [found["data-chart"] for found in page.having("figure")] == charts
    for said in (
        "shakespeare finished", "tiny-llama 3.5M parameters 2 × H100 bf16 60 of 60 steps",
        "2.610 bits per byte at step 60", "31.0% median, of 989 TFLOP/s a device (H100, bf16, vendor)",
        "246k in 1:01", "Step time measured +17% against predicted", "188 ms", "220 ms",
        "To be, or not to be",
        "6 saves", "1 resume", "1 fault", "2 bad values", "killed", "2 × NVIDIA H200, 140.4 GiB",
        "0123456789ab on main, with changes that are not committed", "avx2 amx_bf16", "OMP_NUM_THREADS",
        "data/shakespeare/train",
    ):  # fmt: skip
        assert said in page.body, said
    assert "aux" not in page.body.lower()  # a column of zeros is not shown
    for figure in page.having("svg"):
        assert figure["role"] == "img"
        assert "over steps 1 to 60" in figure["aria-label"]


def test_the_time_between_lives_and_a_call_that_did_nothing_do_not_count(tmp_path: Path) -> None:
    """60 steps of a second, with an hour of waiting after a kill; then two starts with nothing to do."""
    folder = make_run(tmp_path / "run", resumed_at=40)
    rows = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    later = next(index for index, row in enumerate(rows) if row["kind"] == "resume")
    for row in rows[later:]:
        row["time"] += 3600
    end = rows[-1]["time"]
    for start in (end + 1e4, end + 2e4):
        rows += [{"time": start, "kind": "resume", "step": 60}, {"time": start + 5, "kind": "predicted"}]
        rows += [{"time": start + 9, "kind": "finish", "step": 60, "seconds": 12.0}]
    write_lines(folder / "events.jsonl", rows)
    page = read_page(write_report(folder))
    assert "246k in 1:01" in page.body
    assert re.search(r"\b1 resume\b", page.body)
    marks = [found for found in page.having("i", class_="resume") if "data-step" in found]
    assert {float(mark["data-step"]) for mark in marks} == {40.0}


def test_gaps_resumes_and_validations_are_in_the_loss_chart(tmp_path: Path) -> None:
    page = read_page(write_report(make_run(tmp_path / "run", bad=[30, 31], resumed_at=40)))
    raw, smoothed, valid = page.charts["loss"]["series"]
    assert [raw["label"], smoothed["label"], valid["label"]] == ["training", "smoothed", "validation"]
    assert [step for step, value in zip(raw["x"], raw["y"], strict=True) if value is None] == [30, 31]
    assert valid["x"] == [10, 20, 30, 40, 50, 60]
    assert raw["y"][0] == pytest.approx(train_row(1)["loss"], rel=1e-6)  # seven digits are kept
    line = next(found["d"] for found in page.having("path", class_="raw"))
    assert line.count("M") == 2  # the pen is lifted over the gap
    marks = [(found["class"], float(found["data-step"])) for found in page.having("i") if "data-step" in found]
    assert {("resume", 40.0), ("fault", 40.0), ("nonfinite", 30.0), ("nonfinite", 31.0)} <= set(marks)


def test_the_environment_is_folded(tmp_path: Path) -> None:
    """All that the section holds is one closed line until it is opened."""
    text = write_report(make_run(tmp_path / "run")).read_text(encoding="utf-8")
    section = text.split('<section id="environment"')[1].split("</section>")[0]
    before, folded = section.split("<details", 1)
    assert "Machine" not in before
    assert "Machine" in folded.split("</details>")[0]
    assert "open" not in folded.partition(">")[0]
    assert not folded.split("</details>")[1].replace("</div>", "").strip()


def test_outer_gradients_of_some_steps_are_one_line(tmp_path: Path) -> None:
    """Rows between two outer steps have none, and leave no gaps."""
    folder = make_run(tmp_path / "run", steps=20)
    rows = [train_row(step, **({"outer_grad_norm": 1.0} if step % 5 == 0 else {})) for step in range(1, 21)]
    write_lines(folder / "metrics.jsonl", rows)
    page = read_page(write_report(folder))
    (series,) = page.charts["outer_grad_norm"]["series"]
    assert [point for point in series["x"] if point is not None] == [5, 10, 15, 20]


def test_one_step_is_a_dot(tmp_path: Path) -> None:
    page = read_page(write_report(make_run(tmp_path / "run", steps=1)))
    assert page.charts["loss"]["series"][0]["y"] == [pytest.approx(train_row(1)["loss"], rel=1e-6)]
    assert page.having("path", class_="dots line")[0]["d"] == "M500 500h0"
    assert "1 of 1 step " in page.body


def test_a_run_that_has_not_written_a_step(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "metrics.jsonl").unlink()
    write_lines(folder / "events.jsonl", [{"time": 1.0, "kind": "start", "step": 0}])
    page = read_page(write_report(folder))
    assert [found["id"] for found in page.having("section")] == ["timeline", "configuration", "environment"]
    assert "metrics.jsonl has no rows yet" in page.body
    assert "running, or killed" in page.body


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_predicted_memory_and_bytes(tmp_path: Path, device: str) -> None:
    folder = make_run(tmp_path / "run")
    text = (folder / "run.yaml").read_text()
    (folder / "run.yaml").write_text(f"{text}device: {device}\n")
    event = {"time": 2.0, "kind": "predicted", "step": 0, "p50": 0.2,
             "memory_gib": {"peak": 3.0, "parameters": 1.0, "activations": 2.0, "other": float("nan")},
             "comm_bytes": {"dp": 5e9, "tp": 0.0, "pp": "much"}}  # fmt: skip
    write_lines(folder / "events.jsonl", [{"time": 1.0, "kind": "start", "step": 0}, event])
    body = read_page(write_report(folder)).body
    for row in ("peak – 3.00 GiB", "parameters – 1.00 GiB", "activations – 2.00 GiB", "sent by dp – 5 GB"):
        assert row in body, row
    assert "sent by tp" not in body
    assert "sent by pp" not in body
    assert ("Peak memory" in body) == (device == "cuda")


def test_an_event_with_a_message_is_that_message(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    events = [
        {"time": 1.0, "kind": "start", "step": 0, "peak_how": "best of 7"},
        {"time": 2.0, "kind": "predicted", "step": 0, "p10": None, "p50": 0.2484694228, "message": "a step: 248 ms"},
        {"time": 3.0, "kind": "stalled", "step": 3, "seconds": 15.4, "usual_s": 3.0534567},
    ]
    write_lines(folder / "events.jsonl", events)
    body = read_page(write_report(folder)).body
    for words in ("a step: 248 ms", "peak: best of 7", "usual s: 3.053"):
        assert words in body
    for raw in ("None", "0.2484"):
        assert raw not in body


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        (["start", "save", "finish"], "finished"),
        (["start", "save", "stop"], "stopped, and saved"),
        (["start", "fault", "tracker"], "failed"),
        (["start", "stop", "fault", "resume"], "running, or killed"),
        (["start", "fault", "resume", "finish", "save"], "finished"),
        (["save"], "not started"),
    ],
)
def test_the_newest_life_decides_how_it_ended(tmp_path: Path, kinds: list[str], status: str) -> None:
    write_lines(tmp_path / "events.jsonl", [{"time": float(n), "kind": kind} for n, kind in enumerate(kinds)])
    assert f" {status} " in read_page(write_report(tmp_path)).body


def test_only_validations_or_only_nulls(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [{"kind": "valid", "step": 5, "loss": 2.0, "bits_per_byte": None}])
    page = read_page(write_report(tmp_path))
    assert list(page.charts) == ["loss"]
    nothing = {**train_row(1), "loss": None, "grad_norm": None, "mfu": None}
    write_lines(tmp_path / "metrics.jsonl", [{**nothing, "step": step} for step in range(1, 40)])
    page = read_page(write_report(tmp_path))
    assert "loss" not in page.charts
    assert "mfu" not in page.charts
    assert "Training loss" not in page.body


def test_a_long_run_is_a_small_page_that_keeps_its_spike(tmp_path: Path) -> None:
    rows = [
        train_row(step, loss=2.0 + 1000 / (step + 500)) for step in range(1, 20_001)
    ]  # a longer one is thinned to the same points
    rows[11_803]["loss"] = 77.25
    write_lines(tmp_path / "metrics.jsonl", rows)
    path = write_report(tmp_path)
    assert path.stat().st_size < 500_000
    page = read_page(path)
    raw = page.charts["loss"]["series"][0]
    assert len(raw["x"]) <= 1002
    assert (raw["x"][raw["y"].index(77.25)], max(raw["y"])) == (11_804, 77.25)
    assert page.charts["loss"]["y"][1] < 10  # and the frame is not made for the spike
    assert "1 point outside the frame" in page.body


def test_broken_files_are_notes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "run.yaml").write_text("a: [b\n")
    (folder / "summary.json").write_text("[1")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "st')
    page = read_page(write_report(folder))
    assert "cannot read YAML" in page.body
    assert "summary.json" in page.body
    assert page.charts["loss"]["x"] == [1, 60]


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        write_report(tmp_path / "absent")
    with pytest.raises(UserError, match=r"holds run\.yaml, metrics\.jsonl"):
        write_report(tmp_path)


def test_text_from_a_run_cannot_become_markup(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x>"
    folder = make_run(tmp_path / "run", name=json.dumps(evil), summary={"sample": evil})
    write_lines(folder / "events.jsonl", [{"time": 1.0, "kind": "fault", "error": evil, "rank": 0}])
    page = read_page(write_report(folder))
    assert page.text.count("alert(1)") == page.text.count("&lt;script&gt;alert(1)")
    assert len(page.having("script")) == 2


def test_it_can_be_written_elsewhere_and_again(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    out = tmp_path / "page.html"
    assert write_report(str(folder), str(out)) == out
    first = out.read_bytes()
    write_report(folder, out)
    assert out.read_bytes() == first  # the same files give the same page
    assert [entry.name for entry in tmp_path.iterdir() if entry.suffix == ".tmp"] == []


def test_it_needs_no_torch(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    code = (
        f"import sys; from scalewright.report.run import write_report; write_report({str(folder)!r});"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@needs_browser
def test_the_browser_finds_no_fault(tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path / "run"))
    said = in_browser(
        page,
        """
        const area = document.querySelector(".area");
        area.dispatchEvent(new KeyboardEvent("keydown", { key: "Home" }));
        const first = document.querySelector(".cursor span").textContent;
        const line = document.querySelector("path.line").getAttribute("d");
        document.querySelector("[data-axis=tokens]").click();
        const ticks = [...document.querySelectorAll("[data-chart=loss] .x span")].map((x) => x.textContent);
        document.querySelector("[data-log]").click();
        const moved = document.querySelector("path.line").getAttribute("d") !== line;
        document.getElementById("theme").click();
        let kept = "not allowed"; // a page from a file may have no storage
        try { kept = localStorage.getItem("scalewright-theme"); } catch {}
        return [first, ticks, moved, document.documentElement.dataset.theme, kept];
        """,
    )
    first, ticks, moved, theme, kept = said
    assert first == "step 1"
    assert ticks == ["50k", "100k", "150k", "200k"]  # 60 steps of 4,096 tokens
    assert moved
    assert theme == "dark"
    assert kept in ("dark", "not allowed")


def test_step_times_are_named_and_agree(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", summary={"predicted_step_time_s": 0.2, "measured_step_time_s": 0.9})
    (folder / "run.yaml").write_text((folder / "run.yaml").read_text() + "profile: {steps: [8, 9]}\n")
    slow = {8: 0.7, 9: 0.7, 10: 2.13}
    write_lines(folder / "metrics.jsonl", [train_row(n, step_time_s=slow.get(n, 0.22)) for n in range(1, 31)])
    body = read_page(write_report(folder)).body
    assert "Step time, median 220 ms p10–p90 220 ms – 220 ms, without 3 that a profiler slowed" in body
    assert "900 ms" not in body
