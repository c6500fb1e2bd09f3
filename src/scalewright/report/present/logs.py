"""Logs of training and of NCCL as blocks: how fast on what, whether that is as expected, what goes over what.

296.0 TFLOP/s a device (301.2 expected) on 128 devices of dgx-h100 with megatron-lm: as expected
layout    tp 8 · pp 4 · zero 1 · micro-batch 1 · batch 1,024 · sequences of 4,096 · bf16
a step    4.2 s: the median of 98 lines, without the first 2; expected 4.1 s (3.8 to 4.6 s)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from scalewright.report.document import JSON
from scalewright.report.present.blocks import Block, Line, Table
from scalewright.spec.common.formatting import MISSING, against, counted, decimal, short_time

STEPS = ("step", "time", "tokens/s", "TFLOP/s", "loss", "grad norm")
FIRST, LAST = 3, 3  # steps of the table
WORDS = {
    "zero_stage": "zero {}", "micro_batch": "micro-batch {}", "global_batch": "batch {:,}",
    "seq_len": "sequences of {:,}", "precision": "{}", "recompute": "recompute {}",
}  # fmt: skip
SIZES = ("tp", "pp", "virtual_stages", "dp", "dp_shard", "dp_replicate", "cp", "ep", "etp")
MOST_SETTINGS, MOST_LINKS = 12, 3
ON_OFF = {True: "on", False: "off", None: "not stated"}


def _lines(texts: Mapping[str, str]) -> Iterator[Line]:
    return (Line(label, text) for label, text in texts.items() if text)


def log_blocks(answer: JSON) -> Iterator[Block]:
    """What a log states of its run; nothing of what it doesn't."""
    log, expected = answer["log"], answer["expected"]
    yield from _lines({
        "model": _model(log),
        "layout": _layout({**(expected or {}).get("layout", {}), **log["layout"]}),
        "a step": _step(log["measured"], expected),
        "restarts": _restarts(log),
    })  # fmt: skip
    if "nccl" in answer:
        yield Line("NCCL", nccl_title(answer["nccl"]))
        yield from nccl_blocks(answer["nccl"])
    if rows := _step_rows(log["steps"]):
        used = [at for at in range(len(STEPS)) if any(row[at] not in (MISSING, "") for row in rows)]
        yield Table([STEPS[at] for at in used], [[row[at] for at in used] for row in rows], detail=True)


def _restarts(log: JSON) -> str:
    """`3: 2 x preempted, host out of memory`; empty without restarts."""
    ends = [f"{times} x {end}" if times > 1 else end for end, times in log.get("ended_before", {}).items()]
    return f"{log['restarts']:,}" + (f": {', '.join(ends)}" if ends else "") if log["restarts"] else ""


def _step_rows(steps: Sequence[JSON]) -> list[list[str]]:
    ends = [*steps] if len(steps) <= FIRST + LAST else [*steps[:FIRST], None, *steps[-LAST:]]
    return [["..."] + [""] * (len(STEPS) - 1) if step is None else _row(step) for step in ends]


def _row(step: JSON) -> list[str]:
    rate = step["tokens_per_s"]
    each = step["tokens_per_s_per_device"]
    number = MISSING if step["step"] is None else f"{step['step']:,}"
    tokens = f"{rate:,.0f}" if rate is not None else f"{each:,.0f} a device" if each is not None else MISSING
    figures = (decimal(step[key]) for key in ("tflops", "loss", "grad_norm"))
    return [number, short_time(step["step_time_s"]), tokens, *figures]


FEW = 3  # steps, of which no speed is quoted


def log_title(answer: JSON) -> str:
    """How fast, on what, and whether that is what one should get."""
    log, expected, ended = answer["log"], answer["expected"], answer.get("ended")
    if ended and len(log["steps"]) < FEW and ended["how"] != "finished":
        return ended["what"] if ended["how"] in ended["what"] else f"{ended['how']}: {ended['what']}"
    wanted = expected or {}
    count = log["devices"] or wanted.get("devices")
    kind = log["device"] or wanted.get("cluster") or ""
    where = f"{count:,} {kind}" if count and log["device"] else counted(count, "devices") if count else kind
    where += f" of {kind}" if count and kind and not log["device"] else ""
    trainer = f" with {log['framework']}" if log["framework"] else ""
    judged = f": {expected['verdict']}" if expected else ""
    speed = _speed(log)
    if wanted.get("tflops") and log["measured"]["tflops"]:
        speed += f" ({decimal(wanted['tflops'])} expected)"
    return speed + (f" on {where}" if where else "") + trainer + judged


