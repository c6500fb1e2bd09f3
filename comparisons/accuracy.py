"""The accuracy of the planner: docs/accuracy.md and accuracy-tables.md with plots, from the published runs.

    python comparisons/accuracy.py                        the pages, plots and a dated result; minutes
    python comparisons/accuracy.py --peer                 ask llm-analysis again (pip install --no-deps
                                                          llm-analysis fire termcolor), else its last answers
    python comparisons/accuracy.py --sources vtrain-multi megatron-2020 --out /tmp/page      a trial

Needs matplotlib beside the package; see harness/accuracy_figures.py for what is computed.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.accuracy_figures import Figures, ask_peer, by_group, collect, compare_peer, means, save_peer

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "comparisons" / "results"


def main() -> None:
    """Collects, asks the peer, draws and writes."""
    options = arguments()
    date = time.strftime("%Y-%m-%d", time.gmtime())
    figures = collect(options.sources)
    peer_file = peer_answers(figures, options, date)
    if peer_file is not None:
        with open(peer_file, newline="", encoding="utf-8") as file:
            answers: list[dict[str, Any]] = list(csv.DictReader(file))
        version = re.sub(r".*llm-analysis-|\.csv$", "", peer_file.name)
        figures.peer = {**compare_peer(figures, answers), "version": version, "file": peer_file.name}
    write(figures, Path(options.out) if options.out else None, date)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", action="store_true", help="ask llm-analysis again")
    parser.add_argument("--sources", nargs="*", help="only these sources")
    parser.add_argument("--out", help="a folder for page, plots and result; default: docs/ and results/")
    return parser.parse_args()


def peer_answers(figures: Figures, options: argparse.Namespace, date: str) -> Path | None:
    """The file of llm-analysis's answers: asked now, or the newest one; None where there is none."""
    folder = Path(options.out) if options.out else RESULTS
    if options.peer:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{date}-llm-analysis-{metadata.version('llm-analysis')}.csv"
        save_peer(ask_peer(figures.runs), path)
        return path
    return max(RESULTS.glob("*-llm-analysis-*.csv"), default=None)


def write(figures: Figures, out: Path | None, date: str) -> None:
    """The pages, their plots and the numbers behind them."""
    from harness.accuracy_page import pages
    from harness.accuracy_plots import draw

    docs, results = (out, out) if out else (ROOT / "docs", RESULTS)
    draw(figures, docs / "accuracy")
    for name, text in pages(figures, date).items():
        (docs / name).write_text(text, encoding="utf-8")
    result = {
        "date": date, "means": means(figures), "constants": figures.constants,
        "left_out": {kind: by_group(figures, kind) for kind in figures.left_out},
        "left_out_source": figures.scored["source"], "shipped": figures.shipped,
        "profiles": figures.profiles, "llm_analysis": figures.peer,
    }  # fmt: skip
    path = results / f"{date}-accuracy.json"
    path.write_text(json.dumps(result, indent=1, default=float) + "\n", encoding="utf-8")
    print(f"wrote {docs / 'accuracy.md'}, {docs / 'accuracy'}/*.png and {path}")


if __name__ == "__main__":
    main()
