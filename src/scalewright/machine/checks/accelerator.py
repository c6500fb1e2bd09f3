"""GPUs as their driver sees them and as torch does: driver, persistence, ECC, throttling, who is on them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from scalewright.machine.findings import gib
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import Finding, Severity
from scalewright.spec.hardware.devices import match_gpu

GROUP = "accelerator"
FIELDS = (
    "name", "driver_version", "memory.total", "memory.used", "persistence_mode", "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total", "mig.mode.current", "temperature.gpu", "power.limit",
    "clocks_throttle_reasons.hw_slowdown", "pcie.link.width.current", "pcie.link.width.max",
)  # fmt: skip
# Findings by one field: its value, how bad that is, what it means, and the fix.
STATES: dict[str, tuple[str, str, Severity, str, str]] = {
    "persistence": (
        "persistence_mode", "disabled", "note",
        "has no persistence mode: each start waits for the driver to load", "sudo nvidia-smi -pm 1",
    ),
    "mig": (
        "mig.mode.current", "enabled", "note",
        "is cut into instances (MIG): peaks of the whole don't hold, rates are measured", "",
    ),
    "throttling": (
        "clocks_throttle_reasons.hw_slowdown", "active", "warn",
        "slows itself down (heat or power)", "check cooling and power: nvidia-smi -q -d PERFORMANCE",
    ),
}  # fmt: skip
BASIC = 4  # the first of these, which every driver supports


def query_nvidia(seconds: float = 2.0) -> list[dict[str, str]] | None:
    """nvidia-smi's fields of each GPU; None without it. Raises TimeoutExpired when the driver hangs."""
    if (program := shutil.which("nvidia-smi")) is None:
        return None
    for fields in (FIELDS, FIELDS[:BASIC]):  # drivers rename fields now and then
        command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        if done.returncode == 0:
            return parse_nvidia(done.stdout)
        answer = (done.stdout + done.stderr).strip()
        if "not a valid field" not in answer:
            break
    raise RuntimeError(answer or f"nvidia-smi failed with {done.returncode}")


