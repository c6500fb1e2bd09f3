"""What a result must say of the machine that it was taken on, so that a reader can judge it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from scalewright.track.environment import environment, git_state

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "torch", "triton", "numpy", "transformers", "accelerate", "litgpt", "lightning", "liger-kernel",
    "torchao", "pydantic", "safetensors", "tokenizers",
)  # fmt: skip
NVIDIA_SMI = (
    "name", "driver_version", "memory.total", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw",
    "power.limit", "temperature.gpu",
)  # fmt: skip


def facts() -> dict[str, Any]:
    """Processor with its flags, threads, load, versions, command and commit; the GPU when there is one."""
    found: dict[str, Any] = {
        "command": " ".join(["python", *(_relative(word) for word in sys.argv)]),
        "source": kit_source() or git_state(ROOT),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions(),
        "cpu": environment()["cpu"],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch_threads": torch.get_num_threads(),
        "load_average": load_average(),
    }
    if torch.cuda.is_available():
        found["gpu"] = gpu_state()
    return found


def kit_source() -> dict[str, Any] | None:
    """The commit of a kit (gpu_kit.py), which has no repository around it; None in a checkout."""
    kit = ROOT / "kit.json"
    return json.loads(kit.read_text(encoding="utf-8"))["source"] if kit.exists() else None


def load_average() -> list[float] | None:
    """Processes ready to run, over 1, 5 and 15 minutes; None where the system doesn't say."""
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None


def versions() -> dict[str, str]:
    """Installed versions; torch's is the running one, with its build."""
    found = {"torch": str(torch.__version__)}
    for name in PACKAGES[1:]:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def gpu_state() -> dict[str, Any]:
    """Name, size, driver, libraries, clocks and power as they are; nothing is changed."""
    properties = torch.cuda.get_device_properties(0)
    state: dict[str, Any] = {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "cudnn_loaded_from": loaded_libraries("libcudnn"),
        "devices": torch.cuda.device_count(),
    }
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(NVIDIA_SMI)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            cells = [cell.strip() for cell in done.stdout.split(",")]
            state["nvidia_smi"] = dict(zip(NVIDIA_SMI, cells, strict=False))
        except (OSError, subprocess.SubprocessError):
            state["nvidia_smi"] = None
    return state


def loaded_libraries(word: str) -> list[str]:
    """File names of the shared libraries with `word` in them that this process has mapped (Linux)."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = {line.split()[-1] for line in lines if word in line}
    return sorted({Path(path).name for path in paths})


def _relative(word: str) -> str:
    """A path inside the checkout as seen from its top; other absolute paths as their last part."""
    path = Path(word)
    if not path.is_absolute() and not path.exists():
        return word
    try:
        return str(path.resolve().relative_to(ROOT))
    except ValueError:
        return path.name if path.is_absolute() else word
