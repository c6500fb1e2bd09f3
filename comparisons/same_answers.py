"""The answers of two versions of the package beside each other: some 300 commands, byte for byte.

    python comparisons/same_answers.py OLD/src NEW/src [--samples FOLDER] [--keep OLD.jsonl] [--save OUT.json]

commands (seeded) ──► OLD, one process ──► exit code, stdout, stderr ──┐
                  └─► NEW, one process ──► exit code, stdout, stderr ──┴─► those that differ, as a diff

For a change of the structure that must not change an answer. Seconds that a search took are left out, and so
are paths of the folder in which both run. `--samples`: a folder of traces and logs, for `diagnose`.
Exit code 1 when an answer differs.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "mixtral-8x7b", "deepseek-v3", "gpt2", "gemma-2-9b")
CLUSTERS = ("dgx-h100", "dgx-a100", "dgx-b200", "a100-pcie", "mi300x", "l4")
FRAMEWORKS = ("scalewright", "megatron", "torchtitan", "nanotron", "deepspeed", "nemo")
TRAINERS = (
    "megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "transformers", "nanotron",
    "litgpt", "gpt-neox", "colossalai", "axolotl", "llama-factory", "maxtext", "levanter",
)  # fmt: skip
TARGETS = ("slurm", "kubernetes", "ray", "mpi", "ssh", "torchrun", "skypilot", "local")
FORMS = (".sh", ".py", ".yaml", ".toml")
VARYING = re.compile(r'"seconds": [\d.e-]+|\d+ candidates a second|in \d+(\.\d+)? s\b')


def predictions(rng: random.Random) -> Iterator[list[str]]:
    """`predict` of random layouts; many are refused, with a message that must stay as well."""
    for _ in range(90):
        layout = {
            "devices": rng.choice((8, 16, 64)), "tp": rng.choice((1, 2, 4, 8)),
            "pp": rng.choice((1, 1, 2, 4)), "cp": rng.choice((1, 1, 2)),
            "zero_stage": rng.choice((0, 1, 2, 3)),
            "micro_batch": rng.choice((1, 2)), "global_batch": rng.choice((64, 128)),
            "recompute": rng.choice(("none", "full", "selective")),
            "precision": rng.choice(("bf16", "bf16", "fp8", "fp32")),
        }  # fmt: skip
        pairs = ",".join(f"{key}={value}" for key, value in layout.items())
        yield ["predict", rng.choice(MODELS), "-c", rng.choice(CLUSTERS), "--seq-len", "4096",
               "--layout", pairs, "--framework", rng.choice(FRAMEWORKS),
               *rng.choice(([], ["--optimizer", "adamw"], ["--tokens", "1e12", "--price", "2"])),
               *rng.choice(([], ["--json"], ["--json"]))]  # fmt: skip


def plans(rng: random.Random) -> Iterator[list[str]]:
    """`plan`, with what it can be asked."""
    for _ in range(24):
        yield ["plan", rng.choice(MODELS), "-c", rng.choice(CLUSTERS), "--devices",
               rng.choice(("8", "16", "32")), "--seq-len", "4096", "--global-batch", "128",
               "--framework", rng.choice(FRAMEWORKS),
               *rng.choice(([], ["--fix", "tp=2"], ["--near", "tp=4"], ["--why-not", "tp=8"],
                            ["--precision", "fp8"], ["--objective", "cost", "--price", "2"])),
               *rng.choice(([], ["--json"], ["--json"]))]  # fmt: skip


def run_files(folder: Path, rng: random.Random) -> list[Path]:
    """Run files with settings of their own."""
    paths = []
    for number in range(6):
        run = {
            "name": f"run{number}", "model": rng.choice(MODELS), "cluster": "dgx-h100", "seed": number,
            "layout": {"devices": 16, "tp": rng.choice((1, 2)), "pp": rng.choice((1, 2)),
                       "micro_batch": 1, "global_batch": 64, "precision": "bf16",
                       "zero_stage": rng.choice((0, 1, 3))},
            "data": {"train": "corpus", "seq_len": 2048},
            "optimizer": {"name": "adamw", "lr": rng.choice((1e-4, 3e-4)), "weight_decay": 0.05},
            "lr_schedule": {"kind": rng.choice(("cosine", "linear")), "warmup_steps": 20},
            "train": {"steps": 200},
        }  # fmt: skip
        paths.append(folder / f"run{number}.yaml")
        paths[-1].write_text(json.dumps(run))
    return paths


def commands(folder: Path, samples: Path | None) -> list[list[str]]:
    """All commands, in an order in which files are written before they are read."""
    rng = random.Random(20261126)
    lines = [*predictions(rng), *plans(rng)]
    runs = run_files(folder, rng)
    for trainer in TRAINERS:
        for run in rng.sample(runs, 4):
            name = f"{trainer}-{run.stem}"
            lines += [["emit", trainer, run.name, "--json", "--out", name]]
        lines += [["emit", trainer, runs[0].name, "--print"]]
    lines += [["read", run.name] for run in runs]
    lines += [["launch", target, runs[0].name, "--print"] for target in TARGETS]
    lines += [
        ["presets"],
        ["presets", "models"],
        ["presets", "clusters"],
        ["score", "--json"],
        ["score"],
        *(["presets", model] for model in MODELS),
        *(["presets", cluster] for cluster in CLUSTERS),
    ]
    if samples is not None:
        paths = sorted(path for path in samples.rglob("*") if path.is_file() and path.stat().st_size < 3 << 20)
        for path in rng.sample(paths, min(len(paths), 50)):
            lines += [["diagnose", str(path), *rng.choice(([], ["--json"], ["--json"]))]]
    return lines


def read_back(folder: Path) -> list[list[str]]:
    """`read`, and `predict` and `plan --from`, of the files that `emit` wrote."""
    rng, lines = random.Random(1), []
    for path in sorted(path for path in folder.glob("*-run?/*") if path.suffix in (".sh", ".py", ".yaml", ".toml")):
        lines += [["read", f"{path.parent.name}/{path.name}", "--json"]]
        if rng.random() < 0.3:
            lines += [["predict", "--from", f"{path.parent.name}/{path.name}", "-c", "dgx-h100", "--json"]]
    return lines


def answers(lines: Sequence[list[str]]) -> Iterator[dict[str, Any]]:
    """What each command answers, in this process."""
    from scalewright.__main__ import main  # the package of PYTHONPATH

    for line in lines:
        out, err = io.StringIO(), io.StringIO()
        code: object = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                sys.argv = ["scalewright", *line]
                code = main()
            except SystemExit as stopped:
                code = stopped.code
            except Exception as error:  # an answer like any other: it is compared
                code = repr(error)
        yield {"line": line, "code": code, "out": VARYING.sub("", out.getvalue()), "err": err.getvalue()}


def work(samples: str) -> None:
    """One version: all commands in this folder, their answers as JSON lines in answers.jsonl."""
    folder = Path.cwd()
    (folder / "corpus").mkdir()
    with open("answers.jsonl", "w") as file:
        for lines in (commands(folder, Path(samples) if samples else None), None):
            for answer in answers(read_back(folder) if lines is None else lines):
                file.write(json.dumps(answer) + "\n")
                file.flush()


def collect(source: Path, samples: Path | None, folder: Path, keep: Path | None) -> list[dict[str, Any]]:
    """The answers of one version: of its source, or as they were kept."""
    if source.is_file():
        return [json.loads(line) for line in source.read_text().splitlines()]
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--work", str(samples.resolve()) if samples else ""]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    text = (folder / "answers.jsonl").read_text().replace(str(folder), "FOLDER")
    if keep is not None:
        keep.write_text(text)
    return [json.loads(line) for line in text.splitlines()]


def main() -> int:
    """Both versions, and the answers that differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="*", metavar="SRC")
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--keep", type=Path, help="where the old answers are kept, to be given in OLD's place")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        old, new = (
            collect(source, options.samples, Path(temporary) / name, options.keep if name == "old" else None)
            for source, name in zip(options.sources, ("old", "new"), strict=True)
        )
    differing = []
    for before, after in zip(old, new, strict=True):
        if before == after:
            continue
        differing.append({"line": before["line"], "codes": [before["code"], after["code"]]})
        print("$ scalewright", *before["line"], f"   {before['code']} -> {after['code']}")
        for key in ("out", "err"):
            pair = (before[key].splitlines(), after[key].splitlines())
            print("\n".join(list(difflib.unified_diff(*pair, "old", "new", lineterm="", n=0))[:20]))
    print(f"{len(old) - len(differing)} of {len(old)} answers are equal")
    if options.save:
        options.save.write_text(json.dumps({"commands": len(old), "differing": differing}, indent=1) + "\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
