"""The pictures of the README and of docs/: pages as a browser shows them, and the drawings of docs/ideas.md.

    python comparisons/pictures.py                        everything, in minutes: plans, trains and draws
    python comparisons/pictures.py --only ideas           the drawings alone; no browser, no training
    python comparisons/pictures.py --run DIR --pipeline DIR    of runs that are there already

They land in docs/pictures/. Screenshots need a Chromium on the path.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.ideas import draw_all

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
PLAN = "plan llama-3.1-70b --cluster dgx-h100 --devices 512 --seq-len 8192 --global-batch 1024 --json"
WIDTH = 1280
LARGEST = 300_000  # bytes of a picture in the repository
RUN_FILE = "model: small.yaml\ndata: {train: text, valid: text, seq_len: 128}\n"


def main() -> None:
    """Draws what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=("ideas", "pages", "diagnosis"))
    parser.add_argument("--run", type=Path, help="a run's folder; by default the demo is run")
    parser.add_argument(
        "--pipeline", type=Path, help="a run's folder with a recorded pipeline; by default one is trained"
    )
    parser.add_argument("--out", type=Path, default=PICTURES)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.only in (None, "ideas"):
        draw_all(asked.out)
    if asked.only != "ideas":
        with tempfile.TemporaryDirectory() as place:
            shoot_diagnosis(Path(place), asked.out)
            if asked.only != "diagnosis":
                shoot_pages(Path(place), asked.out, asked.run, asked.pipeline)


def shoot_diagnosis(place: Path, out: Path) -> None:
    """The diagnosis of the example that comes with the package."""
    swr(place, "diagnose", "example", "--html", "diagnosis.html")
    shoot(place / "diagnosis.html", out / "diagnosis.png", 1425)


def shoot_pages(place: Path, out: Path, run: Path | None, pipeline: Path | None) -> None:
    """The plan's page, the run's, and a pipeline beside its ideal."""
    (place / "plan.json").write_text(swr(place, *PLAN.split()), encoding="utf-8")
    swr(place, "report", "plan.json")
    shoot(place / "plan.html", out / "plan.png", 1190)
    folder = run or demo(place)
    swr(place, "report", str(folder.resolve()), "--out", str(place / "run.html"))
    shoot(place / "run.html", out / "run.png", 1170)
    folder = pipeline or train_pipeline(place)
    swr(place, "report", str(folder.resolve()), "--out", str(place / "pipeline.html"))
    shoot(place / "pipeline.html", out / "pipeline-measured.png", 530, only="pipeline")


def demo(place: Path) -> Path:
    """The demo's run."""
    swr(place, "demo", "--out", "demo")
    return place / "demo"


def train_pipeline(place: Path) -> Path:
    """A run of two pipeline ranks with one recorded step."""
    swr(place, "prepare", "shakespeare", "--out", "text", "--vocab-size", "1024")
    swr(place, "presets", "new", "--params", "1e6", "--like", "llama", "--vocab", "1024", "--out", "small.yaml")
    (place / "run.yaml").write_text(RUN_FILE, encoding="utf-8")
    layout = ["device=cpu", "layout.devices=2", "layout.pp=2", "layout.global_batch=8"]
    swr(place, "train", "run.yaml", "--steps", "12", "name=pp", *layout, "profile.steps=[10]")
    return place / "runs" / "pp"


def swr(place: Path, *words: str) -> str:
    """Runs a verb in a folder; what it wrote on stdout."""
    command = [sys.executable, "-m", "scalewright", *words]
    return subprocess.run(command, cwd=place, check=True, stdout=subprocess.PIPE, text=True).stdout


def shoot(page: Path, picture: Path, height: int, only: str = "") -> None:
    """A picture of a page's top, or of one section alone."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("pictures of pages need a Chromium on the path; --only ideas does without")
    text = page.read_text(encoding="utf-8")
    if only:
        hidden = f"section:not(#{only}), header.top, footer {{ display: none }} section {{ margin-top: 20px }}"
        text = text.replace("</head>", f"<style>{hidden}</style></head>")
    copy = page.with_name(f"shot-{page.name}")
    copy.write_text(text, encoding="utf-8")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--virtual-time-budget=3000", "--run-all-compositor-stages-before-draw",
        f"--user-data-dir={page.parent / 'browser'}", f"--window-size={WIDTH},{height}",
        f"--screenshot={picture.resolve()}", copy.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    if picture.stat().st_size > LARGEST:
        raise SystemExit(f"{picture.name} has {picture.stat().st_size} bytes, more than {LARGEST}")


if __name__ == "__main__":
    main()
