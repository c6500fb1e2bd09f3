"""A page in a real browser: headless Chromium, where there is one, says what went wrong and what it drew."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")

# Before the page's own scripts: every error is kept. After them: `answer()` is asked, its word put on <html>.
WATCH = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective));
</script>"""
ASK = """<script>
setTimeout(async () => {
  let found = null;
  try { found = await (async () => { %s })(); } catch (error) { errors.push(String(error)); }
  document.documentElement.dataset.answer = JSON.stringify({ found, errors });
}, 200);
</script>"""


def in_browser(page: Path, script: str = "return null;", width: int = 1200) -> Any:
    """What `script` returns in the page, after checking that nothing went wrong there."""
    copy = page.with_name(f"watched-{page.name}")
    copy.write_text(watched(page.read_text(encoding="utf-8"), script), encoding="utf-8")
    return browse(copy.as_uri(), page.parent, width)


def watched(text: str, script: str) -> str:
    """A page that keeps its errors and puts what `script` returns (it may await) into its document."""
    return text.replace("<head>", "<head>" + WATCH, 1).replace("</body>", ASK % script + "</body>")


def browse(address: str, folder: Path, width: int = 1200) -> Any:
    """What the script of a watched page returns there; `folder`: for the browser's own files."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000",
        f"--user-data-dir={folder / 'browser'}", f"--window-size={width},1600", "--dump-dom",
        address,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    answer = re.search(r'<html[^>]* data-answer="([^"]*)"', done.stdout)
    assert answer, done.stderr[-2000:]
    said = json.loads(html.unescape(answer[1]))
    assert said["errors"] == []
    return said["found"]
