"""A row of 16,384 tokens on one process, and over four by each kind of context parallelism.

    python comparisons/long_context.py                two minutes a kind, on two cores
    python comparisons/long_context.py --seq-len 2048 --kinds ring

Losses and gradient norms of two steps must be those of one process; activations that wait for the backward
must fall to a quarter, as the formula has it. CPU processes over Gloo, fp32, a meter of live tensors
in the place of a GPU's allocator. Exit code 1 when a claim doesn't hold.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.facts import facts
from harness.live_memory import measure
from harness.result import Result, facts_text, table

import scalewright as sw
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.model import ModelSpec

MODEL = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
RANKS = 4
NEAR = 1e-5  # fp32 sums in another order, over rows of 16,384
KEPT = 0.02  # relative to the formula; Ulysses keeps attention's output twice


def main() -> int:
    """Runs one process and each kind, and compares."""
    options = arguments()
    model = ModelSpec.parse({"name": "tiny-llama", "context": options.seq_len, **MODEL})
    result = Result("long-context", f"A row of {options.seq_len:,} tokens", facts(), options.out)
    result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
    layouts: dict[str, dict[str, Any]] = {"one process": {"devices": 1}}
    for kind in options.kinds:
        layouts[f"cp {RANKS}, {kind}"] = {"devices": RANKS, "cp": RANKS, "cp_kind": kind, "zero_stage": 0}
    answers = {}
    for name, keys in layouts.items():
        held = measure(model, keys, options.seq_len)
        kept, peak = (max(rank[what] for rank in held) for what in ("kept", "peak"))
        answers[name] = {"rows": train(model, keys, options.seq_len), "kept": kept, "peak": peak}
        print(f"{name}: kept {kept / 1e6:.1f} MB, peak {peak / 1e6:.1f} MB", file=sys.stderr, flush=True)
    result.put("answers", answers)
    lines, good = compare(answers)
    heads = ["", "losses", "furthest loss or norm", "kept, MB", "of one's", "peak, MB", "of one's"]
    result.say(table(heads, lines))
    result.close()
    print(f"wrote {result.markdown}")
    return int(not good)


def train(model: ModelSpec, layout: dict[str, Any], seq_len: int) -> list[dict[str, float]]:
    """Losses and gradient norms of two steps on random rows of several documents."""
    data = {"python": "scalewright.data.stand_in:RandomTokens", "vocab_size": model.vocab_size}
    with tempfile.TemporaryDirectory(prefix="scalewright-long-") as folder:
        run = {
            "model": model.dump(),
            "device": "cpu",
            "data": {**data, "seq_len": seq_len},
            "layout": {"precision": "fp32", **layout},
            "train": {"steps": 2},
            "checkpoint": {"at_end": False},
            "out_dir": folder,
        }
        sw.train(run, quiet=True)
        rows = read_jsonl(Path(folder) / "metrics.jsonl")
        return [{key: row[key] for key in ("loss", "grad_norm")} for row in rows if row["kind"] == "train"]


def compare(answers: dict[str, Any]) -> tuple[list[list[str]], bool]:
    """The table's rows, and whether every claim holds."""
    lines, good = [], True
    one = answers["one process"]
    for name, answer in answers.items():
        far = max(
            abs(row[key] / expected[key] - 1)
            for row, expected in zip(answer["rows"], one["rows"], strict=True)
            for key in row
        )
        share = 1.0 if answer is one else 1 / RANKS
        kept = answer["kept"] / one["kept"]
        more = 0.1 if "ulysses" in name else KEPT
        good &= far < NEAR and abs(kept / share - 1) < more
        losses = ", ".join(f"{row['loss']:.6f}" for row in answer["rows"])
        peak = answer["peak"] / one["peak"]
        sizes = [f"{answer['kept'] / 1e6:.1f}", f"{kept:.3f}", f"{answer['peak'] / 1e6:.1f}", f"{peak:.3f}"]
        lines.append([name, losses, f"{far:.1e}", *sizes])
    return lines, good


def arguments() -> argparse.Namespace:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    kinds = ["ring", "allgather", "ulysses"]
    parser.add_argument("--seq-len", type=int, default=16384)
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--out", type=Path, default=None, help="folder; default: comparisons/results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
