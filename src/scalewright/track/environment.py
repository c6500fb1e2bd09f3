"""A run's machine and software: versions, git state, host, processor, memory, GPUs; plain data for run.yaml.

Every part is guarded: unknown values are None, and nothing takes over 3 seconds.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from scalewright.machine.checks.software import installed
from scalewright.machine.processor import read_processor

PACKAGES = ("scalewright", "torch", "numpy", "safetensors", "tokenizers", "pydantic", "triton", "mlflow", "deepspeed")
VARIABLES = ("OMP_", "MKL_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_", "NCCL_", "GLOO_", "PYTORCH_", "TORCH_")
PATIENCE_S = 3.0
GIB = 2**30


def environment(
    command: Sequence[str] | None = None, environ: Mapping[str, str] | None = None, folder: str | Path = "."
) -> dict[str, Any]:
    """Everything about this machine and process that may explain a run's numbers later.

    `command` is the command line (default: this process's); of `environ` the variables that steer threads, devices and
    communication are kept; `folder` is where the user's own code lies, for its git state.
    """
    processor = read_processor()
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": platform.node(),
        "system": platform.platform(),
        "folder": str(Path(folder).absolute()),  # relative paths of the run are meant from there
        "command": " ".join(command if command is not None else sys.argv),
        "python": platform.python_version(),
        "versions": dict(_versions()),
        "git": git_state(folder),
        "source": _source(),
        "cpu": {
            "model": processor.model,
            "cores": processor.physical_cores,
            "threads": processor.logical_cores,
            "usable_threads": processor.affinity_cores,
            "flags": list(processor.flags),
        },
        "memory_gib": round(processor.memory_bytes / GIB, 2),
        "gpus": gpus(),
        "torch": torch_config(),
        "variables": {k: v for k, v in sorted((environ or {}).items()) if k.startswith(VARIABLES)},
    }


@cache
def _versions() -> dict[str, str]:
    return {name: version for name, version in installed(PACKAGES).items() if version}


@cache
def _source() -> dict[str, object] | None:
    """Of this package, where it runs from a checkout, at the first run of a process: what was imported."""
    root = Path(__file__).resolve().parents[3]
    return git_state(root) if (root / "pyproject.toml").is_file() else None


def git_state(folder: str | Path) -> dict[str, object] | None:
    """`{commit, branch, dirty}` of the repository around `folder`; None outside one or without git.

    `dirty`: whether tracked files differ from the commit; None when git took too long.
    """
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    head = _output([*git, "rev-parse", "HEAD", "--abbrev-ref", "HEAD"])
    lines = head.split() if head else []
    if len(lines) != 2:
        return None
    changes = _output([*git, "status", "--porcelain", "--untracked-files=no"])
    return {"commit": lines[0], "branch": lines[1], "dirty": None if changes is None else bool(changes)}


def gpus() -> list[dict[str, object]]:
    """The NVIDIA GPUs that the driver shows, else those that an already imported torch sees."""
    if shutil.which("nvidia-smi"):
        query = "--query-gpu=name,memory.total,driver_version"
        rows = (_output(["nvidia-smi", query, "--format=csv,noheader,nounits"]) or "").splitlines()
        cells = [[cell.strip() for cell in row.split(",")] for row in rows]
        listed = [
            {"name": name, "memory_gib": round(float(mib) / 1024, 2), "driver": driver}
            for name, mib, driver in (row for row in cells if len(row) == 3)
            if mib.replace(".", "", 1).isdigit()
        ]
        if listed:
            return listed
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [{"name": device.name, "memory_gib": round(device.total_memory / GIB, 2)} for device in properties]


def torch_config() -> dict[str, object] | None:
    """How the imported torch was built and set; None when it isn't imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    build = (line.strip(" -") for line in torch.__config__.show().splitlines()[1:])
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "build": [line for line in build if line and not line.startswith("Build settings")],
    }


def _output(command: list[str]) -> str | None:
    """A command's output, stripped; None when it is absent, fails or takes too long."""
    try:
        return subprocess.check_output(
            command, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ).strip()
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
