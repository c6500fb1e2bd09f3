"""Whether checkpoints that other trainers write are converted to the very weights that those trainers hold.

    python comparisons/their_checkpoints.py torchtitan=PYTHON deepspeed=PYTHON ...       a minute each

PYTHON is one that has the trainer and this package's dependencies; each trains and saves a small model by
itself, on CPU processes with Gloo (`tests/checkpoint/foreign/make_*.py`). A trainer may be named twice, with
two versions.

    pip install --no-deps torchtitan torchdata torchao triton      pip install deepspeed
    pip install --no-deps megatron-core triton                     pip install --no-deps nanotron dacite
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from harness.facts import facts
from harness.result import Result, facts_text, table

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tests" / "checkpoint" / "theirs" / "real.py"
TITLES = {"torchtitan": "torchtitan", "megatron": "Megatron Core", "deepspeed": "DeepSpeed", "nanotron": "nanotron"}
HOW = {
    "torchtitan": "its model under FSDP2, saved by its CheckpointManager; compared with what its own adapter "
    "makes of the model for Hugging Face. 0.3 has no attention that runs on a CPU without compilation: no "
    "logits there.",
    "megatron": "its GPTModel with the local layer specification, saved by its dist_checkpointing "
    "(torch_dist); compared with every rank's parameters, put together by hand. Its training scripts are not "
    "on PyPI: `args` are written as Megatron-LM writes them. Logits where one process has the model.",
    "deepspeed": "a Llama of transformers in its engine, two steps of AdamW, `save_checkpoint`, and its "
    "`ds_to_universal`; compared with what its `zero_to_fp32` puts together.",
    "nanotron": "its parallel layers in its Llama's tree, saved by its `save_weights` and `save_meta`; "
    "compared with every rank's parameters. Its whole model needs flash-attn and NCCL: no logits.",
}


def main() -> None:
    """Asks each Python, and writes the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("trainers", nargs="+", metavar="TRAINER=PYTHON")
    parser.add_argument("--out", type=Path, help="where the result goes")
    options = parser.parse_args()
    pairs = [tuple(pair.partition("=")[::2]) for pair in options.trainers]
    if wrong := [trainer for trainer, python in pairs if trainer not in TITLES or not python]:
        parser.error(f"'{wrong[0]}' is none of {', '.join(TITLES)}, or has no =PYTHON")
    result = Result("their-checkpoints", "Checkpoints of other trainers, converted", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    rows: list[list[Any]] = []
    for trainer, python in pairs:
        answer = ask(trainer, python)
        result.put(f"{trainer} {answer['version']}", answer)
        for case, folders in answer["cases"].items():
            for folder in folders:
                logits = "not run" if folder["logits"] is None else f"{folder['logits']:.1e}"
                kind = ", universal" if folder["folder"] == "universal" else ""
                name = f"{TITLES[trainer]} {answer['version']}"
                rows.append([name, case + kind, f"{folder['tensors']} of {folder['tensors']}", logits])
    heads = ["trainer", "what it saved", "tensors equal bit for bit", "largest difference of logits"]
    result.say(table(heads, rows))
    result.say("How each was made and compared:", "", *(f"- **{TITLES[t]}**: {HOW[t]}" for t in dict(pairs)))
    result.close()


def ask(trainer: str, python: str) -> dict[str, Any]:
    """All cases of one trainer, in its Python; ends with its words when one isn't as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(SCRIPT), trainer, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        raise SystemExit(f"{trainer}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    main()
