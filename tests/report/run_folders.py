"""Run folders for the tests of reports, as a trainer leaves them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

RUN_YAML = """\
version: 1
name: {name}
out_dir: runs/{name}
model: {{name: tiny-llama, family: llama, vocab_size: 2048, hidden_size: 64, tie_word_embeddings: false}}
layout: {{devices: 2, tp: 1, micro_batch: 8, precision: fp32}}
data:
  train:
  - {{path: data/shakespeare/train, weight: 1.0, eod: null}}
train: {{steps: {steps}, valid_every: 10}}
optimizer: {{name: adamw, lr: 3.0e-4, betas: [0.9, 0.95]}}
environment:
  host: somewhere
  python: 3.11.7
  versions: {{scalewright: 0.1.0, torch: 2.13.0}}
  cpu: {{model: Some CPU, cores: 2, flags: [avx2, amx_bf16]}}
  gpus: [{{name: NVIDIA H200, memory_gib: 140.4, driver: '570'}}, {{name: NVIDIA H200, memory_gib: 140.4}}]
  git: {{commit: 0123456789abcdef, branch: main, dirty: true}}
  variables: {{OMP_NUM_THREADS: '1'}}
"""


def train_row(step: int, loss: float | None = None, **more: Any) -> dict[str, Any]:
    """One training line, all keys."""
    return {
        "kind": "train", "step": step, "samples": 16 * step, "tokens": 4096 * step, "loss_tokens": 4096,
        "loss": 1.5 + 8 * math.exp(-step / 20) if loss is None else loss, "aux_loss": 0.0, "grad_norm": 0.5,
        "lr": 3e-4, "step_time_s": 2.5 if step == 1 else 0.2 + 0.01 * (step % 5), "tokens_per_s": 20_000.0,
        "mfu": 0.31, "memory_gib": 0.62, "sample_ids_hash": "ab", **more,
    }  # fmt: skip


def make_run(
    folder: Path,
    steps: int = 60,
    bad: Collection[int] = (),
    resumed_at: int | None = None,
    name: str = "shakespeare",
    summary: dict[str, Any] | None = None,
) -> Path:
    """A finished run of `steps` steps; those in `bad` have no finite loss."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    peak = {"peak_flops": 989e12, "peak_source": "vendor", "peak_device": "H100", "precision": "bf16"}
    events: list[dict[str, Any]] = [{"time": 1.76e9, "kind": "start", "step": 0, "parameters": 3.5e6, **peak}]
    for step in range(1, steps + 1):
        moment = 1.76e9 + step
        rows.append(train_row(step))
        if step in bad:
            rows[-1]["loss"] = None
            events.append({"time": moment, "kind": "nonfinite", "step": step, "values": {"loss": "nan"}})
        if step % 10 == 0:
            rows.append({"kind": "valid", "step": step, "loss": 2.0, "bits_per_byte": 2.61})
            events.append({"time": moment, "kind": "save", "step": step, "seconds": 0.3})
        if step == resumed_at:
            events.append({"time": moment, "kind": "fault", "step": step, "rank": 1, "error": "killed"})
            events.append({"time": moment + 0.5, "kind": "resume", "step": step, **peak})
    events.append({"time": 1.76e9 + steps + 1, "kind": "finish", "step": steps, "seconds": steps + 1.0})
    (folder / "run.yaml").write_text(RUN_YAML.format(name=name, steps=steps), encoding="utf-8")
    write_lines(folder / "metrics.jsonl", rows)
    write_lines(folder / "events.jsonl", events)
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