def _speed(log: JSON) -> str:
    """The first of the figures that a log states, as people quote them."""
    measured = log["measured"]
    if measured["tflops"]:
        return f"{decimal(measured['tflops'])} TFLOP/s a device"
    for key, of in (("tokens_per_s_per_device", " a device"), ("tokens_per_s", "")):
        if measured[key]:
            return f"{measured[key]:,.0f} tokens/s{of}"
    if measured["step_time_s"]:
        return f"{short_time(measured['step_time_s'])} a step"
    return f"{counted(len(log['steps']), 'steps')} without their times" if log["steps"] else "no steps of training"


def _model(log: JSON) -> str:
    dims = log["dims"]
    shape = f"{counted(dims['layers'], 'layers')} of {dims['hidden']:,}" if {"layers", "hidden"} <= dims.keys() else ""
    return ", ".join(part for part in (str(log["model"] or ""), shape) if part)


def _layout(layout: JSON) -> str:
    parts = [f"{key.replace('_', ' ')} {layout[key]}" for key in SIZES if layout.get(key, 1) != 1]
    parts += [words.format(layout[key]) for key, words in WORDS.items() if key in layout]
    return " · ".join(parts)


def _step(measured: JSON, expected: JSON | None) -> str:
    parts = []
    if measured["step_time_s"] is not None:
        clock = ", by the clock of the lines" if measured["source"] == "clock" else ""
        first = f", without the first {measured['left_out']}" if measured["left_out"] else ""
        first += f", without {measured['traced']} that a profiler slowed" if measured.get("traced") else ""
        how = f"the median of {counted(measured['steps'], 'lines')}{clock}{first}"
        how = "the mean of the whole run, by its summary" if measured["source"] == "mean" else how
        parts.append(f"{short_time(measured['step_time_s'])}: {how}")
    if expected is not None:
        band = f"{short_time(expected['p10'])} to {short_time(expected['p90'])}"
        off = against(expected["measured_s"], expected["p50"])
        parts.append(
            f"expected {short_time(expected['p50'])} ({band}); by {expected['compared_by']} it is {off} against p50"
        )
    return "; ".join(parts)


def nccl_title(nccl: JSON) -> str:
    """`NCCL 2.21.5+cuda12.4: 16 ranks on 2 nodes, 24 channels`."""
    size = []
    if nccl["ranks"] is not None:
        nodes = f" on {counted(nccl['nodes'], 'nodes')}" if nccl["nodes"] is not None else ""
        size.append(counted(nccl["ranks"], "ranks") + nodes)
    if nccl["channels"] is not None:
        size.append(counted(nccl["channels"], "channels"))
    version = nccl["version"] or "version unknown"
    name = f"{nccl['library']} {version}" if nccl["version"] else f"{nccl['library']}, {version}"
    return name + (": " + ", ".join(size) if size else "")


def nccl_blocks(nccl: JSON) -> Iterator[Block]:
    """What goes over what, and what was set; nothing of what the log doesn't state."""
    ways = nccl["transports"]
    network = [f"network {ways['net']}"] if ways["net"] else []
    if ways["net"] not in (None, "Socket"):
        network.append(f"GPUDirect RDMA {ON_OFF[nccl['gdr']]}")
    plugin = [part for part in (nccl["plugin"], nccl["provider"] and f"provider {nccl['provider']}") if part]
    settings = [*nccl["environment"].items()][:MOST_SETTINGS]
    between = "; ".join(part for part in (links(ways["between"]), ", ".join(network)) if part)
    yield from _lines({
        "in a node": links(ways["within"]),
        "nodes" if nccl["nodes"] != 1 else "network": between,
        "adapters": _one_or_many(nccl["adapters"]),
        "interfaces": _one_or_many(nccl["interfaces"]),
        "plugin": ", ".join(plugin),
        "algorithms": _tuning(nccl["tuning"]),
        "set": ", ".join(f"{name}={value}" for name, value in settings),
    })  # fmt: skip


def links(counts: Mapping[str, int]) -> str:
    """`P2P/CUMEM/read 336, NET/IB 96`."""
    kinds = [f"{name} {count:,}" for name, count in counts.items()]
    more = len(kinds) - MOST_LINKS
    return ", ".join(kinds[:MOST_LINKS]) + (f" and {more} more" if more > 0 else "")


def _one_or_many(by_host: Mapping[str, Sequence[str]]) -> str:
    """What all hosts have; of hosts that differ the first's, and how many have something else."""
    if not by_host:
        return ""
    first = next(iter(by_host.values()))
    others = sum(settings != first for settings in by_host.values())
    return ", ".join(first) + (f"; {others} of {len(by_host)} hosts have others" if others else "")


def _tuning(rows: Sequence[JSON]) -> str:
    kinds = [f"{row['collective']} {row['algorithm']}/{row['protocol']} {row['count']:,}" for row in rows]
    return ", ".join(kinds[: 2 * MOST_LINKS])
