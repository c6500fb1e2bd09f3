"""What serve.sh starts: it is run by bash, with programs that print what they were given."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from scalewright.emit.emitted import Emitted

PRINT = """#!/bin/sh
line="${CUDA_VISIBLE_DEVICES:-all}"
if [ -n "$SHOW" ]; then line="$VLLM_NIXL_SIDE_CHANNEL_HOST:$VLLM_NIXL_SIDE_CHANNEL_PORT"; fi
for word in "${0##*/}" "$@"; do line="$line|$word"; done
echo "$line"
"""


def started(folder: Path, emitted: Emitted, node: int, show: str = "") -> list[list[str]]:
    """[devices, program, words...] of each line that a node starts; with `show`, NIXL's address for devices."""
    for name in ("vllm", "python", "trtllm-serve", "mpirun", "llama-server", "llama-quantize", "hf"):
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(PRINT)
        program.chmod(0o755)
    (folder / "serve.sh").write_text(emitted.files["serve.sh"])
    places = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOSTS": "a b c d", "ADDRESS": "10.0.0.1", "SHOW": show}
    command = ["bash", str(folder / "serve.sh"), str(node)]
    done = subprocess.run(command, env=places, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return [line.split("|") for line in done.stdout.splitlines()]
