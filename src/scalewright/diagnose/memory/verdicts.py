"""A snapshot in words: what the peak was made of, why memory ran out, and what would have saved how much.

What changes would save of the peak, by the snapshot's own curves, is the largest of what is left:

    level  = parameters + gradients + optimizer + activations + communication + loss + temporary + other
    saved  = max(level) - max(level - (1 - kept) · categories that the change touches)

    loss in 8 chunks         loss · 1/8               half the micro-batch    activations, loss · 1/2
    full recomputation       activations · 1/layers   ZeRO over 8 ranks    1: optimizer · 1/8, 2: gradients,
    fused optimizer          its temporaries · 0                          3: parameters

A peak moves to where the next largest is, so that savings don't add up. `layers` is how often the model's lines
allocated what the peak holds; with recomputation one layer's activations are there at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scalewright.diagnose.memory import categories
from scalewright.diagnose.memory.blocks import Life, levels
from scalewright.diagnose.memory.categories import CATEGORIES, Judged
from scalewright.diagnose.memory.snapshot import Snapshot
from scalewright.diagnose.memory.stacks import BACKWARD, FORWARD, NATIVE_ONLY, STEP
from scalewright.diagnose.verdict import Verdict

CHUNKS, RANKS = 8, 8
STEP_TEMPORARY = len(CATEGORIES)  # the optimizer's part of the temporaries: a group of its own in the curves
A_LINE = 0.02  # of the activations: a line of the model that holds less doesn't tell the layers


@dataclass(frozen=True)
class Saving:
    """A change: a word for it, how to make it, and bytes of the peak with and saved by it."""

    change: str
    how: str
    peak: int
    saves: int

    def dump(self) -> dict[str, object]:
        """The keys of `diagnose --json`."""
        return {"change": self.change, "how": self.how, "peak_bytes": self.peak, "saves_bytes": self.saves}


def curves(blocks: Sequence[Life], judged: Judged, events: int, before: int) -> np.ndarray:
    """Bytes of every category, and the optimizer's temporaries, after every event: int64 [categories + 1, events + 1].

    `before`: what was allocated when the trace began; more than the blocks from then is `other`.
    """
    group = [
        STEP_TEMPORARY if kind == categories.TEMPORARY and stack.phase == STEP else kind
        for kind, stack in zip(judged.category, judged.stacks, strict=True)
    ]
    result = levels(blocks, group, len(CATEGORIES) + 1, events)
    result[categories.OTHER] += before - int(result[:, 0].sum())
    return result


def savings(level: np.ndarray, layers: int = 0, sharded: bool = False) -> list[Saving]:
    """Changes that save something, the largest first.

    `level`: bytes of every category over time, int64 [categories + 1, n]. `layers`: of the model, 0 where that isn't
    known. `sharded`: whether states are sharded already.
    """
    options: list[tuple[str, str, dict[int, float]]] = [
        ("loss in chunks", f"compute the loss in {CHUNKS} chunks of the sequence", {categories.LOSS: 1 / CHUNKS}),
        ("micro-batch", "half the micro-batch", {categories.ACTIVATIONS: 0.5, categories.LOSS: 0.5}),
        ("fused optimizer", "a fused optimizer (fused=True), or foreach=False", {STEP_TEMPORARY: 0.0}),
    ]
    if layers > 1:
        options.append(("recomputation", "recompute each layer's activations", {categories.ACTIVATIONS: 1 / layers}))
    shards: dict[int, float] = {}
    for stage, kind in enumerate((categories.OPTIMIZER, categories.GRADIENTS, categories.PARAMETERS), 1):
        shards = {**shards, kind: 1 / RANKS}
        if not sharded:
            options.append((f"zero {stage}", f"ZeRO stage {stage} over {RANKS} ranks", shards))
    total = level.sum(axis=0)
    peak = int(total.max())
    result = []
    for change, how, kept in options:
        left = total - sum(((1 - share) * level[kind] for kind, share in kept.items()), np.zeros(len(total)))
        lower = int(left.max())
        if lower < peak:
            result.append(Saving(change, how, lower, peak - lower))
    return sorted(result, key=lambda saving: -saving.saves)


def layers_of(blocks: Sequence[Life], judged: Judged, peak_event: int) -> int:
    """How often the model's lines allocated the activations of the peak: the least of lines that matter."""
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for block, kind, stack in zip(blocks, judged.category, judged.stacks, strict=True):
        if kind == categories.ACTIVATIONS and block.alive(peak_event - 1):
            count[stack.line] += 1
            size[stack.line] += block.size
    whole = sum(size.values())
    return min((count[line] for line, held in size.items() if held >= A_LINE * whole), default=0)


