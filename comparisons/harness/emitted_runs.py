"""A tiny run, trained here and as `emit` writes it for another trainer: the losses of both.

weights   a Llama of 22 thousand parameters, saved by transformers
samples   a stream of short documents, packed and masked from each other
ours      `scalewright train` on 2 processes
theirs    the emitted files as they are, started by the emitted command, on CPU processes over Gloo
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import settings_of
from scalewright.emit.write import emit
from scalewright.spec.run import RunSpec

ROOT = Path(__file__).resolve().parents[2]
ON_CPU = Path(__file__).with_name("on_cpu.py")
LLAMA = {
    "vocab_size": 67, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
# Sums of fp32 in another order differ by about 1e-7 a step; AdamW carries them on for 20 updates, and 1e-5
# leaves a factor of ten (measured worst: below 1e-6).
TOLERANCE = 1e-5
STEP = re.compile(r"^step (\d+) loss ([\d.e+-]+)", re.MULTILINE)


class Case(NamedTuple):
    """A trainer, what it does, and the layout that makes it do so."""

    trainer: str
    title: str
    layout: dict[str, Any]
    needs: tuple[str, ...] = ()
    masks: bool = True  # whether documents of a row are masked from each other
    accelerators: bool = False  # whether it runs on accelerators alone, for which CPUs stand in


CASES = (
    Case("accelerate", "DDP", {"zero_stage": 0}),
    Case("accelerate", "FSDP2", {"zero_stage": 3}, accelerators=True),
    Case("accelerate", "FSDP2 without resharding, recomputation", {"zero_stage": 2, "recompute": "full"},
         accelerators=True),
    Case("accelerate", "DeepSpeed, ZeRO 1", {"zero_stage": 1}, ("deepspeed",), accelerators=True),
    Case("accelerate", "tp 2 x FSDP2", {"devices": 4, "tp": 2, "zero_stage": 3}, accelerators=True),
    Case("transformers", "DDP", {"zero_stage": 0}),
    Case("transformers", "FSDP2", {"zero_stage": 3}, accelerators=True),
    Case("transformers", "DeepSpeed, ZeRO 1", {"zero_stage": 1}, ("deepspeed",), accelerators=True),
    *(Case("deepspeed", f"ZeRO {stage}", {"zero_stage": stage}, ("deepspeed",)) for stage in range(4)),
    Case("deepspeed", "ZeRO 1, products kept", {"zero_stage": 1, "recompute": "selective"}, ("deepspeed",)),
    Case("deepspeed", "pipeline, recomputation", {"zero_stage": 0, "pp": 2, "recompute": "full"},
         ("deepspeed",)),
    Case("deepspeed", "AutoTP", {"zero_stage": 0, "tp": 2}, ("deepspeed",)),
    Case("deepspeed", "Ulysses", {"zero_stage": 1, "cp": 2, "cp_kind": "ulysses"}, ("deepspeed",),
         masks=False),
)  # fmt: skip


def make_inputs(folder: Path) -> None:
    """Weights and data of all cases."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    LlamaForCausalLM(LlamaConfig(**LLAMA)).save_pretrained(folder / "weights")
    random, stream = np.random.default_rng(0), []
    for length in random.integers(3, 41, 400):
        word = int(random.integers(1, 67))
        for _ in range(length - 1):
            stream.append(word)
            word = (word * 5 + int(random.integers(0, 3))) % 66 + 1  # something to learn
        stream.append(0)
    np.save(folder / "tokens.npy", np.array(stream, dtype=np.uint16))


def run_of(folder: Path, steps: int, masks: bool, **layout: Any) -> dict[str, Any]:
    """The run file of a case."""
    source = [{"path": str(folder / "tokens.npy"), "eod": 0}]
    return {
        "name": "tiny",
        "out_dir": str(folder / ("masked" if masks else "plain")),
        "model": str(folder / "weights"),
        "init": str(folder / "weights"),
        "seed": 3,
        "device": "cpu",
        "layout": {"devices": 2, "micro_batch": 2, "global_batch": 8, "precision": "fp32", **layout},
        "data": {"train": source, "valid": source, "seq_len": 32, "document_mask": masks},
        "optimizer": {"lr": 1e-3},
        "lr_schedule": {"warmup_steps": 5},
        "train": {"steps": steps, "valid_every": steps // 2, "valid_batches": 2},
        "checkpoint": {"at_end": False},
    }


def ours(folder: Path, steps: int, masks: bool) -> dict[int, float]:
    """The losses of `scalewright train` by step."""
    run = run_of(folder, steps, masks, zero_stage=0)
    path = folder / f"{Path(run['out_dir']).name}.yaml"
    path.write_text(yaml.safe_dump(run), encoding="utf-8")
    _start([sys.executable, "-m", "scalewright", "train", str(path)], folder, {"PYTHONPATH": str(ROOT / "src")})
    records = map(json.loads, (Path(run["out_dir"]) / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if record["kind"] == "train"}


def theirs(folder: Path, steps: int, case: Case) -> dict[int, float]:
    """The losses of an emitted run by step; raises RuntimeError with the end of what it printed."""
    run = run_of(folder, steps, case.masks, **case.layout) | {"device": "cuda" if case.accelerators else "cpu"}
    emitted = emit(case.trainer, settings_of(RunSpec.parse(run)))
    place = folder / re.sub(r"\W+", "-", f"{case.trainer} {case.title}")
    for name, text in emitted.files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    words, environment = command(emitted)
    printed = _start(words, place, {"DS_ACCELERATOR": "cpu", **environment})
    if case.trainer == "transformers":  # it prints four digits
        state = json.loads((Path(run["out_dir"]) / "transformers" / "trainer_state.json").read_text())
        return {entry["step"]: entry["loss"] for entry in state["log_history"] if "loss" in entry}
    return {int(step): float(loss) for step, loss in STEP.findall(printed)}


def command(emitted: Emitted) -> tuple[list[str], dict[str, str]]:
    """The emitted command in this interpreter, at a free port, and the variables before it."""
    words = shlex.split(emitted.command)
    environment = {}
    while "=" in words[0]:
        name, _, environment[name] = words.pop(0).partition("=")
    program, *arguments = words
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    if program == "accelerate":
        module, arguments = (
            "accelerate.commands.accelerate_cli",
            [arguments[0], "--main_process_port", port, *arguments[1:]],
        )
    else:
        module, arguments = "torch.distributed.run", ["--master-port", port, *arguments]
    script = arguments.index("train.py")
    return [sys.executable, "-m", module, *arguments[:script], str(ON_CPU), *arguments[script:]], environment


def _start(words: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=1800,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout
