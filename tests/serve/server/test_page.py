"""The page in a browser: a chat, probabilities by keyboard, the engine's picture; nothing comes from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.report.browser import browse, needs_browser, watched

from scalewright.serve.server.page import page_text
from serve.server.fake import FakeEngine, serving

PLAY = """
const wait = async (ready) => {  // the browser's own clock stands still while it fetches, and then jumps
  for (let i = 0; i < 3000 && !ready(); i++) {
    await (await fetch("/health")).text();
    await new Promise((done) => setTimeout(done, 1));
  }
};
const $ = (id) => document.getElementById(id);
$("crowd").click();
$("temperature").value = 0;
$("prompt").value = "hé <b>?";
$("form").requestSubmit();
await wait(() => document.querySelectorAll(".turn small").length && $("running").textContent === "8");
const text = document.querySelector(".text[tabindex]");
for (const _ of "123") text.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
const unlabelled = [...document.querySelectorAll("input, textarea")].filter((each) => !each.labels.length).length;
return { text: text.textContent, at: document.querySelector(".text b.at").textContent, panel: $("panel").textContent,
  running: $("running").textContent, rows: $("batch").children.length, step: $("step").textContent, unlabelled,
  status: $("status").textContent, mistake: $("mistake").textContent,
  width: document.documentElement.scrollWidth };
"""


def test_the_page_fetches_nothing_from_elsewhere() -> None:
    text = page_text("<model>", True, True)
    assert not re.findall(r"https?://", text)
    assert "connect-src 'self'" in text
    assert "<model>" not in text
    assert 'id="key"' in text
    assert 'id="key"' not in page_text("m", True, False)
    assert "no chat template" in page_text("m", False, False)


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_a_chat_beside_other_requests(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewright.serve.server.app.page_text", lambda *keys: watched(page_text(*keys), PLAY))
    with serving(tmp_path / "tiny", FakeEngine(seconds=0.03)) as (url, _):
        seen = browse(url, tmp_path, width)
    assert seen["text"] == "hé <b>?" * 3 + "end"
    assert seen["at"] == "<"
    assert seen["panel"].startswith("<50.0%;25.0%")
    assert (seen["running"], seen["status"], seen["mistake"], seen["unlabelled"]) == ("8", "ready", "", 0)
    assert seen["rows"] >= 8
    assert "write a token each" in seen["step"]
    assert seen["width"] <= width
