"""How long the page of `explore` takes from a slider to its picture, in headless Chromium.

a slider moves ──> GET /picture (the server's CPU) ──> the page is drawn      `explore.seen`, of the page itself

python comparisons/explore_speed.py            llama-3.1-70b on 512 devices; a minute
python comparisons/explore_speed.py --quick    a small model, few moves
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from harness.facts import facts
from harness.result import Result, facts_text, table

from scalewright.explore.page import page_text
from scalewright.explore.server import Explorer, Handler
from scalewright.explore.start import starting
from scalewright.explore.state import State

CASES = {"70b": ("llama-3.1-70b", 512, {"tp": 8, "pp": 4}, 40), "quick": ("qwen2.5-0.5b", 8, {"pp": 2}, 6)}
LONGEST = 240.0  # seconds until the browser has told its figures
MOVES = """<script>
setTimeout(async () => {
  const axes = ["micro_batch", "zero_stage", "tp", "global_batch"];
  const told = () => document.querySelector("#mistake").hidden;
  const wait = async (ready) => { while (!ready()) await new Promise((done) => setTimeout(done, 10)); };
  await wait(() => explore.seen.length);
  await new Promise((done) => setTimeout(done, 3000)); // the first search is over
  const mine = [];
  for (let at = 0; mine.length < %d && at < 400; at++) {
    const slider = document.getElementById(`axis-${axes[at %% axes.length]}`), before = explore.seen.length;
    const value = Number(slider.value);
    slider.value = value < Number(slider.max) && at %% 8 < 4 ? value + 1 : Math.max(value - 1, 0);
    if (Number(slider.value) === value) continue;
    slider.dispatchEvent(new Event("input"));
    await wait(() => explore.seen.length > before || !told());
    if (explore.seen.length > before) mine.push(explore.seen.at(-1));
    await new Promise((done) => setTimeout(done, 400)); // a person looks
  }
  await fetch(`/measured?${JSON.stringify(mine)}`);
}, 500);
</script>"""


class Told(Handler):
    """The page's requests, and at last its figures."""

    figures: threading.Event
    seen: list[float]

    def do_GET(self) -> None:
        """One request; what was measured is kept."""
        if not self.path.startswith("/measured?"):
            return super().do_GET()
        Told.seen = json.loads(unquote(self.path.partition("?")[2]))
        self._send(200, "text/plain", b"")
        return Told.figures.set()


def main() -> None:
    """Moves the sliders and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model, few moves")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    options = parser.parse_args()
    model, devices, layout, moves = CASES["quick" if options.quick else "70b"]
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("no Chromium is installed: apt install chromium")
    start = starting(model, "dgx-h100", None, {"devices": devices, **layout})
    result = Result("explore-speed", "From a slider to its picture", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    seen, served = measured(start, browser, moves)
    for name, values in (("seen_ms", seen), ("server_cpu_ms", served)):
        result.put(name, [round(value, 1) for value in values])
    result.put("moves", len(seen))
    rows = [
        [name, f"{len(values)}", *(f"{value:.0f}" for value in spread(values))]
        for name, values in (("slider to picture", seen), ("of which the server computes", served))
    ]
    result.say(f"{model} on {devices} devices; milliseconds, in headless Chromium.")
    result.say(table(["", "many", "median", "p10", "p90"], rows))
    result.close()


def spread(values: list[float]) -> tuple[float, float, float]:
    """The median, a tenth from below and from above."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]


def measured(start: State, browser: str, moves: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each move by the page, and of each picture on the server's core."""
    names = frozenset({start.model}), frozenset({start.cluster})
    page = page_text(start, *names).replace("</body>", MOVES % moves + "</body>")
    Told.figures, Told.seen, served = threading.Event(), [], []
    with Explorer("127.0.0.1", 0, page, *names) as server, tempfile.TemporaryDirectory() as folder:
        server.RequestHandlerClass, server.daemon_threads = Told, False
        picture = server.answers["/picture"]

        def timed(state: State) -> dict[str, Any]:
            began = time.thread_time()
            try:
                return picture(state)
            finally:
                served.append(1e3 * (time.thread_time() - began))

        server.answers["/picture"] = timed
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", "--window-size=1300,1600"]
        work = subprocess.Popen([browser, *flags, "--remote-debugging-port=0", server.url], stderr=subprocess.DEVNULL)
        try:
            if not Told.figures.wait(LONGEST):
                raise SystemExit("the page has told nothing: see it in a browser with its console")
        finally:
            work.terminate()
            work.wait(20)
            server.search = 0  # ends one that is under way
            server.shutdown()
    return Told.seen, served[1:]


if __name__ == "__main__":
    main()
