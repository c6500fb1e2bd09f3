"""The page of a diagnosis: every kind of answer has one, it stays small, and names from a file do nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.diagnose.job import EXAMPLE, write
from tests.diagnose.memory.job import Job as MemoryJob
from tests.report.browser import in_browser, needs_browser

from scalewright.diagnose.diagnose import diagnose, drawn
from scalewright.diagnose.timeline import Lane, RankLanes, Timeline
from scalewright.report.diagnosis import page, write_diagnosis
from scalewright.report.page import render
from scalewright.report.sections.diagnosis_ranks import BOXES, SLICES, TICKS, encoded, slices
from scalewright.spec.errors import UserError

EVIL = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Timeline]:
    folder = tmp_path_factory.mktemp("traces")
    write(EXAMPLE, folder)
    answer, drawing = drawn([folder], changes=["compute=0.5"])
    assert drawing.lanes is not None
    return answer, drawing.lanes()


def test_a_trace_has_causes_lanes_and_a_map_of_its_ranks(traced: tuple[dict[str, Any], Timeline]) -> None:
    text = render(page(*traced))
    sections = re.findall(r'<section id="([a-z]+)"', text)
    assert sections == ["answer", "causes", "change", "timeline", "ranks", "tables"]
    assert "look at rank 2" in text
    assert "compute=0.5" in text
    assert re.search(r'<td class="more"[^>]*title="\+21', text)  # rank 2 computes more than the median
    assert not re.search(r"https?://", text)


def test_names_from_a_file_are_text(traced: tuple[dict[str, Any], Timeline]) -> None:
    answer = json.loads(json.dumps(traced[0]).replace("ampere_bf16_s16816gemm", "EVIL"))
    answer = json.loads(json.dumps(answer).replace("EVIL", json.dumps(EVIL)[1:-1]))
    lanes = Timeline(traced[1].window, [RankLanes(EVIL, r.device, r.communication, []) for r in traced[1].ranks])
    text = render(page(answer, lanes))
    assert "<script>alert" not in text
    assert "<img" not in text


@needs_browser
def test_a_browser_draws_the_lanes_and_zooms(traced: tuple[dict[str, Any], Timeline], tmp_path: Path) -> None:
    written = write_diagnosis(traced[0], tmp_path / "page.html", traced[1])
    drawn_pixels = """
        const canvas = document.querySelector("[data-drawing] canvas");
        const seen = () => canvas.getContext("2d").getImageData(0, 0, 300, canvas.height).data.join();
        const before = seen();
        document.querySelector("[data-zoom=in]").click();
        return [canvas.height > 100, new Set(before.split(",")).size > 8, document.body.scrollWidth];
    """
    for width in (1280, 420):
        tall, coloured, wide = in_browser(written, drawn_pixels, width)
        assert tall
        assert coloured
        assert wide <= max(width, 500)  # a headless window is 500 pixels wide at least


@needs_browser
def test_a_table_that_is_too_wide_says_so_at_its_edge(traced: tuple[dict[str, Any], Timeline], tmp_path: Path) -> None:
    """On a phone it scrolls inside its box; the edge that hides a part of it fades."""
    written = write_diagnosis(traced[0], tmp_path / "page.html")
    edges = """
        const boxes = [...document.querySelectorAll(".scrolls")];
        const wide = boxes.filter((box) => box.scrollWidth > box.clientWidth + 1);
        const first = wide.map((box) => box.className);
        wide.forEach((box) => { box.scrollLeft = box.scrollWidth; box.dispatchEvent(new Event("scroll")); });
        return [boxes.length, first, wide.map((box) => box.className), document.body.scrollWidth];
    """
    count, first, after, wide = in_browser(written, edges, 420)
    assert first
    assert all("cut-right" in name and "cut-left" not in name for name in first)
    assert all("cut-left" in name and "cut-right" not in name for name in after)
    assert wide <= 500
    assert in_browser(written, edges, 1280)[:2] == [count, []]


def test_long_lanes_are_drawn_in_slices_that_keep_what_takes_most() -> None:
    edges = np.arange(300_001) * 10
    part = np.tile([0, 1, 0], 100_000)
    part[150_000:] = 5
    lane = Lane(part, edges[:-1], edges[1:])
    thin = slices(lane, int(edges[-1]))
    assert thin.part.tolist() == [0, 5]
    assert thin.end.tolist() == [1_500_000, 3_000_000]
    assert len(encoded(lane, int(edges[-1]))) <= 5 * SLICES
    short = Lane(part[:BOXES], edges[:BOXES], edges[1 : BOXES + 1])
    numbers = np.array(encoded(short, int(edges[BOXES]))).reshape(-1, 5)
    assert numbers[:, 3:].sum() == TICKS
    assert numbers[:, 0].tolist() == part[:BOXES].tolist()


def test_a_snapshot_has_its_curve_and_what_would_save(tmp_path: Path) -> None:
    path = MemoryJob().run().write(tmp_path / "snapshot.pickle")
    text = render(page(diagnose([path])))
    assert re.findall(r'<section id="([a-z]+)"', text) == ["answer", "causes", "memory", "tables"]
    assert 'data-chart="memory"' in text


def test_a_log_has_its_steps(tmp_path: Path) -> None:
    text = render(page(diagnose([Path("example-log")])))
    assert 'data-chart="step_time_s"' in text
    assert 'data-chart="loss"' in text
    assert "periodic slow steps" in text


def test_another_file_is_not_replaced(traced: tuple[dict[str, Any], Timeline], tmp_path: Path) -> None:
    (tmp_path / "notes.html").write_text("<p>mine</p>")
    with pytest.raises(UserError, match="is no report"):
        write_diagnosis(traced[0], tmp_path / "notes.html")
    written = write_diagnosis(traced[0], tmp_path / "page.html")
    assert write_diagnosis(traced[0], written, traced[1]) == written
    assert written.stat().st_size < 200_000


def test_a_column_of_a_log_that_is_empty_takes_no_room(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("".join(f"step: {n}  loss: {3 + 1 / n:.4f}  grad_norm: 0.5  tps: 7,000\n" for n in range(1, 40)))
    text = render(page(diagnose([log])))
    heads = re.search(r"<tr>(.*?step.*?)</tr>", text, re.S)
    assert heads is not None
    names = ("step", "time", "tokens/s", "TFLOP/s", "loss", "grad norm")
    assert [name for name in names if f">{name}<" in heads[1]] == ["step", "tokens/s", "loss", "grad norm"]
