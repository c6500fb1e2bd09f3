"""The mesh: every rank's coordinates, and the process groups along every axis.

The world is one array; an axis is one of its dimensions, or several flattened. Outermost first:

    dense    [ pp | dp_replicate | dp_shard | cp | tp ]
    sparse   [ pp | dp_replicate | efsdp    | ep | etp ]      efsdp x ep x etp = dp_shard x cp x tp

    fsdp  = dp_shard x cp                 ranks that share one copy of a dense tensor
    batch = dp_replicate x dp_shard       ranks that read different samples
    loss  = batch x cp                    ranks that see different tokens
    kv    = tp ranks with the same KV head (when tp > KV heads)
    gradient = the ranks of `loss`, where they sum each other's gradients (zero_stage 0)
    pp_down, pp_up = the ranks of `pp`; messages to a higher stage rank, and to a lower one
    tie   = the two ranks that hold a tied embedding and its head; one rank in a V schedule
            (zbv, dualpipev), which has the first and the last stage on the same rank
    mirror = the two ranks that hold the same stage, one for each way (dualpipe, which is only planned)
    island = the ranks that take a step together: all, or under DiLoCo those of one index of dp_replicate,
             which then is no part of loss, gradient and ehsdp either (spec/diloco.py)
    islands = the ranks of dp_replicate, for the reports of islands

Pure arithmetic: the trainer builds its process groups from it, the planner its topology.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from scalewright.spec.layout import Layout
from scalewright.spec.schedules.kinds import find_kind, stage_ranks

DENSE = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
SPARSE = ("pp", "dp_replicate", "efsdp", "ep", "etp")

_FLATTENED = {  # axis: the dimensions of its view
    "world": DENSE, "island": DENSE, "islands": ("dp_replicate",), "control": DENSE,
    "pp": ("pp",), "pp_down": ("pp",), "pp_up": ("pp",), "dp_replicate": ("dp_replicate",), "dp_shard": ("dp_shard",),
    "cp": ("cp",), "tp": ("tp",), "fsdp": ("dp_shard", "cp"), "hsdp": ("dp_replicate", "dp_shard", "cp"),
    "batch": ("dp_replicate", "dp_shard"), "loss": ("dp_replicate", "dp_shard", "cp"),
    "gradient": ("dp_replicate", "dp_shard", "cp"),
    "ep": ("ep",), "etp": ("etp",), "efsdp": ("efsdp",), "ehsdp": ("dp_replicate", "efsdp"),
}  # fmt: skip
# Axis: (its view, the dimensions of that view that it flattens).
AXES = {axis: (DENSE if set(parts) <= set(DENSE) else SPARSE, parts) for axis, parts in _FLATTENED.items()}
# Axes over which islands don't sum
WITHIN = frozenset({"island", "hsdp", "loss", "gradient", "ehsdp"})


@dataclass(frozen=True)
class Grid:
    """Sizes of the dense and the sparse view; coordinates and groups are computed from them."""

    sizes: tuple[tuple[str, int], ...]
    kv_parts: int  # KV heads that tp can cut: min(tp, KV heads)
    stage_ranks: tuple[int, ...] = (0,)  # pipeline rank of every stage (dualpipe: each stage twice)
    mirrored: bool = False  # every stage is on two ranks, r and pp - 1 - r
    islands: bool = False  # every index of dp_replicate trains by itself between outer steps

    @cached_property
    def size_of(self) -> dict[str, int]:
        """Ranks along every axis."""
        base = dict(self.sizes)
        sizes = {axis: prod(base[part] for part in self._dimensions(axis)) for axis in AXES}
        sizes["kv"] = base["tp"] // self.kv_parts
        sizes["tie"] = len(set(self.tied_ranks))
        sizes["mirror"] = 2 if self.mirrored else 1
        return sizes

    @property
    def tied_ranks(self) -> tuple[int, int]:
        """The pipeline ranks of the first and the last stage; the same one in a V schedule."""
        return self.stage_ranks[0], self.stage_ranks[-1]

    @property
    def copying(self) -> dict[str, int]:
        """`size_of` among ranks that hold the same numbers: islands hold other ones."""
        return {**self.size_of, "dp_replicate": 1} if self.islands else self.size_of

    @property
    def world(self) -> int:
        """The number of all ranks."""
        return self.size_of["world"]

    def coords(self, rank: int) -> dict[str, int]:
        """The rank's index along every axis, 0-based."""
        base, size = self._place(rank, DENSE) | self._place(rank, SPARSE), dict(self.sizes)
        coords = dict(base)
        for axis in AXES:
            index = 0
            for part in self._dimensions(axis):
                index = index * size[part] + base[part]
            coords[axis] = index
        coords["kv"] = base["tp"] % self.size_of["kv"]
        coords["tie"] = 1 if self.size_of["tie"] > 1 and base["pp"] == self.tied_ranks[1] else 0
        coords["mirror"] = 1 if self.mirrored and 2 * base["pp"] >= size["pp"] else 0
        return coords

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """The groups along an axis: tuples of ranks in axis order; together they contain every rank once.

        Groups of `tie` with two ranks contain only those of the first and the last stage.
        """
        if axis == "kv":
            size = self.size_of["kv"]
            return tuple(g[start : start + size] for g in self.groups("tp") for start in range(0, len(g), size))
        if axis in ("tie", "mirror") and self.size_of[axis] == 1:
            return tuple((rank,) for rank in range(self.world))
        if axis == "tie":
            first, last = self.tied_ranks
            return tuple((group[first], group[last]) for group in self.groups("pp"))
        if axis == "mirror":
            return tuple((g[index], g[-1 - index]) for g in self.groups("pp") for index in range(len(g) // 2))
        view, parts = AXES[axis][0], self._dimensions(axis)
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world):
            coords = self._place(rank, view)
            groups.setdefault(tuple(coords[name] for name in view if name not in parts), []).append(rank)
        return tuple(tuple(ranks) for ranks in groups.values())

    def _dimensions(self, axis: str) -> tuple[str, ...]:
        parts, apart = AXES[axis][1], self.islands and axis in WITHIN
        return tuple(part for part in parts if part != "dp_replicate") if apart else parts

    def _place(self, rank: int, view: tuple[str, ...]) -> dict[str, int]:
        size = dict(self.sizes)
        coords = {}
        for name in reversed(view):
            rank, coords[name] = divmod(rank, size[name])
        return coords


def make_grid(layout: Layout, kv_heads: int | None = None, *, islands: bool = False) -> Grid:
    """The grid of a layout; with fewer `kv_heads` than tp, ranks share a KV head. `islands`: of a run with `diloco`."""
    efsdp = layout.dp_shard * layout.cp * layout.tp // (layout.ep * layout.etp)
    sizes = {axis: getattr(layout, axis) for axis in (*DENSE, "ep", "etp")} | {"efsdp": efsdp}
    return Grid(
        tuple(sizes.items()),
        min(layout.tp, kv_heads or layout.tp),
        stage_ranks(layout.schedule, layout.pp, layout.virtual_stages),
        mirrored=find_kind(layout.schedule).both_ways and layout.pp > 1,
        islands=islands,
    )
