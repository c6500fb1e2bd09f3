"""A diagnosis as blocks: the first cause with its fix, then what was measured, all causes, tables.

14.1 ms of 4 ranks on NVIDIA A100-SXM4-80GB; bound by straggler
cause     straggler: saves 22% (11 to 22%)
how sure  the others wait 3.0 ms for rank 2, late in 16 of 16 collectives: its kernels take longer
next      look at rank 2: its clock, temperature and power, or its share of the work
assumed   a fix changes nothing else; shares of the window, clocks aligned by collectives
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from scalewright.diagnose.verdict import evidence_of, saves
from scalewright.report.document import JSON
from scalewright.report.present.blocks import Block, Line, Note, Part, Shown, Stacks
from scalewright.report.present.comparison import show_against, show_what_if
from scalewright.report.present.logs import log_blocks, log_title, nccl_blocks, nccl_title
from scalewright.report.present.tables import tables
from scalewright.spec.common.formatting import counted, short_time

GIB = 1 << 30
UNEVEN = 1.1  # times the usual layer, which is worth a word
MOST_RANKS = 64  # bars; of more ranks the first
FEW = 3  # causes that are shown unasked
ON_A_NODE = 8  # ranks whose bars are, below their mean
IDLE = {
    "host": Part("idle: the host launches too slowly", "·", 7),
    "launch": Part("idle: launch latency", "·", 3),
    "data": Part("idle: loading data", "·", 8),
    "sync": Part("idle: after a synchronisation", "·", 1),
    "other": Part("idle: waiting for another stream, or unknown", "·", 9),
}
BUSY = {
    "compute": Part("compute", "█", 0),
    "exposed_communication": Part("communication (exposed)", "▒", 5),
    "exposed_copy": Part("memcpy (exposed)", "░", 2),
}
NO_CAUSE = {
    "flight_recorder": "none: no rank waits for another, no hang in these dumps",
    "nccl": "none: nothing in these lines slows or stops the run",
}
ASSUMED = {
    "trace": "a fix changes nothing else; clocks are aligned by collectives; exposed: nothing hides it",
    "flight_recorder": "each dump holds the newest collectives of its rank",
    "memory": "what memory was for is judged by the code that allocated it",
    "kernels": "other launches of a kernel are like those that were measured",
    "nccl": "a log of some ranks is like that of the others",
}
LIKE_OTHERS = "the steps of these lines are like the others"
AFTER = "a trace of the run shows where its time goes: scalewright record -- COMMAND"


def show_diagnosis(answer: JSON) -> Shown:
    """The answer of `diagnose`."""
    title, _ = KINDS[answer["kind"]]
    change = [*show_what_if(answer.get("what_if") or ()), *show_against(answer.get("against"))]
    rest = [*measured(answer), *cause_notes(answer["verdicts"]), *tables(answer)]
    notes = [Line("note", line) for line in answer["warnings"]]
    return Shown(title(answer), head(answer), [*change, *rest, *notes, *words_for(answer["verdicts"])])


def measured(answer: JSON) -> list[Block]:
    """What was measured: a bar a rank, and lines."""
    return [*KINDS[answer["kind"]][1](answer)]


def cause_notes(verdicts: Sequence[JSON]) -> list[Note]:
    """The causes in the order of their gains; the first few are shown unasked."""
    gains = [verdict["gain_pct"]["p90"] for verdict in verdicts if verdict.get("gain_pct")]
    largest, notes = max(gains, default=0.0) or 1.0, []
    for number, verdict in enumerate(verdicts, 1):
        gain = verdict.get("gain_pct")
        low, middle, high = (max(gain[key], 0) / largest for key in ("p10", "p50", "p90")) if gain else (0, 0, 0)
        lines = [*evidence_of(verdict), f"→ {verdict['fix']}"]
        span = (low, middle, high) if high else None
        notes.append(Note(f"{number}. {headline(verdict)}", lines, detail=number > FEW, gain=span))
    return notes


WORDS = {  # causes that are words of the field
    "straggler", "bubble", "stages", "link", "communication", "data", "sync", "host", "host function", "launch",
    "short kernels", "compilation", "idle",
}  # fmt: skip


def words_for(verdicts: Sequence[JSON]) -> list[Line]:
    """The commands that have more on the causes, where these are words of the field."""
    causes = [verdict["cause"] for verdict in verdicts if verdict["cause"] in WORDS]
    return [Line("words", ", ".join(f"scalewright explain {cause}" for cause in causes), detail=True)] if causes else []


def headline(verdict: JSON) -> str:
    """`straggler: saves 22% (11 to 22%)`; of a cause that costs no time, how sure it is."""
    if gain := saves(verdict):
        return f"{verdict['cause']}: {gain}"
    sure = verdict.get("confidence")
    return str(verdict["cause"]) + (f" ({100 * sure:.0f}% sure)" if sure is not None else "")


UNTOLD = "; no line tells of an end: it goes on, or was ended from outside, which the scheduler (sacct) or dmesg tells"


def head(answer: JSON) -> list[Line]:
    """The first cause, its evidence and its fix, and what was assumed."""
    assumed = ", ".join((answer.get("expected") or {}).get("assumed") or ())
    timed = answer["kind"] in ("trace", "log", "run")
    if answer["kind"] == "log" and not answer["log"]["steps"]:
        assumed = assumed or "nothing: no step was read"
    last = Line("assumed", assumed or ASSUMED.get(answer["kind"], LIKE_OTHERS), listed=True)
    if answer["verdicts"]:
        first = answer["verdicts"][0]
        evidence = "; ".join(evidence_of(first)) or "its pattern alone"
        cause, sure = Line("cause", headline(first), "warn"), Line("how sure", evidence, listed=True)
        return [cause, sure, Line("next", first["fix"], listed=True), last]
    none = NO_CAUSE.get(answer["kind"], "none above its threshold")
    unread = answer["kind"] in ("log", "run") and not answer["log"]["steps"]
    cause = Line("cause", "none can be told: no step was read", "warn") if unread else Line("cause", none, "good")
    hints = [line for line in answer["warnings"] if unread or "add --" in line]
    usual = AFTER if not timed or answer.get("against") else "--against OTHER compares it with another run"
    return [cause, Line("how sure", _seen(answer)), Line("next", hints[0] if hints else usual, listed=True), last]


def _seen(answer: JSON) -> str:
    """How much was read, where no cause was found."""
    steps = answer.get("steps") or (answer.get("log") or {}).get("steps") or ()
    if steps or "log" in answer:
        open_end = UNTOLD if answer["kind"] == "log" and steps and answer["ended"] is None else ""
        return f"{counted(len(steps), 'steps')} read{open_end}" + ("" if steps else ", so nothing is sure")
    return "all that the files hold was read"


def rank_name(rank: JSON) -> str:
    """`rank 3`; the file's name where no rank is known."""
    return str(rank["file"]) if rank["rank"] is None else f"rank {rank['rank']}"


