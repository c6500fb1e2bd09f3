"""The peak FLOP/s that MFU refers to, and its source: without them an MFU can't be compared."""

from __future__ import annotations

from scalewright.report.folder import RunFolder


def peak_note(run: RunFolder) -> str:
    """`989 TFLOP/s a device (H100 SXM, bf16, vendor)`; empty where the run noted no peak."""
    flops = run.said("peak_flops")
    if not isinstance(flops, (int, float)) or flops <= 0:
        return ""
    details = [run.said("peak_device"), run.said("precision"), run.said("peak_source")]
    inside = ", ".join(str(detail) for detail in details if detail)
    value = f"{flops / 1e12:.4g} TFLOP/s" if flops >= 1e12 else f"{flops / 1e9:.4g} GFLOP/s"
    return f"{value} a device" + (f" ({inside})" if inside else "")
