"""A diagnosis on the terminal: a bar a rank, the causes with their gain, the kernels that took the time.

rank 0  ██████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░········    compute 22%  communication 41%  memcpy 0%  idle 37%
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from scalewright.cli.comparison import show_against, show_what_if
from scalewright.cli.log_lines import STEPS, log_lines, step_rows
from scalewright.cli.nccl_lines import COMMUNICATOR, communicator_rows, nccl_lines
from scalewright.cli.ncu_lines import HEADS, first_line, kernel_rows
from scalewright.cli.output import print, print_table
from scalewright.spec.common.formatting import counted, metric, printable, short_time

BAR = 40
GIB = 1 << 30
UNEVEN = 1.1  # times the usual layer, which is worth a word
MOST_RANKS, MOST_KERNELS, MOST_RATES, MOST_GROUPS = 16, 8, 4, 6
PARTS = (("compute", "█", "compute"), ("exposed_communication", "▒", "communication"),
         ("exposed_copy", "░", "memcpy"), ("idle", "·", "idle"))  # fmt: skip
CAUSES = {
    "host": "the host launches too slowly", "launch": "launch latency", "data": "loading data",
    "sync": "after a synchronisation", "other": "waiting for another stream, or unknown",
}  # fmt: skip


def show(answer: Mapping[str, Any]) -> None:
    """Prints the answer of `diagnose`."""
    kinds = {"trace": _trace, "flight_recorder": _flight, "memory": _memory, "nccl": _nccl,
             "log": _log, "run": _log, "kernels": _ncu}  # fmt: skip
    kinds[answer["kind"]](answer)
    show_what_if(answer.get("what_if", ()))
    if "against" in answer:
        show_against(answer["against"])
    for line in answer["warnings"]:
        print(f"note: {printable(line)}")


def _trace(answer: Mapping[str, Any]) -> None:
    ranks = answer["per_rank"]
    where = f" on {printable(answer['device'])}" if answer["device"] else ""
    count = f"{len(ranks)} ranks" if len(ranks) > 1 else "one rank"
    print(f"{short_time(answer['window_s'])} of {count}{where}; bound by {answer['bound_by']}\n")
    for rank in ranks[:MOST_RANKS]:
        print(_line(rank, name=rank["file"] if rank["rank"] is None else f"rank {rank['rank']}"))
    if len(ranks) > MOST_RANKS:
        print(f"... {len(ranks) - MOST_RANKS} more with --json; the mean of all:")
        print(_line(answer, name="mean"))
    print("\n" + "   ".join(f"{sign} {word}" for _, sign, word in PARTS) + "  (exposed: nothing hides them)")
    _idle(answer)
    _roofs(answer.get("roofs"))
    _traced_memory(answer.get("memory"))
    _verdicts(answer["verdicts"])
    _kernels(answer["top_kernels"])


def _flight(answer: Mapping[str, Any]) -> None:
    print(f"{answer['entries']:,} collectives of {len(answer['ranks'])} ranks")
    if not answer["verdicts"]:
        print("no rank waits for another: no hang in these dumps")
    _verdicts(answer["verdicts"])


def _memory(answer: Mapping[str, Any]) -> None:
    memory = answer["memory"]
    reserved = ""
    if memory["reserved_bytes"] is not None:
        pieces = memory["fragmentation_pct"]
        reserved = f" of {memory['reserved_bytes'] / GIB:.2f} reserved, {pieces:.0f}% of it free in pieces"
    allocated = memory["allocated_bytes"] / GIB
    print(f"peak {memory['peak_gib']:.2f} GiB; at the end {allocated:.2f} GiB allocated{reserved}")
    _verdicts(answer["verdicts"])
    rows = [[stack["owner"], f"{stack['bytes'] / GIB:.3f}"] for stack in memory["top_stacks"][:MOST_KERNELS]]
    if rows:
        print()
        print_table(["at the peak, allocated by", "GiB"], rows)


def _nccl(answer: Mapping[str, Any]) -> None:
    print("\n".join(nccl_lines(answer["nccl"])))
    if not answer["verdicts"]:
        print("\nnothing in these lines slows or stops the run")
    _verdicts(answer["verdicts"])
    print()
    if rows := communicator_rows(answer["nccl"]["communicators"]):
        print_table(COMMUNICATOR, rows)


def _log(answer: Mapping[str, Any]) -> None:
    print("\n".join(log_lines(answer)))
    _verdicts(answer["verdicts"])
    if "nccl" in answer:
        print("\n" + "\n".join(nccl_lines(answer["nccl"])))
    print()
    if rows := step_rows(answer["log"]["steps"]):
        print_table(STEPS, rows)


def _ncu(answer: Mapping[str, Any]) -> None:
    print(first_line(answer))
    _verdicts(answer["verdicts"])
    print()
    print_table(HEADS, kernel_rows(answer["kernels"]))


def _paragraphs(lines: Sequence[str]) -> None:
    width = min(110, shutil.get_terminal_size((100, 24)).columns)
    for line in lines:
        print(textwrap.fill(printable(line), width, initial_indent="   ", subsequent_indent="     "))


def bar(parts: Mapping[str, float], width: int = BAR) -> str:
    """The four parts as a bar of `width` characters; edges are rounded, so that it is always full."""
    text, done = "", 0.0
    for key, sign, _ in PARTS:
        done += parts[key]
        text += sign * (round(done * width / 100) - len(text))
    return text


def _line(rank: Mapping[str, Any], name: str) -> str:
    parts = rank["breakdown_pct"]
    figures = "  ".join(f"{word} {parts[key]:.1f}%" for key, _, word in PARTS)
    return f"{printable(name):>8.24}  {bar(parts)}  {figures}"


def _idle(answer: Mapping[str, Any]) -> None:
    causes = {cause: share for cause, share in answer["idle_causes_pct"].items() if share >= 0.5}
    if causes:
        lines = sorted(causes.items(), key=lambda item: -item[1])
        print("idle: " + ", ".join(f"{CAUSES[cause]} {share:.1f}%" for cause, share in lines))
    phases = {name: share for name, share in (answer.get("phases_pct") or {}).items() if share >= 0.5}
    if phases:
        print("phases: " + ", ".join(f"{name} {share:.1f}%" for name, share in phases.items()))
    if layers := answer.get("layers"):
        print(_layers(layers))
    if pipeline := answer.get("pipeline"):
        stages = ", ".join(
            f"{1e3 * (row['forward_s'] + row['backward_s']):.1f}" for row in pipeline["stages"]
        )
        print(
            f"pipeline: bubble {pipeline['bubble_pct']:.1f}% of the rank that waits most, "
            f"{pipeline['schedule_bubble_pct']:.1f}% by {pipeline['schedule']} with equal stages; "
            f"{stages} ms a micro-batch by stage"
        )
    overlap = answer["communication"]["overlap_pct"]
    if overlap is not None:
        print(f"communication: {overlap:.1f}% of it hidden behind compute")
    groups = sorted(
        answer["communication"]["per_group"], key=lambda group: -group["transfer_s"] - max(group["wait_s"])
    )
    for group in groups[:MOST_GROUPS]:
        waits = max(group["wait_s"])
        print(
            f"  {printable(group['group'])}: {group['collectives']:,} collectives, transfer "
            f"{short_time(group['transfer_s'])}, waiting up to {short_time(waits)} a rank"
        )
    if len(groups) > MOST_GROUPS:
        print(f"  and {counted(len(groups) - MOST_GROUPS, 'groups')} with less (--json has all)")
    for rate in answer["communication"].get("bandwidths", [])[:MOST_RATES]:
        print(f"  {_bandwidth(rate)}")


def _layers(layers: Sequence[Mapping[str, Any]]) -> str:
    """One line: the usual layer, and the one that takes most where that is another."""
    most = max(layers, key=lambda layer: float(layer["share_pct"]))
    usual = median(layer["share_pct"] for layer in layers)
    line = f"layers: {counted(len(layers), 'layer')}, the median {usual:.1f}%"
    if most["share_pct"] > UNEVEN * usual:
        line += f", {printable(most['layer'])} {most['share_pct']:.1f}%"
    return line


def _bandwidth(rate: Mapping[str, Any]) -> str:
    """One kind of collective of a group: its size, its bus bandwidth, the link's."""
    link = f" of a link's {metric(rate['link_bytes_per_s'], 'B/s')}" if rate["link_bytes_per_s"] else ""
    waiting = ", waiting for other ranks in it" if rate["with_waiting"] else ""
    group = printable(rate["group"].partition(" [")[0])
    bus = metric(rate["busbw_bytes_per_s"], "B/s")
    return (
        f"{group}: {rate['kind']} of {metric(rate['largest_bytes'], 'B')}, bus bandwidth {bus}{link}{waiting}"
    )


