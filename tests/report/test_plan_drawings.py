"""What the scripts of a plan's page draw: the timeline is the clock's, the map's groups are the grid's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from report.browser import in_browser, needs_browser
from report.plan_documents import make_estimate, make_plan, write_plan
from scalewright.report.document import read_document
from scalewright.report.sections import plan_pipeline, plan_ranks
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.schedule import COMPUTE, StageCost, schedule, simulate

SCHEDULES = [
    ("gpipe", 4, 1), ("1f1b", 4, 1), ("interleaved", 4, 2), ("zb-h1", 4, 1), ("zbv", 4, 2),
    ("dualpipev", 4, 2), ("dualpipe", 4, 2),
]  # fmt: skip
LAYOUTS = [
    {"devices": 64, "tp": 4, "pp": 4},
    {"devices": 64, "tp": 2, "cp": 2, "pp": 2, "dp_replicate": 2},
    {"devices": 32, "pp": 2, "ep": 4, "etp": 2, "tp": 2},
    {"devices": 12, "tp": 3},
]


def _stages(ranks: int, chunks: int) -> list[dict[str, Any]]:
    seconds = {"forward": 0.02, "backward": 0.05, "backward_input": 0.03, "backward_weight": 0.02, "send": 0.001}
    return [{"stage": s, "layers": 2, "seconds": seconds} for s in range(ranks * chunks)]


def _drawn(**changes: Any) -> Any:
    return plan_pipeline.section(read_document(make_estimate(**changes)))


@pytest.mark.parametrize(("kind", "ranks", "chunks"), SCHEDULES)
def test_every_computation_is_a_box_at_its_time(kind: str, ranks: int, chunks: int) -> None:
    number = ranks if kind == "dualpipe" else ranks * chunks
    found = _drawn(schedule=kind, pp=ranks, virtual_stages=chunks, stages=_stages(number, 1))
    (drawing,) = found.drawings
    plan = schedule(kind, ranks, chunks, 8)
    timing = simulate(plan, StageCost(0.02, 0.03, 0.02), 0.001)
    assert drawing["seconds"] == pytest.approx(timing.makespan)
    for rank in range(ranks):
        spans = [
            (action, span)
            for action, span in zip(plan.actions[rank], timing.spans[rank], strict=True)
            if action.kind in COMPUTE
        ]
        numbers, before = drawing["ranks"][rank], 0
        assert len(numbers) == 5 * len(spans)
        for index, (action, (start, end)) in enumerate(spans):
            what, chunk, micro, wait, length = numbers[5 * index : 5 * index + 5]
            assert (plan_pipeline.KINDS[what], micro) == (action.kind, action.micro)
            assert drawing["stages"][rank][chunk] == action.stage
            tick = timing.makespan / drawing["ticks"]  # times are whole ticks
            assert (before + wait) * tick == pytest.approx(start, abs=2 * tick)
            assert (before + wait + length) * tick == pytest.approx(end, abs=2 * tick)
            before += wait + length


def test_a_long_step_is_cut_to_its_beginning_and_its_end() -> None:
    found = _drawn(pp=16, virtual_stages=1, schedule="1f1b", global_batch=2 * 4 * 1400, stages=_stages(16, 1))
    (drawing,) = found.drawings
    boxes = sum(len(numbers) // 5 for numbers in drawing["ranks"])
    assert boxes == pytest.approx(plan_pipeline.MOST_BOXES, abs=4 * 16)  # some lie across the gap's edges
    low, high = drawing["gap"]
    assert 0 < low < high < 1
    assert any("Its beginning and its end are drawn" in note for note in found.data["notes"])
    assert len(json.dumps(drawing)) < 1_500_000


def test_what_is_longer_still_is_drawn_with_fewer_micro_batches() -> None:
    document = make_estimate(pp=16, virtual_stages=1, schedule="1f1b", global_batch=8 * 10**6, stages=_stages(16, 1))
    found = plan_pipeline.section(read_document(document), most=4_000)
    assert found is not None
    assert any("of 1,000,000 micro-batches" in note for note in found.data["notes"])
    assert [number["name"] for number in found.data["numbers"]] == ["Schedule", "Micro-batches"]  # no claim


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stages": []}, "doesn't say how long"),
        ({"global_batch": 65}, "aren't whole"),
        ({"schedule": "unheard-of"}, "unknown schedule"),
        ({"stages": _stages(3, 1)}, "aren't those of its schedule"),
        ({"pp": 513}, "1,026 stages"),
        ({"stages": [{**stage, "seconds": {"forward": 0, "backward": 0}} for stage in _stages(4, 2)]}, "no time"),
    ],
)
def test_what_cannot_be_drawn_is_a_sentence(changes: dict[str, Any], said: str) -> None:
    assert said in _drawn(**changes).data["missing"]


@pytest.mark.parametrize("keys", LAYOUTS)
def test_digits_give_the_groups_of_the_grid(keys: dict[str, int]) -> None:
    layout = Layout.parse(keys)
    grid = make_grid(layout)
    for axis in plan_ranks.axes_of(layout):
        parts = plan_ranks.digits(grid, axis.key)
        for group in grid.groups(axis.key):
            for index, rank in enumerate(group):
                at = 0
                for size, stride in parts:
                    at = at * size + rank // stride % size
                assert at == index == grid.coords(rank)[axis.key]


def test_links_are_those_between_the_ends_of_a_group() -> None:
    document = read_document(make_estimate(devices=64, tp=4, pp=4, dp=4, virtual_stages=1, schedule="1f1b"))
    found = plan_ranks.section(document)
    assert found is not None
    links = {axis["name"]: axis["link"] for axis in found.data["axes"]}
    assert links == {"tp": "NVLink", "dp": "InfiniBand", "pp": "InfiniBand"}
    uneven = read_document(make_estimate(devices=48, tp=6, pp=1, dp=8, virtual_stages=1, schedule="1f1b"))
    found = plan_ranks.section(uneven)
    assert found is not None
    assert found.data["axes"][0]["link"] == "NVLink, InfiniBand"  # ranks 6 to 11 lie on two nodes


def test_of_many_ranks_the_first_nodes_of_each_pipeline_rank_are_shown() -> None:
    keys = {"devices": 16384, "tp": 8, "pp": 16, "dp": 128, "virtual_stages": 1, "schedule": "1f1b"}
    found = plan_ranks.section(read_document(make_estimate(**keys)))
    assert found is not None
    (drawing,) = found.drawings
    assert drawing["shown"] == [[1024 * stage, 1024 * stage + 256] for stage in range(16)]
    assert any("first 256 devices are drawn" in note for note in found.data["notes"])


@needs_browser
def test_the_map_tells_a_ranks_groups(tmp_path: Path) -> None:
    """By the keyboard to rank 13, of which the table then says what the grid says."""
    keys = {"tp": 2, "cp": 2, "pp": 4, "dp": 4, "virtual_stages": 1, "schedule": "1f1b"}
    page = write_plan(make_estimate(**keys, stages=[]), tmp_path / "plan.html")
    said = in_browser(
        page,
        """
        const map = document.querySelector(".map");
        const press = (key) => map.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        press("ArrowRight"); press("ArrowDown");
        for (let i = 0; i < 5; i++) press("ArrowRight");
        document.querySelectorAll(".axes button")[1].click();
        const rows = [...document.querySelectorAll("[data-axis]")];
        const text = (row, name) => row.querySelector(name).textContent;
        return {
          place: document.querySelector(".place").textContent.trim(),
          rows: rows.map((row) => ["button", ".index", ".group", ".link"].map((name) => text(row, name))),
          pressed: rows.map((row) => row.querySelector("button").getAttribute("aria-pressed")),
        };
        """,
    )
    assert said["place"] == "Rank 13 node 1, device 5 of it"
    assert said["rows"] == [
        ["tp", "2 of 2", "12, 13", "NVLink"],
        ["cp", "1 of 2", "13, 15", "NVLink"],
        ["dp × cp 2", "7 of 8", "1, 3, 5, … 15", "NVLink, InfiniBand"],
        ["pp", "1 of 4", "29 next to it in 13, 29, 45, 61", "InfiniBand"],
    ]
    assert said["pressed"] == ["false", "true", "false", "false"]


@needs_browser
def test_the_timeline_zooms_and_tells(tmp_path: Path) -> None:
    page = write_plan(make_plan(), tmp_path / "plan.html")
    said = in_browser(
        page,
        """
        const place = document.querySelector("[data-drawing=pipeline]");
        const tip = place.querySelector(".tip");
        const box = place.getBoundingClientRect();
        const at = (share, row) => {
          const [clientX, clientY] = [box.left + 60 + share * (box.width - 61), box.top + row * 31 + 10];
          place.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
          return tip.hidden ? "" : tip.textContent;
        };
        const press = (key) => place.dispatchEvent(new KeyboardEvent("keydown", { key }));
        const found = [at(0.001, 0), at(0.001, 3)];
        press("+"); press("Home");
        found.push(at(0.99, 0));
        press("0");
        found.push(at(0.999, 0));
        const canvas = place.querySelector("canvas");
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const colours = new Set();
        for (let i = 0; i < pixels.length; i += 4) colours.add(pixels.slice(i, i + 4).join(" "));
        return { found, colours: [...colours] };
        """,
    )
    start, wait, zoomed, end = said["found"]
    assert start == "forward, micro-batch 0rank 0, stage 0: 30 ms from 0 µs"
    assert wait == "idlerank 3: 90 ms from 0 µs"
    timing = simulate(schedule("interleaved", 4, 2, 8), StageCost(0.03, 0.03, 0.03))
    assert zoomed != end
    assert end.startswith("backward, micro-batch 7rank 0, stage 0: 60 ms from")
    assert timing.spans[0][-1][1] == pytest.approx(timing.makespan)
    for colour in ("86 180 233 255", "213 94 0 255", "236 235 230 255"):  # forward, backward, waits
        assert colour.replace(" ", ",") in [c.replace(" ", ",") for c in said["colours"]]


@needs_browser
def test_the_scatter_names_its_dots(tmp_path: Path) -> None:
    page = write_plan(make_plan(), tmp_path / "plan.html")
    said = in_browser(
        page,
        """
        const area = document.querySelector("[data-scatter]");
        const press = (key) => area.dispatchEvent(new KeyboardEvent("keydown", { key }));
        press("ArrowRight"); press("ArrowRight"); press("ArrowRight"); press("ArrowRight");
        const last = area.querySelector(".tip").textContent;
        press("Escape");
        return [last, area.querySelector(".tip").hidden, area.querySelectorAll(".dot").length];
        """,
    )
    name, hidden, dots = said
    assert name.startswith("tp 2 · pp 4 x 2 interleaved · cp 2 ring · dp 4 · zero 1 · micro-batch 2 x 8 · ")
    assert name.endswith("8.24 s a step, 25.9 GiB")
    assert hidden
    assert dots == 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"devices": 10**9}, "1,000,000,000 devices are too many"),
        ({"devices": 63}, "devices 63 is not divisible"),
        ({"virtual_stages": 10**9}, ""),
    ],
)
def test_sizes_that_no_map_can_have_are_a_sentence(changes: dict[str, int], said: str) -> None:
    document = make_estimate(stages=[])
    document["layout"] |= changes
    found = plan_ranks.section(read_document(document))
    assert found is not None
    assert said in found.data["missing"]
