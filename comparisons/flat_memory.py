"""Whether the memory of every kind of run stays flat, and within what a dry run counts: on CPU processes.

    python comparisons/flat_memory.py                              a quarter of an hour on two idle cores
    python comparisons/flat_memory.py --minutes 15                 fewer steps where the machine is busy
    python comparisons/flat_memory.py --kinds "mixture, bf16" --steps 3000
    python comparisons/flat_memory.py --quick                      two kinds, some steps

Tiny models on documents of random lengths, by the trainer's real program; resident memory of every rank is
read from outside, from after the first fifth of the steps to the end. A dry run counts tensors; beside them
and the imported libraries a process has kernels, Gloo's buffers and what its allocator keeps for reuse. Exit
code 1 where a kind grows, or has more beside, than the bounds below.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness.facts import facts, load_average
from harness.resident import MIB, floor, growth, measure
from harness.result import Result, facts_text, table

from scalewright.dry_run.dry_run import dry_run

# MiB per 1,000 steps. Kernels of 16-bit products of sizes that the first steps missed, 0.3 to 1 MiB each and
# 128 at most, and the allocator's gaps. A tensor kept of every step would be 64 MiB at 64 KiB a step.
# Experts' rows take some hundred steps to meet all of their sizes: a bf16 mixture needs its 1,000 steps.
GROWS = 32.0
# MiB beside tensors and imported libraries: 128 kernels (up to 80), Gloo, readers, the allocator's gaps.
BESIDE = 160.0
VOCABULARY, LENGTH, SAMPLES = 257, 256, 2
LEAST = 200  # steps, however little time there is
MODEL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "context": LENGTH,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "norm_type": "rmsnorm_plus_one", "norm_position": "both", "mlp_type": "geglu_tanh", "head_dim": 8,
    "attention_softcap": 20.0, "logit_softcap": 10.0, "sliding_window": 48, "window_pattern": [True, False],
    "tie_word_embeddings": True, "embedding_scale": 5.7,
}  # fmt: skip
MOE: dict[str, Any] = {"moe": {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 32, "num_shared_experts": 1}}
MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "rope": {"interleaved": True},
    "mla": {"q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10},
}
FAMILIES = {"llama": {}, "gemma": GEMMA, "mixture": MOE, "latent": MLA}
MASKED, PLAIN, VALID, SAVES = "masks", "no masks", "validation", "saves"

MUON_MTP: dict[str, Any] = {"optimizer": {"name": "muon"}, "model": {"mtp_layers": 1}}

# (family, precision, what else, layout, changes)
Kind = tuple[str, str, tuple[str, ...], dict[str, Any], dict[str, Any]]
TWO: dict[str, Any] = {"devices": 2}
KINDS: list[Kind] = [
    ("llama", "bf16", (MASKED, VALID, SAVES), {}, {}),
    ("llama", "bf16", (PLAIN, VALID), {}, {}),
    ("llama", "bf16", (MASKED,), {"recompute": "full"}, MUON_MTP),
    ("llama", "fp32", (MASKED, VALID, SAVES), {}, {}),
    ("gemma", "bf16", (MASKED, VALID), {}, {}),
    ("gemma", "fp32", (MASKED, SAVES), {}, {}),
    ("mixture", "bf16", (MASKED, VALID, SAVES), {}, {}),
    ("mixture", "fp32", (PLAIN, VALID), {}, {}),
    ("latent", "bf16", (MASKED, VALID), {}, {}),
    ("latent", "fp32", (PLAIN, SAVES), {}, {}),
    ("llama", "bf16", (MASKED, SAVES), {**TWO, "tp": 2}, {}),
    ("llama", "bf16", (MASKED, VALID), {**TWO, "cp": 2}, {}),
    ("gemma", "bf16", (MASKED,), {**TWO, "cp": 2, "cp_kind": "ulysses"}, {}),
    ("gemma", "fp32", (MASKED, VALID), {**TWO, "cp": 2}, {}),
    ("mixture", "bf16", (MASKED, VALID), {**TWO, "ep": 2}, {}),
    ("mixture", "fp32", (MASKED, SAVES), {**TWO, "ep": 2}, {}),
    ("llama", "bf16", (MASKED, VALID, SAVES), {**TWO, "pp": 2}, {}),
    ("llama", "fp32", (PLAIN,), {**TWO, "pp": 2, "schedule": "zb-h1"}, {}),
    ("llama", "bf16", (MASKED, VALID, SAVES), {**TWO, "zero_stage": 3}, {}),
    ("latent", "bf16", (MASKED,), {**TWO, "zero_stage": 1}, {}),
    ("llama", "fp32", (MASKED,), {**TWO, "zero_stage": 0}, {}),
]


def title(kind: Kind) -> str:
    """A kind in words."""
    family, precision, options, layout, changes = kind
    keys = [f"{key} {value}" for key, value in layout.items() if key != "devices"]
    keys += [changes["optimizer"]["name"], "MTP"] if changes else []
    return ", ".join([family, precision, *options, *keys])


def main() -> int:
    """Every kind in turn, each in processes of its own."""
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="scalewright-flat-") as scratch:
        folder = Path(options.out) if options.out else (Path(scratch) if options.quick else None)
        result = Result("flat-memory", "Memory over many steps", facts(), folder)
        result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
        tokens = make_tokens(Path(scratch))
        base = floor()
        result.put("floor_mib", base)
        chosen = [kind for kind in KINDS if not options.kinds or any(name in title(kind) for name in options.kinds)]
        answers: dict[str, dict[str, Any]] = {}
        chosen = chosen[:: 12 if options.quick else 1]
        began, pace = time.perf_counter(), 0.0  # seconds of a step, so far
        for number, kind in enumerate(chosen):
            started = time.perf_counter()
            if options.minutes and pace:
                share = (options.minutes * 60 - (started - began)) / (len(chosen) - number)
                options.steps = min(1000, max(LEAST, int(share / pace)))
            data = run_data(kind, tokens, Path(scratch) / f"out-{number}", options.steps)
            answers[title(kind)] = answer = judge(data, base, options.pause)
            answer["seconds"] = round(time.perf_counter() - started, 1)
            pace = (time.perf_counter() - began) / sum(answer["steps"] for answer in answers.values())
            result.put("kinds", answers)
            print(
                title(kind),
                {key: value for key, value in answer.items() if key != "samples"},
                file=sys.stderr,
                flush=True,
            )
        result.put("load_average_at_the_end", load_average())
        show(answers, base, result)
        result.close()
        if options.json:
            print(json.dumps(result.data))
    return int(not all(answer["holds"] for answer in answers.values()))


def arguments() -> argparse.Namespace:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--kinds", nargs="+", default=[], help="those whose titles have one of these texts")
    parser.add_argument("--minutes", type=float, default=0, help="for all: fewer steps of kinds, if need be")
    parser.add_argument("--steps", type=int, default=None, help="of each kind; default: 1,000")
    parser.add_argument("--quick", action="store_true", help="two kinds and 60 steps")
    parser.add_argument("--json", action="store_true", help="prints the result as one JSON document")
    parser.add_argument("--out", default=None, help="folder of the result; default: comparisons/results")
    options = parser.parse_args()
    options.steps = options.steps or (60 if options.quick else 1000)
    options.pause = 0.05 if options.quick else 0.5
    return options


def make_tokens(folder: Path) -> Path:
    """400,000 tokens in documents of 1 to 300."""
    random = np.random.default_rng(0)
    tokens = random.integers(1, VOCABULARY, 400_000).astype(np.uint16)
    tokens[np.cumsum(random.geometric(1 / 60, 10_000)) % len(tokens)] = 0
    np.save(folder / "tokens.npy", tokens)
    return folder / "tokens.npy"


def run_data(kind: Kind, tokens: Path, out: Path, steps: int) -> dict[str, Any]:
    """A run as plain data; it validates and saves ten times."""
    family, precision, options, layout, changes = kind
    source, often = {"path": str(tokens), "eod": 0}, max(1, steps // 10)
    whole = layout.keys() & {"tp", "cp", "etp"} or not layout.get("devices")  # no rank has rows of its own
    micro_batch = SAMPLES if whole else 1
    return {
        "name": "flat",
        "out_dir": str(out),
        "seed": 1,
        "device": "cpu",
        "model": {**MODEL, **FAMILIES[family], **changes.get("model", {})},
        "layout": {"devices": 1, "global_batch": SAMPLES, "micro_batch": micro_batch, "precision": precision, **layout},
        "data": {"train": [source], "valid": [source], "seq_len": LENGTH, "document_mask": MASKED in options},
        "optimizer": changes.get("optimizer", {"name": "adamw"}),
        "train": {"steps": steps, "valid_every": often if VALID in options else 0, "valid_batches": 3},
        "checkpoint": {"every": often if SAVES in options else 0, "at_end": False},
    }


def judge(data: dict[str, Any], base: float, pause: float) -> dict[str, Any]:
    """One kind's growth and what it has beside tensors and libraries, MiB, and whether both hold."""
    counted = max(group.step.peak for group in dry_run(data).groups) / MIB
    samples = measure(data, pause)
    most = max(max(held) for _, held in samples)
    steps = data["train"]["steps"]
    grows, beside = growth(samples, steps // 5), most - base - counted
    return {
        "steps": samples[-1][0], "grows": grows, "most": most, "counted": counted, "beside": beside,
        "holds": grows <= GROWS and beside <= BESIDE,
        "samples": [(step, [round(rank, 1) for rank in held]) for step, held in samples],
    }  # fmt: skip


def show(answers: dict[str, dict[str, Any]], base: float, result: Result) -> None:
    """The table."""
    result.say(
        f"Steps of {SAMPLES} rows of {LENGTH} tokens. MiB of resident memory, of the rank that has most of "
        f"it: growth per 1,000 steps after the first fifth of them (allowed: {GROWS:.0f}), the highest, the "
        f"tensors that the dry run counts, and what is beside those and the {base:.0f} of a process that has "
        f"imported the trainer (allowed: {BESIDE:.0f})."
    )
    heads = ["", "steps", "growth", "highest", "dry run", "beside", "seconds", "holds"]
    rows = [
        [
            name, answer["steps"], f"{answer['grows']:+.1f}", f"{answer['most']:.0f}",
            f"{answer['counted']:.1f}", f"{answer['beside']:.0f}", f"{answer['seconds']:.0f}",
            "yes" if answer["holds"] else "NO",
        ]
        for name, answer in answers.items()
    ]  # fmt: skip
    result.say(table(heads, rows))


if __name__ == "__main__":
    sys.exit(main())