def _roofs(roofs: Mapping[str, Any] | None) -> None:
    """One line, where the trace has shapes."""
    if roofs is not None:
        print(
            f"products and attention: {roofs['of_roof_pct']:.0f}% of the device's roof while they run, "
            f"{roofs['of_peak_pct']:.0f}% of its peak over the window"
        )


def _traced_memory(memory: Mapping[str, Any] | None) -> None:
    """One line, where the trace follows memory."""
    if memory is None:
        return
    since = " more than at the start" if memory["since_the_recording"] else ""
    parts = [f"{stack['bytes'] / GIB:.2f} {printable(stack['owner'])}" for stack in memory["top_stacks"][:3]]
    held = f": {', '.join(parts)}" if parts else ""
    print(
        textwrap.shorten(f"memory: peak {memory['peak_gib']:.2f} GiB{since}{held}", 110, placeholder=" ...")
    )


def _verdicts(verdicts: Sequence[Mapping[str, Any]]) -> None:
    from scalewright.diagnose.verdict import evidence_of, saves

    for number, verdict in enumerate(verdicts, 1):
        gain = f": {saves(verdict)}" if saves(verdict) else ""
        sure = f" ({100 * verdict['confidence']:.0f}% sure)" if "confidence" in verdict and not gain else ""
        print(f"\n{number}. {printable(verdict['cause'])}{gain}{sure}")
        _paragraphs([*evidence_of(verdict), "→ " + verdict["fix"]])


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> None:
    if not kernels:
        return
    print()
    width = max(shutil.get_terminal_size((80, 24)).columns - 52, 24)  # beside the other four columns
    rows = [
        [
            k["short_name"][:width],
            k["kind"],
            f"{k['count']:,}",
            f"{k['mean_us']:,.1f}",
            f"{k['share_pct']:.1f}",
        ]
        for k in kernels[:MOST_KERNELS]
    ]
    print_table(["kernel", "kind", "count", "mean, µs", "% of kernels"], rows)