def _trace_title(answer: JSON) -> str:
    ranks = len(answer["per_rank"])
    where = f" on {answer['device']}" if answer["device"] else ""
    count = f"{ranks} ranks" if ranks > 1 else "one rank"
    return f"{short_time(answer['window_s'])} of {count}{where}; bound by {answer['bound_by']}"


def _trace(answer: JSON) -> Iterator[Block]:
    yield ranks_bars(answer)
    causes = {name: share for name, share in answer["idle_causes_pct"].items() if share >= 0.5}
    yield from _shares("idle", {IDLE[name].name.removeprefix("idle: "): share for name, share in causes.items()})
    yield from _shares("phases", answer.get("phases_pct") or {}, detail=True)
    if layers := answer.get("layers"):
        yield Line("layers", _layers(layers), detail=True)
    if pipeline := answer.get("pipeline"):
        yield Line("pipeline", _pipeline(pipeline))
    if (overlap := answer["communication"]["overlap_pct"]) is not None:
        yield Line("hidden", f"{overlap:.1f}% of the communication, behind compute", detail=True)
    if roofs := answer.get("roofs"):
        of_roof, of_peak = roofs["of_roof_pct"], roofs["of_peak_pct"]
        text = f"{of_roof:.0f}% of the device's roof while they run, {of_peak:.0f}% of its peak in all"
        yield Line("roofs", f"products and attention: {text}", detail=True)
    if memory := answer.get("memory"):
        since = " more than at the start" if memory["since_the_recording"] else ""
        parts = [f"{stack['bytes'] / GIB:.2f} {stack['owner']}" for stack in memory["top_stacks"][:3]]
        held = f": {', '.join(parts)}" if parts else ""
        yield Line("memory", f"peak {memory['peak_gib']:.2f} GiB{since}{held}", listed=True)