GIB = 1 << 30
FRAGMENTED = 15.0  # percent of reserved bytes, in pieces, from which a setting is worth trying
WORTH = 0.02  # of the peak: a change that saves less isn't named
A_PART = 0.05  # of the peak: a category below isn't named
MOST_CHANGES = 3
MOSTLY = 0.6  # of what ZeRO 3 saves: the lowest stage that reaches it is named
EXPANDABLE = "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
WHERE = {FORWARD: "in a forward", BACKWARD: "in a backward", STEP: "in the optimizer's step"}
NAMES = {"optimizer": "the optimizer's states", "loss": "logits and loss",
         "communication": "gathered and sent", "other": "the rest"}  # fmt: skip


def verdicts(snapshot: Snapshot, by_category: Mapping[str, int], saved: Sequence[Saving]) -> list[Verdict]:
    """The causes, the gravest first."""
    result = [_out_of_memory(snapshot, by_category, saved)] if snapshot.out_of_memory else []
    if fragmented := _fragmented(snapshot):
        result.append(fragmented)
    if not snapshot.out_of_memory and snapshot.peak:
        result.append(peak_verdict(_made_of(snapshot, by_category), saved, snapshot.peak, 0.6))
    return result


def _out_of_memory(snapshot: Snapshot, by_category: Mapping[str, int], saved: Sequence[Saving]) -> Verdict:
    asked, free = max(snapshot.out_of_memory)
    there = f", where the device had {_gib(free)} free" if free >= 0 else ""
    kept = snapshot.reserved - snapshot.allocated
    evidence = [
        f"{_gib(asked)} were asked for{there}; the allocator held {_gib(kept)} more than was in use, the "
        f"largest free block {_gib(snapshot.largest_free)}",
        *_made_of(snapshot, by_category),
    ]
    change = _changes(saved, snapshot.peak)
    if kept + max(free, 0) >= asked > snapshot.largest_free and not _expandable(snapshot):
        evidence.append("in one piece that would have been enough: the memory is fragmented")
        change = f"{EXPANDABLE}; then {change}"
    return _verdict("out of memory", evidence, change, saved[0].saves / GIB if saved else None, 0.9)


def peak_verdict(evidence: list[str], saved: Sequence[Saving], peak: int, sure: float) -> Verdict:
    """A peak, its evidence, and the changes that would have saved most of it."""
    return _verdict("peak", evidence, _changes(saved, peak), saved[0].saves / GIB if saved else None, sure)


def _made_of(snapshot: Snapshot, by_category: Mapping[str, int]) -> list[str]:
    """Where in the step the peak was, what of, and the line that holds most of it."""
    last, judged = snapshot.peak_event - 1, snapshot.judged
    where = WHERE.get(judged.phases.when(last), "")
    pairs = zip(snapshot.blocks, judged.category, strict=True)
    if any(block.born == last and kind == categories.LOSS for block, kind in pairs):
        where = "in the logits and the loss"
    lines = [parts_of(by_category, snapshot.peak, where)] if judged.stacked else []
    for owner, size in [pair for pair in snapshot.owners if pair[0] != NATIVE_ONLY][:1]:
        lines.append(f"{_gib(size)} of the peak of {_gib(snapshot.peak)} are from {owner}")
    return lines


def parts_of(by_category: Mapping[str, int], peak: int, where: str = "") -> str:
    """A peak's categories in a sentence, the largest first."""
    parts = [
        f"{NAMES.get(name, name)} {size / GIB:.2f}"
        for name, size in sorted(by_category.items(), key=lambda item: -item[1])
        if size >= A_PART * peak
    ]
    return f"the peak of {_gib(peak)}{f' comes {where}' if where else ''}: {', '.join(parts)} GiB"


def _changes(saved: Sequence[Saving], peak: int) -> str:
    sharding = [saving for saving in saved if saving.change.startswith("zero")]
    enough = [saving for saving in sharding if saving.saves >= MOSTLY * sharding[0].saves][-1:]
    if not saved:
        return "record with stacks='python', over a whole step, to see what would save memory"
    named = [saving for saving in saved if saving not in sharding or saving in enough]
    worth = [f"{saving.how} (saves {_gib(saving.saves)})" for saving in named if saving.saves >= WORTH * peak]
    return "; or ".join(worth[:MOST_CHANGES]) or f"none of the usual changes saves {100 * WORTH:.0f}% of it"


def _fragmented(snapshot: Snapshot) -> Verdict | None:
    if snapshot.fragmentation_pct < FRAGMENTED or _expandable(snapshot):
        return None
    line = (
        f"{_gib(snapshot.in_pieces)} of {_gib(snapshot.reserved)} reserved are free in pieces, the largest free block "
        f"has {_gib(snapshot.largest_free)}"
    )
    return _verdict("fragmentation", [line], EXPANDABLE, snapshot.in_pieces / GIB, 0.7)


def _expandable(snapshot: Snapshot) -> bool:
    return bool(snapshot.settings.get("expandable_segments"))


def _verdict(cause: str, evidence: list[str], fix: str, saves_gib: float | None, sure: float) -> Verdict:
    return Verdict(cause, evidence, fix, sure, more={"saves_gib": saves_gib})


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
