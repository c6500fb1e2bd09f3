"""Process groups and links: every device in its node, its group on each axis, and the link between them.

node 0  ■ ■ ■ ■ ■ ■ ■ ■     tp 8: a node's NVLink          a rank's number = digits, one an axis
node 1  ■ ■ ■ ■ ■ ■ ■ ■     dp 16: one device of 16 nodes  (spec/grid.py), so that sizes and strides
                                                           are all that the script needs
"""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.report.document import Estimate, PlanDocument
from scalewright.report.page import Section
from scalewright.spec.common.formatting import metric
from scalewright.spec.errors import UserError
from scalewright.spec.grid import AXES, Grid, make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.schedule import KINDS

MOST_DEVICES = 1_000_000
MOST_RANKS = 4096  # squares on the map
SIZES = ("devices", "tp", "pp", "cp", "ep", "etp", "dp_replicate")
LINKS = {
    "nvlink": "NVLink", "xgmi": "Infinity Fabric", "ici": "ICI", "neuronlink": "NeuronLink", "pcie": "PCIe",
    "shared-memory": "shared memory", "loopback": "loopback", "infiniband": "InfiniBand",
    "roce": "RoCE", "efa": "EFA", "tcpx": "GPUDirect-TCPX", "ethernet": "Ethernet",
    "dcn": "data-centre network", "link": "the node's links", "network": "network",
}  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """An axis to look along: its name in grid.py, its key in `comm_bytes`, what its ranks do together."""

    name: str
    key: str
    traffic: str
    does: str


TENSOR = Axis("tp", "tp", "tp", "cut every matrix; exchange activations in each layer")
CONTEXT = Axis("cp", "cp", "cp", "cut the sequence; exchange keys and values in each layer")
EXPERT = Axis("ep", "ep", "ep", "hold different experts; send tokens to them and back")
WITHIN_EXPERT = Axis("etp", "etp", "", "cut every expert")
PIPELINE = Axis("pp", "pp", "pp", "hold different layers; pass activations and their gradients on")
DATA = Axis("dp", "loss", "dp", "see different tokens; sum gradients, gather parameters")
SHARDS = Axis("shards", "fsdp", "", "share one replica of the parameters")
REPLICAS = Axis("replicas", "dp_replicate", "", "hold the same shard; sum gradients")


@dataclass(frozen=True)
class Level:
    """A link: how many neighbouring devices it joins (None: all), and bytes per second one way."""

    name: str
    size: int | None
    rate: float | None


def section(document: PlanDocument) -> Section | None:
    """The map; a sentence where the layout has no grid; None on one device."""
    best = document.first
    if best is None or best.size("devices") == 1:
        return None
    if best.size("devices") > MOST_DEVICES:
        return missing(f"{best.size('devices'):,} devices are too many")
    try:
        layout = Layout.parse({name: best.layout[name] for name in SIZES if name in best.layout}, "layout")
    except UserError as error:
        return missing(error.what)
    grid, levels = make_grid(layout), levels_of(document)
    node = int(document.device.number("per_node") or 0) or layout.devices
    axes = [axis(grid, dimension, best, levels) for dimension in axes_of(layout)]
    parts = shown(layout, node)
    data = {
        "missing": "",
        "axes": axes,
        "levels": levels,
        "notes": notes(layout, node, parts, levels),
        "description": f"{layout.devices:,} devices in nodes of {node}; the table below names every axis.",
    }
    drawing = {
        "id": "ranks", "type": "ranks", "world": layout.devices, "node": node, "shown": parts,
        "levels": [{"name": level.name, "size": level.size} for level in levels],
        "axes": [{key: entry[key] for key in ("name", "size", "digits", "talk", "bytes")} for entry in axes],
    }  # fmt: skip
    return Section("ranks", "Who talks to whom", "plan_ranks.html", data, drawings=[drawing] if axes else [])


def missing(why: str) -> Section:
    return Section("ranks", "Who talks to whom", "plan_ranks.html", {"missing": f"No map: {why}."})


def levels_of(document: PlanDocument) -> list[Level]:
    """The links of the plan's device, from the inside out; empty when the plan has none."""
    levels = []
    for entry in document.device.parts("links"):
        size, kind = entry.number("devices"), entry.text("kind")
        levels.append(Level(LINKS.get(kind, kind), None if size is None else int(size), entry.number("bytes_per_s")))
    return levels