def ranks_bars(answer: JSON) -> Stacks:
    """The window of every rank in its parts; the mean first, where there are several."""
    ranks, rows = [(rank_name(rank), rank) for rank in answer["per_rank"]], []
    left = len(ranks) - MOST_RANKS
    if len(ranks) > 4:
        ranks.insert(0, ("mean", answer))
    for name, rank in ranks[:MOST_RANKS]:
        parts, causes = rank["breakdown_pct"], rank["idle_causes_pct"]
        rows.append((name, [*(parts[key] for key in BUSY), *(causes[key] for key in IDLE)]))
    note = f"{left} more ranks are left out; the mean has them" if left > 0 else ""
    return Stacks([*BUSY.values(), *IDLE.values()], rows, note=note, few=1 + ON_A_NODE)


def _shares(label: str, shares: dict[str, float], detail: bool = False) -> Iterator[Line]:
    largest = sorted(((name, share) for name, share in shares.items() if share >= 0.5), key=lambda item: -item[1])
    if largest:
        yield Line(label, ", ".join(f"{name} {share:.1f}%" for name, share in largest), detail=detail)


def _pipeline(pipeline: JSON) -> str:
    stages = ", ".join(f"{1e3 * (row['forward_s'] + row['backward_s']):.1f}" for row in pipeline["stages"])
    return (
        f"bubble {pipeline['bubble_pct']:.1f}% of the rank that waits most, "
        f"{pipeline['schedule_bubble_pct']:.1f}% by {pipeline['schedule']} with equal stages; "
        f"{stages} ms a micro-batch by stage"
    )


def _layers(layers: Sequence[JSON]) -> str:
    """The usual layer, and the one that takes most where that is another."""
    most = max(layers, key=lambda layer: float(layer["share_pct"]))
    usual = median(layer["share_pct"] for layer in layers)
    line = f"{counted(len(layers), 'layer')}, the median {usual:.1f}%"
    return line + (f", {most['layer']} {most['share_pct']:.1f}%" if most["share_pct"] > UNEVEN * usual else "")


def _flight_title(answer: JSON) -> str:
    return f"{counted(answer['entries'], 'collectives')} of {counted(len(answer['ranks']), 'ranks')}"


def _memory_title(answer: JSON) -> str:
    memory = answer["memory"]
    text = f"peak {memory['peak_gib']:.2f} GiB; at the end {memory['allocated_bytes'] / GIB:.2f} GiB allocated"
    if memory["reserved_bytes"] is None:
        return text
    pieces = f"{memory['fragmentation_pct']:.0f}% of it free in pieces"
    return f"{text} of {memory['reserved_bytes'] / GIB:.2f} reserved, {pieces}"


def _kernels_title(answer: JSON) -> str:
    times = [row["time_s"] for row in answer["kernels"] if row["time_s"] is not None]
    took = f", {short_time(sum(times))}" if times else ""
    capability = answer["compute_capability"]
    device = f" on compute capability {capability}" if capability else ""
    return f"{answer['launches']:,} launches of {counted(len(answer['kernels']), 'kernels')}{took}{device}"


def _no_blocks(answer: JSON) -> Iterator[Block]:
    return iter(())


KINDS: dict[str, tuple[Callable[[JSON], str], Callable[[JSON], Iterator[Block]]]] = {
    "trace": (_trace_title, _trace),
    "flight_recorder": (_flight_title, _no_blocks),
    "memory": (_memory_title, _no_blocks),
    "nccl": (lambda answer: nccl_title(answer["nccl"]), lambda answer: nccl_blocks(answer["nccl"])),
    "log": (log_title, log_blocks),
    "run": (log_title, log_blocks),
    "kernels": (_kernels_title, _no_blocks),
}
