"""The GPU check's numbers as tables; what a part left out or failed at stands where its number would."""

from __future__ import annotations

from typing import Any

from harness.result import Result, table

STEP_HEADS = (
    "", "tokens/s", "MFU (causal)", "MFU (full)", "step ms (p20–p80)", "host ms", "GiB allocated", "reserved",
    "first step s", "ours / it", "attention",
)  # fmt: skip


def report(result: Result) -> None:
    """Writes the tables of every part that is there."""
    data = result.data
    result.say("## How it went", "", table(["part", "status", "seconds"], _statuses(data)))
    if "drift" in data:
        moved = data["drift"]
        result.say(
            f"Ceilings: {_ceilings(data)}. They moved by {moved['matmul_bf16_tflops']:+.1%} and"
            f" {moved['copy_gb']:+.1%}" + (": **the run is void**." if moved["void"] else ".")
        )
    if "tests" in data and isinstance(data["tests"].get("tests"), dict):
        rows = [
            [name, entry["outcome"], f"{entry['seconds']:.1f}"]
            for name, entry in data["tests"]["tests"].items()
        ]
        result.say("## Tests with a GPU parameter", "", table(["test", "outcome", "seconds"], rows))
    for name in ("steps-1b", "steps-0.5b"):
        if name in data:
            _steps(result, name, data[name])
    for name, columns in ROOFS:
        if name in data:
            found = [(key, entry) for key, entry in data[name].items() if isinstance(entry, dict)]
            rows = [_row(key, entry, tuple(columns)) for key, entry in found]
            result.say(f"## {name}", "", table(["", *columns.values()], rows))


ROOFS: tuple[tuple[str, dict[str, str]], ...] = (
    (
        "activations",
        {
            "forward_backward_ms": "forward and backward ms",
            "peak_gib": "peak GiB above the weights",
            "gradients_differ_by": "gradients differ by",
            "equal_bits": "same bits",
        },
    ),
    (
        "attention",
        {
            "forward_tflops": "forward TFLOP/s",
            "forward_backward_tflops": "with backward",
            "backends_launched": "ran",
        },
    ),
    (
        "gemm",
        {
            "forward": "forward TFLOP/s",
            "input_gradient": "input gradient",
            "weight_gradient": "weight gradient",
        },
    ),
    ("memory", {"per_s": "GB/s"}),
    (
        "losses",
        {
            "s": "ms",
            "tflops_of_three_products": "TFLOP/s",
            "extra_gib": "extra GiB",
            "loss_differs_by": "loss differs by",
        },
    ),
    ("fp8", {"per_s": "TFLOP/s", "relative_error": "error"}),
    ("mask-trap", {"finite": "finite", "relative_error_of_gradients": "errors of q, k, v"}),
)


def _statuses(data: dict[str, Any]) -> list[list[object]]:
    return [
        [name, entry["status"], entry["seconds"]]
        for name, entry in data.items()
        if isinstance(entry, dict) and "status" in entry and "seconds" in entry
    ]


def _ceilings(data: dict[str, Any]) -> str:
    start = data["ceilings"]["start"]
    matmul, copy = start["matmul_bf16_tflops"]["per_s"], start["copy_gb"]["per_s"]
    return f"{matmul:.0f} TFLOP/s in bf16 and a copy at {copy:.0f} GB/s at the start"


def _steps(result: Result, name: str, part: dict[str, Any]) -> None:
    peak = part.get("peak") or {}
    rows = []
    for racer, entry in part.items():
        if isinstance(entry, dict) and ("tokens_per_s" in entry or "skipped" in entry or "error" in entry):
            rows.append(_racer(racer, entry))
    flops = peak.get("flops")
    against = f"{flops / 1e12:.0f} TFLOP/s ({peak.get('source')})" if flops else str(peak.get("source"))
    result.say(
        f"## {name}",
        "",
        f"{part.get('parameters', 0) / 1e6:.0f}M parameters, {part.get('tokens_per_step')} tokens a step. "
        f"MFU is against {against}. Losses agree: {part.get('largest_loss_difference', {}).get('agree')}.",
        "",
        table(STEP_HEADS, rows),
    )


def _racer(name: str, entry: dict[str, Any]) -> list[object]:
    if "tokens_per_s" not in entry:
        return [name, str(entry.get("skipped") or entry.get("error")), *["–"] * (len(STEP_HEADS) - 2)]
    step, host = entry["step_s"], entry["host_launch_s_per_step"]
    faster = entry.get("ours_is_faster_by")
    return [
        name + (" (suspicious)" if entry["suspicious"] else ""),
        f"{entry['tokens_per_s']:.0f}",
        _percent(entry["mfu_causal"]),
        _percent(entry["mfu_full_attention"]),
        f"{step['median'] * 1e3:.1f} ({step['p20'] * 1e3:.1f}–{step['p80'] * 1e3:.1f})",
        f"{host['median'] * 1e3:.1f}",
        _gib(entry.get("peak_allocated_gib")),
        _gib(entry.get("peak_reserved_gib")),
        f"{entry['first_step_s']:.1f}",
        f"{faster['median']:.3f} ({faster['p20']:.3f}–{faster['p80']:.3f})" if faster else "–",
        ", ".join(entry.get("attention_launched", [])) or "unknown",
    ]


def _row(key: str, entry: dict[str, Any], columns: tuple[str, ...]) -> list[object]:
    if "error" in entry or "skipped" in entry:
        return [key, str(entry.get("error") or entry["skipped"]), *["–"] * (len(columns) - 1)]
    return [key, *(_cell(entry.get(column)) for column in columns)]


def _cell(value: Any) -> str:
    if isinstance(value, dict) and "per_s" in value:
        return f"{value['per_s']:.0f}"
    if isinstance(value, dict) and "median" in value:
        return f"{value['median'] * 1e3:.2f}"
    if isinstance(value, dict):
        return ", ".join(f"{part:.1e}" for part in value.values())
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "**no**"}.get(value, "–") if value is not None else "–"
    if isinstance(value, float):
        return f"{value:.3g}" if value < 10 else f"{value:.0f}"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _gib(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