def axes_of(layout: Layout) -> list[Axis]:
    """The axes along which more than one rank works, inside out."""
    copies = layout.dp_replicate > 1 and layout.dp_shard * layout.cp > 1
    sizes = (
        (TENSOR, layout.tp), (CONTEXT, layout.cp), (WITHIN_EXPERT, layout.etp), (EXPERT, layout.ep),
        (DATA, layout.dp * layout.cp), (SHARDS, layout.dp_shard * layout.cp if copies else 1),
        (REPLICAS, layout.dp_replicate if copies else 1), (PIPELINE, layout.pp),
    )  # fmt: skip
    return [dimension for dimension, size in sizes if size > 1 and not (dimension is DATA and layout.dp == 1)]


def digits(grid: Grid, axis: str) -> list[list[int]]:
    """[size, stride] of the dimensions that an axis reads as one, outermost first.

    A rank's index in a dimension is rank // stride % size; the others of its group differ in these alone.
    """
    view, parts = AXES[axis]
    size, stride, pairs = dict(grid.sizes), 1, []
    for name in reversed(view):
        if name in parts and size[name] > 1:
            pairs.append([size[name], stride])
        stride *= size[name]
    return pairs[::-1]


def axis(grid: Grid, dimension: Axis, best: Estimate, levels: list[Level]) -> dict[str, object]:
    """An axis in the words of the table and the script."""
    parts = digits(grid, dimension.key)
    size = grid.size_of[dimension.key]
    sent = best.bytes.get(dimension.traffic) if dimension.traffic else None
    chunks, kind = best.size("virtual_stages"), str(best.layout.get("schedule", ""))
    loop = chunks > 1 and kind in KINDS and not KINDS[kind].folded
    by_cp = f" × cp {grid.size_of['cp']}" if dimension is DATA and grid.size_of["cp"] > 1 else ""
    return {
        "name": dimension.name + by_cp, "size": size, "groups": f"{grid.world // size:,}", "does": dimension.does,
        "digits": parts, "talk": ("ring" if loop else "chain") if dimension is PIPELINE else "all",
        "link": links_of(parts, grid.world, levels), "bytes": None if sent is None else metric(sent, "B"),
        "first": example(parts, size),
    }  # fmt: skip


def links_of(parts: list[list[int]], world: int, levels: list[Level]) -> str:
    """The links between the ends of an axis's groups: one name, or several where groups lie differently."""
    if not levels:
        return ""
    reach = sum((size - 1) * stride for size, stride in parts)
    starts = [rank for rank in range(min(world, MOST_RANKS)) if all(rank // t % s == 0 for s, t in parts)]
    used = {link(start, start + reach, levels) for start in starts}
    return ", ".join(level.name for level in levels if level.name in used)


def link(rank: int, other: int, levels: list[Level]) -> str:
    """The innermost link that joins two ranks."""
    inside = (level for level in levels if level.size is None or rank // level.size == other // level.size)
    return next(inside, levels[-1]).name


def example(parts: list[list[int]], size: int) -> str:
    """The group of rank 0: `0–7`, `0, 8, 16, … 120`."""
    ranks = [0]
    for length, stride in parts:
        ranks = [rank + index * stride for rank in ranks for index in range(length)][:100_000]
    last = sum((length - 1) * stride for length, stride in parts)
    if last == size - 1:
        return f"0–{last:,}"
    first = ", ".join(f"{rank:,}" for rank in (ranks if size <= 4 else ranks[:3]))
    return first if size <= 4 else f"{first}, … {last:,}"


def shown(layout: Layout, node: int) -> list[list[int]]:
    """[first, end) of the ranks on the map: all, or of each pipeline rank its first nodes."""
    if layout.devices <= MOST_RANKS:
        return [[0, layout.devices]]
    block = layout.devices // layout.pp
    each = max(MOST_RANKS // layout.pp // node, 1) * node
    return [[start, start + min(each, block)] for start in range(0, layout.devices, block)][: MOST_RANKS // each]


def notes(layout: Layout, node: int, parts: list[list[int]], levels: list[Level]) -> list[str]:
    lines = []
    if len(parts) > 1 or parts[0][1] < layout.devices:
        each = parts[0][1] - parts[0][0]
        of = f"Of each of the {layout.pp} pipeline ranks the first" if layout.pp > 1 else "The first"
        lines.append(f"{of} {each:,} devices are drawn; the others repeat the pattern.")
    if not levels:
        lines.append("The plan doesn't say which links join the devices.")
    return lines
