"""The GPU check's numbers as tables: `gpu-check.md` beside the results, and docs/gpu.md from committed ones.

python -m harness.gpu.report DIR      what a part left out or failed at stands where its number would
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness.gpu.parts import PARTS
from harness.gpu.store import read_json, write_text
from harness.result import facts_text, table

Columns = dict[str, str]
RATES: dict[str, Columns] = {
    "attention": {
        "forward_tflops": "forward TFLOP/s",
        "forward_backward_tflops": "with backward",
        "backends_launched": "ran",
    },
    "gemm": {"forward": "forward TFLOP/s", "input_gradient": "input gradient", "weight_gradient": "weight gradient"},
    "memory": {"per_s": "a second (GB, or launches)"},
    "activations": {
        "forward_backward_ms": "forward and backward ms",
        "peak_gib": "peak GiB above the weights",
        "gradients_differ_by": "gradients differ by",
        "equal_bits": "same bits",
    },
    "losses": {
        "s": "ms",
        "tflops_of_three_products": "TFLOP/s",
        "extra_gib": "extra GiB",
        "loss_differs_by": "loss differs by",
    },
    "optimizers": {
        "s": "ms",
        "per_s": "GB/s of its bytes",
        "bytes_a_parameter": "bytes a parameter",
        "extra_gib": "extra GiB",
    },
    "fp8": {"per_s": "TFLOP/s", "relative_error": "error"},
    "peaks": {
        "measured_gib": "measured GiB",
        "dry_run_gib": "dry run",
        "planned_gib": "plan",
        "dry_run_is": "dry run is off by",
    },
    "traces": {"first_cause": "first cause", "right": "right", "step_s": "step s"},
    "mask-trap": {"finite": "finite", "relative_error_of_gradients": "errors of q, k, v"},
}
STEP_HEADS = (
    "",
    "tokens/s",
    "MFU (causal)",
    "MFU (full)",
    "step ms (p20–p80)",
    "host ms",
    "GiB allocated",
    "first step s",
    "predicted ms (p10–p90)",
    "predicted GiB",
    "attention",
)


def page(state: dict[str, Any]) -> str:
    """All tables of a result."""
    visits = state["visits"]
    commits = sorted({str((visit.get("source") or {}).get("commit", "unknown"))[:12] for visit in visits})
    text = [
        f"# {state['title']}",
        "",
        f"Visits: {len(visits)}, from {visits[0]['started']} to {visits[-1]['started']}, "
        f"commit {', '.join(commits)}. The raw numbers are in the JSON file beside this.",
        "",
        facts_text(visits[-1]),
        "",
        "## How it went",
        "",
        table(["part", "status", "seconds", "limit", "since it is", "ceilings moved by"], _statuses(state)),
        "",
    ]
    for part in PARTS:
        record = state["parts"].get(part.name)
        if record and record.get("values"):
            text += [
                f"## {part.name}",
                "",
                part.answers[:1].upper() + part.answers[1:],
                "",
                *_tables(part.name, record),
                "",
            ]
    return "\n".join(text)


def _statuses(state: dict[str, Any]) -> list[list[object]]:
    rows = []
    for part in PARTS:
        record = state["parts"].get(part.name, {})
        moved = {} if state["visits"][-1]["quick"] else record.get("ceilings", {})
        drift = f"{moved['matmul_bf16_tflops']:+.1%}, {moved['copy_gb']:+.1%}" if "matmul_bf16_tflops" in moved else "–"
        doubtful = " (doubtful: more than 3%)" if moved.get("drifted") else ""
        rows.append(
            [
                part.name,
                record.get("status", "waits"),
                record.get("seconds", "–"),
                part.limit,
                part.why,
                drift + doubtful,
            ]
        )
    return rows


def _tables(name: str, record: dict[str, Any]) -> list[str]:
    values = {key: value for key, value in record["values"].items() if isinstance(value, dict)}
    if name.startswith("tests"):
        counts: dict[str, int] = {}
        for value in values.values():
            counts[value["outcome"]] = counts.get(value["outcome"], 0) + 1
        rows = [
            [key, value["outcome"], f"{value['seconds']:.1f}", _line(value.get("message", ""))]
            for key, value in values.items()
            if value["outcome"] != "passed"
        ]
        summary = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
        return [summary, *(["", table(["not passed", "outcome", "seconds", "reason"], rows)] if rows else [])]
    if name.startswith("steps"):
        return _steps(record["values"])
    if name == "profile":
        plan = values.get("plan", {})
        return [f"`cluster.yaml`; a plan of Llama-3.2-1B on it: {plan.get('step_time_s') or plan.get('error')}"]
    columns = RATES[name]
    return [table(["", *columns.values()], [_row(key, value, tuple(columns)) for key, value in values.items()])]


def _steps(values: dict[str, Any]) -> list[str]:
    peak = values.get("peak") or {}
    against = f"{peak['flops'] / 1e12:.0f} TFLOP/s ({peak['source']})" if peak.get("flops") else str(peak.get("source"))
    rows, ratios = [], []
    for rival, value in values.items():
        if not isinstance(value, dict) or rival in ("peak", "model"):
            continue
        if "error" in value or "skipped" in value:
            rows.append([rival, str(value.get("error") or value["skipped"]), *["–"] * (len(STEP_HEADS) - 2)])
            continue
        entries = (
            {rival: value}
            if "tokens_per_s" in value
            else {k: v for k, v in value.items() if k in ("scalewright", rival)}
        )
        rows += [
            _racer(f"{name} (beside {rival})" if name == "scalewright" else name, entry)
            for name, entry in entries.items()
        ]
        if "ours_is_faster_by" in value:
            ratio, how = (value["ours_is_faster_by"], "in turns" if value["in_turns"] else "one after the other")
            agree = "yes" if value["losses"].get("agree") else "**no**"
            ratios.append([rival, f"{ratio['median']:.3f} ({ratio['p20']:.3f}–{ratio['p80']:.3f})", how, agree])
    model = values.get("model", {})
    return [
        f"{model.get('name')}: {values.get('parameters', 0) / 1e6:.0f}M parameters, "
        f"{values.get('tokens_per_step')} tokens a step. MFU is against {against}.",
        "",
        table(STEP_HEADS, rows),
        *(["", table(["its step time / ours", "", "measured", "losses agree"], ratios)] if ratios else []),
    ]


def _racer(name: str, entry: dict[str, Any]) -> list[object]:
    step, host, predicted = entry["step_s"], entry["host_launch_s_per_step"], entry.get("predicted")
    times = predicted["step_time_s"] if predicted else None
    return [
        name + (" (suspicious)" if entry["suspicious"] else ""),
        f"{entry['tokens_per_s']:.0f}",
        _percent(entry["mfu_causal"]),
        _percent(entry["mfu_full_attention"]),
        f"{step['median'] * 1e3:.1f} ({step['p20'] * 1e3:.1f}–{step['p80'] * 1e3:.1f})",
        f"{host['median'] * 1e3:.1f}",
        _gib(entry.get("peak_allocated_gib")),
        f"{entry['first_step_s']:.1f}",
        f"{times['p50'] * 1e3:.1f} ({times['p10'] * 1e3:.1f}–{times['p90'] * 1e3:.1f})" if times else "–",
        _gib(predicted["memory_gib"] if predicted else None),
        ", ".join(entry.get("attention_launched", [])) or "unknown",
    ]


def _row(key: str, entry: dict[str, Any], columns: tuple[str, ...]) -> list[object]:
    if "error" in entry or "skipped" in entry:
        return [key, _line(str(entry.get("error") or entry["skipped"])), *["–"] * (len(columns) - 1)]
    return [key, *(_cell(entry.get(column)) for column in columns)]


def _line(text: str) -> str:
    """One cell's worth of a message: its last line, without a table's bars."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1].replace("|", "/")[:200] if lines else ""


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
        return f"{value:.3g}" if abs(value) < 10 else f"{value:.0f}"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _gib(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_text(folder / "gpu-check.md", page(read_json(folder / "gpu-check.json")) + "\n")
