"""The tables of a diagnosis: kernels, process groups, layers, operators, communicators, memory."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.report.document import JSON
from scalewright.report.present.blocks import Table
from scalewright.report.present.logs import links
from scalewright.spec.common.formatting import MISSING, metric, short_time

MOST, MOST_LAYERS, FEW = 20, 200, 3
SHORT = 34  # characters of a kernel's name that a terminal shows unasked
GIB = 1 << 30


def tables(answer: JSON) -> Iterator[Table]:
    """Those for which the answer has rows; a few kernels are shown unasked, or what holds the memory."""
    return (table for make in TABLES if (table := make(answer)).rows)


def _kernels(answer: JSON) -> Table:
    rows = [
        [row["short_name"], row["kind"], f"{row['count']:,}", f"{row['mean_us']:,.1f}", f"{row['share_pct']:.1f}"]
        for row in (answer.get("top_kernels") or ())[:MOST]
    ]
    heads = ("kernel of the first rank", "kind", "count", "mean, µs", "% of kernels")
    return Table(heads, rows, few=FEW, spare=("count",), short=SHORT)


def _ncu(answer: JSON) -> Table:
    rows = []
    for row in answer["kernels"][:MOST] if answer["kind"] == "kernels" else ():
        percents = (row[f"{key}_pct"] for key in ("time", "compute", "memory", "occupancy"))
        shares = (MISSING if percent is None else f"{percent:.1f}" for percent in percents)
        rows.append([row["short_name"], f"{row['count']:,}", *shares, row["bound"]])
    heads = ("kernel", "count", "% of time", "compute %", "memory %", "occupancy %", "bound by")
    return Table(heads, rows, few=5, spare=("count", "occupancy %"), short=SHORT)


def _stacks(answer: JSON) -> Table:
    stacks = (answer["memory"].get("top_stacks") or ())[:12] if answer["kind"] == "memory" else ()
    rows = [[stack["owner"], f"{stack['bytes'] / GIB:.3f}"] for stack in stacks]
    return Table(("at the peak, allocated by", "GiB"), rows, few=5)


def _savings(answer: JSON) -> Table:
    rows = [
        [saving["how"], f"{saving['saves_bytes'] / GIB:.2f}", f"{saving['peak_bytes'] / GIB:.2f}"]
        for saving in (answer.get("memory") or {}).get("savings") or ()
    ]
    return Table(("what would save memory", "saves, GiB", "peak then, GiB"), rows, detail=True)


def _communicators(answer: JSON) -> Table:
    """A row a communicator, the largest first."""
    largest = sorted((answer.get("nccl") or {}).get("communicators") or (), key=lambda group: -int(group["ranks"]))
    rows = []
    for group in largest[:MOST]:
        seen = f" ({group['ranks_seen']:,} seen)" if group["ranks_seen"] < group["ranks"] else ""
        channels = MISSING if group["channels"] is None else str(group["channels"])
        nvls = {True: "yes", False: "no", None: MISSING}[group["nvls"]]
        over = links(group["links"]) or MISSING
        rows.append([group["id"][:24], f"{group['ranks']:,}{seen}", f"{len(group['hosts']):,}", channels, nvls, over])
    return Table(("communicator", "ranks", "hosts", "channels", "NVLS", "links over"), rows, few=FEW)


def _groups(answer: JSON) -> Table:
    groups = (answer.get("communication") or {}).get("per_group") or ()
    rows = []
    for group in sorted(groups, key=lambda group: -group["transfer_s"] - max(group["wait_s"]))[:MOST]:
        times = (group["transfer_s"], max(group["wait_s"]), sum(group["exposed_s"]) / len(group["exposed_s"]))
        rows.append([group["group"], f"{group['collectives']:,}", *map(short_time, times)])
    note = (
        "Transfer: what the last rank needs; waiting: what others spend in it before; exposed: beside no "
        "computation, on the mean rank."
    )
    heads = ("process group", "collectives", "transfer", "waiting up to", "exposed")
    return Table(heads, rows, note=note, detail=True)


def _bandwidths(answer: JSON) -> Table:
    rows = []
    for rate in ((answer.get("communication") or {}).get("bandwidths") or ())[:MOST]:
        group, largest = rate["group"].partition(" [")[0], metric(rate["largest_bytes"], "B")
        bus = metric(rate["busbw_bytes_per_s"], "B/s") + (", with waiting" if rate["with_waiting"] else "")
        link = metric(rate["link_bytes_per_s"], "B/s") if rate["link_bytes_per_s"] else MISSING
        rows.append([group, rate["kind"], f"{rate['calls']:,}", largest, bus, link])
    note = "Bus bandwidth as nccl-tests count it, of the large collectives."
    return Table(("group", "collective", "calls", "largest", "bus bandwidth", "link"), rows, note=note, detail=True)


def _layers(answer: JSON) -> Table:
    rows = [
        [row["layer"], short_time(row["forward_s"]), short_time(row["backward_s"]), f"{row['share_pct']:.1f}"]
        for row in (answer.get("layers") or ())[:MOST_LAYERS]
    ]
    note = "While the device works on one; recomputation counts as forward."
    heads = ("layer of the first rank", "forward", "backward", "% of the window")
    return Table(heads, rows, note=note, detail=True)


def _roofs(answer: JSON) -> Table:
    rows = []
    for row in ((answer.get("roofs") or {}).get("products") or ())[:MOST]:
        mean, rate = short_time(row["total_s"] / row["calls"]), metric(row["flops_per_s"], "FLOP/s")
        of_roof = f"{100 * row['share_of_roof']:.0f}%"
        rows.append([row["name"], row["precision"], f"{row['calls']:,}", mean, rate, of_roof, row["bound"]])
    note = "The roof: the device's published peak, or its memory's rate where that binds."
    heads = ("product of the first rank", "precision", "calls", "mean", "FLOP/s", "of the roof", "bound by")
    return Table(heads, rows, note=note, detail=True)


def _occupancy(answer: JSON) -> Table:
    rows = []
    for row in (answer.get("occupancy") or ())[:MOST]:
        sizes = [f"{row['share_pct']:.1f}%", f"{row['grid']:,}", f"{row['block']:,}"]
        filled = [f"{row['waves']:.2f}", f"{row['filled_pct']:.0f}%"]
        rows.append([row["kernel"], *sizes, f"{row['occupancy_pct']:.0f}%", row["limited_by"], *filled])
    note = (
        "Occupancy: resident warps of the most there can be, and what limits them. Filled: the part of its "
        "waves' room that a grid uses."
    )
    heads = ("kernel", "of kernels", "blocks", "threads", "occupancy", "limit", "waves", "filled")
    return Table(heads, rows, note=note, detail=True)


TABLES = (_kernels, _ncu, _stacks, _savings, _communicators, _groups, _bandwidths, _layers, _roofs, _occupancy)
