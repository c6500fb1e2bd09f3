"""A diagnosis on the terminal: a bar a rank, the causes with their gain, the kernels that took the time.

rank 0  ██████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░········    compute 22%  communication 41%  memcpy 0%  idle 37%
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.cli.log_lines import STEPS, log_lines, step_rows
from scalewright.cli.nccl_lines import COMMUNICATOR, communicator_rows, nccl_lines
from scalewright.cli.output import print_table
from scalewright.spec.text.words import printable, short_time

BAR = 40
GIB = 1 << 30
MOST_RANKS, MOST_KERNELS = 16, 8
PARTS = (("compute", "█", "compute"), ("exposed_communication", "▒", "communication"),
         ("exposed_copy", "░", "memcpy"), ("idle", "·", "idle"))  # fmt: skip
CAUSES = {
    "host": "the host launches too slowly", "launch": "launch latency", "data": "loading data",
    "sync": "after a synchronisation", "other": "waiting for another stream, or unknown",
}  # fmt: skip


def show(answer: Mapping[str, Any]) -> None:
    """Prints the answer of `diagnose`."""
    kinds = {"trace": _trace, "flight_recorder": _flight, "memory": _memory, "nccl": _nccl,
             "log": _log, "run": _log}  # fmt: skip
    kinds[answer["kind"]](answer)
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
    _verdicts(answer["verdicts"])
    _kernels(answer["top_kernels"])


def _flight(answer: Mapping[str, Any]) -> None:
    print(f"{answer['entries']:,} collectives of {len(answer['ranks'])} ranks")
    if not answer["verdicts"]:
        print("no rank waits for another: no hang in these dumps")
    for number, verdict in enumerate(answer["verdicts"], 1):
        print(f"\n{number}. {verdict['cause']}")
        frames = [f"last called from {frame}" for frame in verdict["frames"] if frame]
        _paragraphs([*verdict["evidence"], *frames, "→ " + verdict["fix"]])


def _memory(answer: Mapping[str, Any]) -> None:
    memory = answer["memory"]
    allocated, reserved = memory["allocated_bytes"] / GIB, memory["reserved_bytes"] / GIB
    print(
        f"peak {memory['peak_gib']:.2f} GiB; at the end {allocated:.2f} GiB allocated of {reserved:.2f} "
        f"reserved, {memory['fragmentation_pct']:.0f}% of it free in pieces"
    )
    for number, verdict in enumerate(answer["verdicts"], 1):
        print(f"\n{number}. {verdict['cause']}")
        _paragraphs([*verdict["evidence"], "→ " + verdict["fix"]])
    print()
    rows = [[some["owner"], f"{some['bytes'] / GIB:.3f}"] for some in memory["top_stacks"][:MOST_KERNELS]]
    print_table(["at the peak, allocated by", "GiB"], rows)


def _nccl(answer: Mapping[str, Any]) -> None:
    print("\n".join(nccl_lines(answer["nccl"])))
    if not answer["verdicts"]:
        print("\nnothing in these lines slows or stops the run")
    for number, verdict in enumerate(answer["verdicts"], 1):
        print(f"\n{number}. {printable(verdict['cause'])} ({100 * verdict['confidence']:.0f}% sure)")
        _paragraphs([*verdict["evidence"], "→ " + verdict["fix"]])
    print()
    if rows := communicator_rows(answer["nccl"]["communicators"]):
        print_table(COMMUNICATOR, rows)


def _log(answer: Mapping[str, Any]) -> None:
    print("\n".join(log_lines(answer)))
    for number, verdict in enumerate(answer["verdicts"], 1):
        gain = verdict["gain_pct"]
        saves = f": saves {gain['p50']:.0f}% ({gain['p10']:.0f} to {gain['p90']:.0f}%)" if gain["p90"] else ""
        print(f"\n{number}. {printable(verdict['cause'])}{saves}")
        _paragraphs([*verdict["evidence"], "→ " + verdict["fix"]])
    if "nccl" in answer:
        print("\n" + "\n".join(nccl_lines(answer["nccl"])))
    print()
    if rows := step_rows(answer["log"]["steps"]):
        print_table(STEPS, rows)


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
    overlap = answer["communication"]["overlap_pct"]
    if overlap is not None:
        print(f"communication: {overlap:.1f}% of it hidden behind compute")
    for group in answer["communication"]["per_group"]:
        waits = max(group["wait_s"])
        print(
            f"  {printable(group['group'])}: {group['collectives']:,} collectives, transfer "
            f"{short_time(group['transfer_s'])}, waiting up to {short_time(waits)} a rank"
        )


def _verdicts(verdicts: Sequence[Mapping[str, Any]]) -> None:
    for number, verdict in enumerate(verdicts, 1):
        gain = verdict["gain_pct"]
        span = f"{gain['p10']:.0f} to {gain['p90']:.0f}%"
        print(f"\n{number}. {verdict['cause']}: saves {gain['p50']:.0f}% ({span})")
        _paragraphs([*verdict["evidence"], "→ " + verdict["fix"]])


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
