"""The page in a browser: sliders, mistakes, comparison, link, plots; nothing comes from elsewhere."""

from __future__ import annotations

import html
import re
import threading

import pytest
from tests.report.browser import browse, in_browser, needs_browser, watched

from scalewright.explore.frozen import freeze
from scalewright.explore.page import page_text
from scalewright.explore.server import Explorer
from scalewright.explore.start import starting

START = {"devices": 8, "pp": 2, "global_batch": 64, "micro_batch": 1}


@pytest.fixture(scope="module")
def start():
    return starting("qwen2.5-0.5b", "dgx-h100", 2048, START)


def test_the_page_fetches_nothing_from_elsewhere(start):
    text = html.unescape(page_text(start, {"a"}, {"b"}))
    linked = re.findall(r"""(?:src|href|action|url\()\s*=?\s*["'(]?\s*(?:https?:)?//[^"')\s]+""", text)
    assert linked == []
    assert {*re.findall(r"https?://[^\s'\"<>)]+", text)} <= {"https://github.com/leeoniya/uPlot"}  # its own comment
    assert "connect-src 'self'" in text
    assert "connect-src 'none'" in html.unescape(page_text(start, (), (), {"picture": {}}))


def test_every_control_has_a_name(start):
    text = page_text(start, {"a"}, {"b"})
    for control in re.findall(r'<select id="(\w+)"', text):
        assert f'<label for="{control}">' in text
    assert 'role="alert"' in text
    assert 'role="status"' in text
    assert 'aria-label="Switch between light and dark"' in text


PLAY = """
const wait = async (ready) => {
  for (let i = 0; i < 400 && !ready(); i++) await new Promise((done) => setTimeout(done, 50));
};
const $ = (id) => document.getElementById(id);
const to = async (id, value) => {
  const slider = $(id), before = explore.seen.length;
  slider.value = slider.stops.indexOf(value);
  slider.dispatchEvent(new Event("input"));
  await wait(() => explore.seen.length > before || !$("mistake").hidden);
};
const step = () => $("now").querySelector("strong").textContent;
await wait(() => explore.seen.length);
const first = step(), named = $("axis-micro_batch").getAttribute("aria-valuetext");
$("beside").click();
await to("axis-micro_batch", 2);
const moved = { step: step(), kept: $("other").querySelector("strong").textContent };
Object.assign(moved, { state: explore.state, hash: location.hash });
%s
"""
MISTAKE = """
const full = () => document.querySelector("#what_if > *") && $("run_file").textContent;
await wait(() => document.querySelector("#pareto canvas") && full());
const unlabelled = [...document.querySelectorAll("input, select")].filter((each) => !each.labels.length).length;
await to("axis-cp", %d);
return { first, named, moved, unlabelled,
  mistake: $("mistake").textContent, stale: $("now").classList.contains("stale"),
  plots: document.querySelectorAll(".uplot canvas").length, lanes: document.querySelectorAll("#now canvas").length,
  run_file: $("run_file").textContent,
  told: [...document.querySelectorAll("#sliders .control")].map((row) => row.innerText.split(/\\s+/).join(" ")),
  tiles: [...document.querySelectorAll("#now .tiles dt")].map((each) => each.textContent),
  dashes: [...document.querySelectorAll(".u-value")].filter((each) => each.textContent === "--").length,
  picks: document.querySelectorAll("#best button").length, command: $("command").textContent,
  width: document.documentElement.scrollWidth, errors: errors };
"""


@needs_browser
@pytest.mark.slow
def test_a_file_without_a_server(start, tmp_path):
    path = tmp_path / "explore.html"
    frozen = freeze(start)
    path.write_text(page_text(start, (), (), frozen), encoding="utf-8")
    shown = in_browser(path, PLAY % (MISTAKE % 2), width=390)
    check(shown)
    assert "isn't in the file: start `scalewright explore qwen2.5-0.5b" in shown["mistake"]
    assert "scalewright predict" in shown["mistake"]
    assert {"Devices 8", "Sequence length 2,048", "Global batch 64", "Tokens of the run 1T"} <= {*shown["told"]}
    assert shown["width"] <= 500  # headless windows are no narrower; nothing sticks out of one


@needs_browser
def test_a_live_page(start, tmp_path):
    names = frozenset({start.model}), frozenset({start.cluster})
    text = watched(page_text(start, *names), PLAY % (MISTAKE % 8))
    with Explorer("127.0.0.1", 0, text, *names) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            shown = browse(server.url, tmp_path)
        finally:
            server.shutdown()
            thread.join(10)
    check(shown)
    assert "devices 8 is not divisible by pp 2 x cp 8 = 16: use devices 16" in shown["mistake"]


def check(shown):
    """The moved slider changed the picture, the one beside stayed, and all of the page is drawn."""
    assert shown["named"] == "1"
    assert shown["moved"]["step"] != shown["first"] == shown["moved"]["kept"]
    assert "micro_batch=2" in shown["moved"]["state"]
    assert "micro_batch%3D1" in shown["moved"]["hash"]  # the layout beside
    assert shown["unlabelled"] == 0
    assert shown["plots"] == 2
    assert shown["dashes"] == 0
    assert {"Whole run", "Cost", "Energy"} <= {*shown["tiles"]}
    assert shown["lanes"] == 1
    assert shown["picks"] > 0
    assert "micro_batch=2" in shown["command"]
    assert "micro_batch: 2" in shown["run_file"]
    assert shown["stale"]
