"""A run script for Megatron-LM: its arguments in groups, and torchrun on every node."""

from __future__ import annotations

from scalewright.emit.arguments import nodes_of, spelled
from scalewright.emit.emitted import Emitted
from scalewright.emit.megatron.layout import write_layout
from scalewright.emit.megatron.model import Arguments, write_model
from scalewright.emit.megatron.training import write_training
from scalewright.emit.settings import Settings
from scalewright.spec.text.shell import line

TITLE, VERSION = "Megatron-LM", "core 0.16 to 0.19"
FILE = "pretrain.sh"
WIDTH = 100
# It has no arguments for these fields of Megatron-Bridge's, or the same by default.
FIELDS_ALONE = ("original-max-position-embeddings", "beta-fast", "beta-slow", "bias-gelu-fusion")


def write(s: Settings) -> Emitted:
    """The complete script; raises UserError where it would be another layout."""
    network = {name: value for name, value in write_model(s).items() if name not in FIELDS_ALONE}
    groups = {"MODEL": network, "LAYOUT": write_layout(s), "TRAINING": write_training(s)}
    nodes, each = nodes_of(s.layout.devices)
    fsdp = "use-megatron-fsdp" in groups["LAYOUT"]
    lines = [
        "#!/usr/bin/env bash",
        f"# Written by `scalewright emit megatron`: arguments of Megatron-LM ({VERSION}).",
        f"# On each of {nodes} nodes: NODE_RANK=<0..{nodes - 1}> MASTER_ADDR=<the first node> bash {FILE}",
        "set -euo pipefail",
        # tp and cp overlap their messages only when kernels start in order; FSDP refuses that
        "unset CUDA_DEVICE_MAX_CONNECTIONS" if fsdp else "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        "",
    ]
    for name, arguments in groups.items():
        lines += [f"{name}=(", *_rows(arguments), ")"]
    names = " ".join(f'"${{{name}[@]}}"' for name in groups)
    lines += [
        "",
        f"torchrun --nnodes {nodes} --nproc-per-node {each} --node-rank ${{NODE_RANK:-0}} \\",
        "  --master-addr ${MASTER_ADDR:-localhost} --master-port ${MASTER_PORT:-29500} \\",
        f'  "${{MEGATRON:-.}}/pretrain_gpt.py" {names}',
        "",
    ]
    s.assume("MEGATRON is the folder of its checkout; default: where the script is started")
    return s.emitted(TITLE, "megatron", VERSION, {FILE: "\n".join(lines)}, f"bash {FILE}")


def _rows(arguments: Arguments) -> list[str]:
    """Flags with their values, several in a row of the script."""
    rows, row = [], ""
    for name, value in arguments.items():
        words = line(spelled(name, value))
        if row and len(row) + len(words) > WIDTH:
            rows.append(f"  {row}")
            row = ""
        row = f"{row} {words}".strip()
    return [*rows, f"  {row}"] if row else rows