def parse_nvidia(text: str) -> list[dict[str, str]]:
    """nvidia-smi's CSV, one dict for each GPU; what an older or newer driver didn't give is "[N/A]"."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    whole = [row + ["[N/A]"] * (len(FIELDS) - len(row)) for row in rows if len(row) in (BASIC, len(FIELDS))]
    return [dict(zip(FIELDS, row, strict=True)) for row in whole]


def driver(gpus: list[dict[str, str]] | None) -> list[Finding]:
    """The GPUs as the NVIDIA driver reports them, and what is wrong with them."""
    if gpus is None:
        return []
    if not gpus:
        what = "nvidia-smi is there but names no GPU"
        fix = "check the driver, or give the container its GPUs (--gpus all)"
        return [Finding(GROUP, "driver", "warn", what, fix)]
    names = ", ".join(sorted({gpu["name"] for gpu in gpus}))
    first = gpus[0]
    size = first["memory.total"]  # MiB
    size = gib(float(size) * 2**20) if size.replace(".", "").isdigit() else size
    what = f"{len(gpus)} x {names}, driver {first['driver_version']}, {size} each"
    findings = [Finding(GROUP, "driver", "ok", what, data={"gpus": gpus})]
    for name, (key, value, severity, meaning, fix) in STATES.items():
        if which := _which(gpus, key, value):
            findings.append(Finding(GROUP, name, severity, f"GPU {', '.join(which)} {meaning}", fix))
    return findings + [finding for check in (_errors, _width, _used) if (finding := check(gpus)) is not None]


def _which(gpus: list[dict[str, str]], key: str, value: str) -> list[str]:
    return [str(index) for index, gpu in enumerate(gpus) if gpu[key].lower() == value]


def _above(gpus: list[dict[str, str]], key: str, limit: int) -> dict[int, int]:
    """The whole numbers above `limit` of a field, by GPU."""
    numbers = {index: int(gpu[key]) for index, gpu in enumerate(gpus) if gpu[key].isdigit()}
    return {index: number for index, number in numbers.items() if number > limit}


def _errors(gpus: list[dict[str, str]]) -> Finding | None:
    key = "ecc.errors.uncorrected.volatile.total"
    if bad := _above(gpus, key, 0):
        counts = ", ".join(f"{index} ({errors})" for index, errors in bad.items())
        what = f"uncorrected memory errors on GPU {counts}"
        fix = "take it out of service: results can be wrong (nvidia-smi -q -d ECC)"
        return Finding(GROUP, "ecc", "problem", what, fix)
    if off := _which(gpus, "ecc.mode.current", "disabled"):
        what = f"error correction is off on GPU {', '.join(off)}: a flipped bit goes unnoticed"
        return Finding(GROUP, "ecc", "note", what, "sudo nvidia-smi -e 1, and restart, for long runs")
    on = _which(gpus, "ecc.mode.current", "enabled")
    return Finding(GROUP, "ecc", "ok", "error correction on, no uncorrected errors") if on else None


def _width(gpus: list[dict[str, str]]) -> Finding | None:
    now, most = "pcie.link.width.current", "pcie.link.width.max"
    widths = {str(index): (gpu[now], gpu[most]) for index, gpu in enumerate(gpus)}
    known = {index: pair for index, pair in widths.items() if all(map(str.isdigit, pair))}
    narrow = [index for index, (lanes, possible) in known.items() if int(lanes) < int(possible)]
    if not narrow:
        return None
    first = gpus[int(narrow[0])]
    what = f"GPU {', '.join(narrow)} has fewer PCIe lanes than it could ({first[now]} of {first[most]})"
    return Finding(GROUP, "pcie", "note", what, "use a full slot, or reseat the card, if copies to the GPU are slow")


def _used(gpus: list[dict[str, str]]) -> Finding | None:
    if not (busy := _above(gpus, "memory.used", 1024)):
        return None
    sizes = ", ".join(f"{index} ({gib(mib * 2**20)})" for index, mib in busy.items())
    what = f"memory of GPU {sizes} is in use already"
    return Finding(GROUP, "in use", "warn", what, "see who it is: nvidia-smi; a run has only what is left")


def torch_devices(torch: Any | None, gpus: list[dict[str, str]] | None, environ: Mapping[str, str]) -> list[Finding]:
    """The devices that torch can use, and why not where the driver sees more."""
    if torch is None:
        return []
    if torch.cuda.is_available():
        return _cuda(torch, gpus, environ)
    if torch.backends.mps.is_available():
        return [Finding(GROUP, "devices", "ok", "Apple's GPU (MPS): one process trains on it")]
    if gpus:
        what = f"the driver sees {counted(len(gpus), 'GPUs')}, and torch {torch.__version__} sees none"
        hidden = environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and hidden.strip() in {"", "-1"}:
            return [Finding(GROUP, "devices", "problem", what, "CUDA_VISIBLE_DEVICES hides them: unset it")]
        if torch.version.cuda is None and torch.version.hip is None:
            return [Finding(GROUP, "devices", "problem", what, "it is the CPU build: install torch with CUDA")]
        fix = f"it needs a driver for CUDA {torch.version.cuda}: update the driver, or take an older build"
        return [Finding(GROUP, "devices", "problem", what, fix)]
    return [Finding(GROUP, "devices", "note", "no GPU that torch can use: training runs on the CPU")]


def _cuda(torch: Any, gpus: list[dict[str, str]] | None, environ: Mapping[str, str]) -> list[Finding]:
    count = torch.cuda.device_count()
    facts = torch.cuda.get_device_properties(0)
    device = match_gpu(facts.name, facts.total_memory)
    capability = "" if torch.version.hip else f", compute capability {facts.major}.{facts.minor}"
    peaks = "published peaks known" if device else "no published peak known: rates are measured"
    what = f"torch sees {count} x {facts.name}, {gib(facts.total_memory)}{capability}; {peaks}"
    findings = [Finding(GROUP, "devices", "ok", what, data={"count": count, "device": device.id if device else None})]
    if gpus and len(gpus) > count:
        hidden = environ.get("CUDA_VISIBLE_DEVICES")
        why = f"CUDA_VISIBLE_DEVICES={hidden} hides the others" if hidden else "the others are hidden from it"
        findings.append(
            Finding(GROUP, "hidden", "note", f"the driver sees {counted(len(gpus), 'GPUs')}, torch {count}: {why}")
        )
    built = set(torch.cuda.get_arch_list())
    if built and not torch.version.hip and not any(_runs_on(arch, facts.major, facts.minor) for arch in built):
        what = f"torch {torch.__version__} has no code for compute capability {facts.major}.{facts.minor}"
        findings.append(Finding(GROUP, "build", "problem", what, "install a build of torch that has it"))
    return findings


def _runs_on(arch: str, major: int, minor: int) -> bool:
    """Whether code built for `arch` (sm_86, compute_90) runs on a device of that capability."""
    kind, _, number = arch.partition("_")
    digits = number.rstrip("af")
    if not digits.isdigit():
        return False
    built = (int(digits[:-1]), int(digits[-1]))
    return built <= (major, minor) if kind == "compute" else built[0] == major and built[1] <= minor
