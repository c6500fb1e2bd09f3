"""The machine's real rates, measured in about a second: matmuls, copies, and whether bf16 is worth it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from scalewright.machine.probe import compare_bf16, copy_rate, matmul_rate
from scalewright.spec.common.formatting import metric
from scalewright.spec.errors import Finding
from scalewright.spec.hardware.devices import match_gpu

GROUP = "speed"


def main_device(torch: Any | None) -> str:
    """Where a run would compute: cuda:0, mps or cpu."""
    if torch is None:
        return "cpu"
    return "cuda:0" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def matmul(torch: Any | None, device: str) -> list[Finding]:
    """fp32 and bf16 matmul rates, beside the published peak where there is one."""
    known = None
    if torch is not None and device.startswith("cuda"):
        facts = torch.cuda.get_device_properties(device)
        known = match_gpu(facts.name, facts.total_memory)
    findings = []
    for precision in ("fp32", "bf16"):
        if (measured := matmul_rate(precision, device, seconds=0.2)) is None:
            continue
        what = f"{metric(measured.per_s, 'FLOP/s')} in {precision}"
        peak = known.peak(precision) if known else None
        if peak:
            what += f", {100 * measured.per_s / peak:.0f}% of the published {metric(peak, 'FLOP/s')}"
        findings.append(Finding(GROUP, f"matmul {precision}", "ok", f"{what} ({measured.how})", data=asdict(measured)))
    return findings


def copies(device: str) -> Finding:
    measured = copy_rate(device, seconds=0.1)
    return Finding(GROUP, "copy", "ok", f"{metric(measured.per_s, 'B/s')} ({measured.how})", data=asdict(measured))


def bf16(device: str) -> Finding:
    """The precision that `precision: auto` means here, and why."""
    if (speeds := compare_bf16(device, seconds=0.3)) is None:
        return Finding(GROUP, "bf16", "note", "bf16 cannot be measured here: precision auto means fp32")
    return Finding(GROUP, "bf16", "ok", speeds.describe(), data=speeds.dump())
