"""The machine's real rates, measured in about a second: products, copies, and whether bf16 is worth it.

All products are of the same rounds (`probe.compare_bf16`), and medians are shown: the two rates and their ratio agree.
On a machine that others keep busy, or whose rounds differ, rates are shown and nothing is concluded from them.
"""

from __future__ import annotations

from typing import Any

from scalewright.machine.load import loaded, mark, others_busy
from scalewright.machine.probe import Bf16Speed, Rate, compare_bf16, copy_rate, matmul_rate
from scalewright.machine.processor import Processor
from scalewright.spec.common.formatting import metric
from scalewright.spec.errors import Finding
from scalewright.spec.hardware.devices import match_gpu

GROUP = "speed"
UNEVEN = 1.5  # the upper quartile of the rounds' times over the lower one; 1.02 on an idle machine


def main_device(torch: Any | None) -> str:
    """Where a run would compute: cuda:0, mps or cpu."""
    if torch is None:
        return "cpu"
    return "cuda:0" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def rates(torch: Any | None, device: str, processor: Processor, others: float | None = None) -> list[Finding]:
    """Products in fp32 and bf16 beside the published peak where there is one, what `precision: auto` means, and copies.
    `others`: cores that others keep busy; null: counted meanwhile."""
    quiet = mark()
    speed, copy = compare_bf16(device, seconds=0.5), copy_rate(device, seconds=0.1)
    measured = {"fp32": matmul_rate("fp32", device, seconds=0.2)} if speed is None else {}
    others = others_busy(quiet) if others is None else others
    why = loaded(processor, others) if device == "cpu" else ""
    if speed is not None:
        if not why and speed.spread > UNEVEN:
            why = f"the same product takes {speed.spread:.1f} times as long from one moment to the next"
        threads = torch.get_num_threads() if torch is not None and device == "cpu" else None
        for name, rate in (("fp32", speed.fp32_per_s), ("bf16", speed.bf16_per_s)):
            measured[name] = Rate(f"matmul {name}", rate, rate, speed.rounds, speed.how, threads)
    findings = [
        _rate(f"matmul {name}", rate, f" in {name}{_of_peak(torch, device, name, rate)}", why)
        for name, rate in measured.items() if rate is not None
    ]  # fmt: skip
    return [*findings, _bf16(speed, why), _rate("copy", copy, "", why)]


def _rate(name: str, rate: Rate, more: str, why: str) -> Finding:
    unit = "B/s" if name == "copy" else "FLOP/s"
    what = f"{metric(rate.median_per_s, unit)}{more} ({rate.how.replace('best of', 'median of')})"
    data = {**vars(rate), "judged": not why}
    if why:
        return Finding(GROUP, name, "note", f"not judged, as {why}: {what}", "measure again when it is idle", data)
    return Finding(GROUP, name, "ok", what, data=data)


def _of_peak(torch: Any | None, device: str, precision: str, rate: Rate) -> str:
    if torch is None or not device.startswith("cuda"):
        return ""
    facts = torch.cuda.get_device_properties(device)
    known = match_gpu(facts.name, facts.total_memory)
    peak = known.peak(precision) if known else None
    return f", {100 * rate.median_per_s / peak:.0f}% of the published {metric(peak, 'FLOP/s')}" if peak else ""


def _bf16(speed: Bf16Speed | None, why: str) -> Finding:
    """The precision that `precision: auto` means here, and why."""
    if speed is None:
        return Finding(GROUP, "bf16", "note", "bf16 cannot be measured here: precision auto means fp32")
    if why:
        what = f"not judged, as {why}: precision auto is measured by each `train` at its start"
        return Finding(GROUP, "bf16", "note", what, "set layout.precision to have the same in every run", speed.dump())
    return Finding(GROUP, "bf16", "ok", speed.describe(), data=speed.dump())
