"""Twelve runs of 0.2 to 4M parameters on real text, and the largest predicted from the others.

    python comparisons/scaling_ladder.py OUT            19 CPU minutes of one core; goes on where it was stopped

Both texts of the bundled WikiText-2 (1.04M tokens of a vocabulary of 512, each read at most once), sequences of 128,
one schedule a run: what `scalewright budget ladder` writes. OUT/runs.csv is the table that `budget fit` takes;
results/scaling-ladder.csv is the one of 2026-11-28.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path

from scalewright.budget.fit import fit_runs, read_runs

BUNDLED = Path(__file__).resolve().parent.parent / "src/scalewright/data/bundled/wikitext-2"
RUNGS = (  # params, tokens
    ("0.2M,0.5M,1.2M", "0.25M,0.5M,1M"),
    ("2.2M", "0.5M,1M"),
    ("4M", "1M"),
)


def scalewright(*words: str, folder: Path) -> None:
    """Runs one command there; its output goes to stderr."""
    subprocess.run([sys.executable, "-m", "scalewright", *words], cwd=folder, check=True, stdout=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "tokens").is_dir():
        texts = [str(BUNDLED / name) for name in ("test.txt", "valid.txt")]
        scalewright("prepare", *texts, "--out", "tokens", "--vocab-size", "512", "--valid-fraction", "0.08", folder=out)
    fixed = ("--data", "tokens", "--seq-len", "128", "--device", "cpu", "--out", "ladder", "--force")
    for params, tokens in RUNGS:
        scalewright("budget", "ladder", "--params", params, "--tokens", tokens, *fixed, folder=out)
    for path in sorted((out / "ladder").glob("*.yaml")):
        metrics = out / "ladder" / "runs" / path.stem / "metrics.jsonl"
        if not (metrics.is_file() and '"kind": "valid"' in metrics.read_text()):  # it validates once, at its end
            scalewright("train", str(path.relative_to(out)), folder=out)
    runs = read_runs([str(out / "ladder")])
    with (out / "runs.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("name", "params", "tokens", "loss"))
        table.writerows((run.name, f"{run.params:.0f}", f"{run.tokens:.0f}", f"{run.loss:.5f}") for run in runs)
    answer = fit_runs(runs, flops=1e15)
    print(json.dumps({key: answer[key] for key in ("law", "intervals", "leave_largest_out", "extrapolated")}, indent=1))


if __name__ == "__main__":
    main()
