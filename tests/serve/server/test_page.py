"""The page in a browser: a chat, probabilities by keyboard, the engine's picture; nothing comes from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import CHROMIUM, needs_browser, watched

from scalewright.serve.request import Request
from scalewright.serve.server.page import page_text
from serve.server.fake import FakeEngine, serving
from serve.server.test_load import wait

PLAY = """
const wait = async (ready) => {
  for (let i = 0; i < 500 && !ready(); i++) await new Promise((done) => setTimeout(done, 20));
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
const seen = { text: text.textContent, at: document.querySelector(".text b.at").textContent, errors,
  panel: $("panel").textContent, rows: $("batch").children.length, step: $("step").textContent, unlabelled,
  status: $("status").textContent, mistake: $("mistake").textContent, width: document.documentElement.scrollWidth };
fetch("/v1/completions", { method: "POST", body: JSON.stringify({ prompt: "SEEN" + JSON.stringify(seen) }) });
"""


def test_the_page_fetches_nothing_from_elsewhere() -> None:
    text = page_text("<model>", True, True)
    assert not re.findall(r"https?://", text)
    assert "connect-src 'self'" in text
    assert "<model>" not in text
    assert 'id="key"' in text
    assert "Type the API key into the field at the top." in text
    assert 'id="key"' not in page_text("m", True, False)
    assert "no chat template" in page_text("m", False, False)


class Watched(FakeEngine):
    """Keeps what the page's script sends: the browser's own clock would stand still while it fetches."""

    seen: dict[str, Any] | None = None

    def add(self, request: Request) -> int:
        if (text := self.loaded.decode(list(request.prompt))).startswith("SEEN"):
            self.seen = json.loads(text[4:])
        return super().add(request)


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_a_chat_beside_other_requests(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewright.serve.server.app.page_text", lambda *keys: watched(page_text(*keys), PLAY))
    with serving(tmp_path / "tiny", Watched(seconds=0.03)) as (url, engine):
        command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
                   f"--user-data-dir={tmp_path / 'browser'}", f"--window-size={width},1600", url]  # fmt: skip
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait(lambda: engine.seen is not None, 60)
        finally:
            browser.terminate()
            browser.wait(30)
    seen = engine.seen
    assert seen["text"] == "hé <b>?" * 3 + "end"
    assert seen["at"] == " "
    assert seen["panel"].startswith("␣50.0%")
    assert (seen["errors"], seen["status"], seen["mistake"], seen["unlabelled"]) == ([], "ready", "", 0)
    assert seen["rows"] >= 8
    assert "write a token each" in seen["step"]
    assert seen["width"] <= max(width, 500)  # a headless window is 500 wide at least
