"""What ranks do in the tests of resharding: load a checkpoint of any layout, save it again as it is, go on.

save under A ──► load under B ──► save at once: every tensor as it was, bit for bit
                             └──► two more steps: the samples and losses of a run that never stopped
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from parity.matrix import SCHEDULES
from scalewright.launch.rank import RankContext
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.train.start import Start

HEADS = 4  # of the model, which Ulysses cuts
LAYERS = 5  # enough for four stages, and not divisible by two


def save_again(context: RankContext, starts: Sequence[Start]) -> None:
    """Loads the checkpoint that the first start resumes and saves it under its layout, then trains the
    second."""
    import torch

    from scalewright.parallel.mesh import join_world, leave_world
    from scalewright.train.build import build
    from scalewright.train.run import enter

    device = torch.device("cpu")
    torch.set_num_threads(1)
    if not context.alone:
        join_world(context.rank, context.world, context.rendezvous, device)
    try:
        with ExitStack() as resources:
            rank = build(starts[0], context, device, resources)
            rank.save(rank.done)
            if rank.record is not None:
                rank.record.close("finished", rank.done, 0.0)
            assert rank.save_problem is None, rank.save_problem
    finally:
        leave_world()
    enter(replace(context, attempt=1), starts[1])


def layouts(experts: bool) -> Iterator[dict[str, Any]]:
    """Random legal layouts of up to eight ranks, without end, always the same ones; `experts`: of a mixture,
    with cp, ep and etp."""
    draw = random.Random(4)
    while True:
        pp, tp = draw.choice([1, 1, 2, 2, 4]), draw.choice([1, 1, 2, 4])
        replicate, shard = draw.choice([1, 1, 2]), draw.choice([1, 2, 4])
        more: dict[str, Any] = {}
        if experts:
            kind = draw.choice(["ring", "allgather", "ulysses"])
            more = {"cp": draw.choice([1, 2]), "cp_kind": kind}
            more |= {"ep": draw.choice([1, 2, 4]), "etp": draw.choice([1, 1, 2])}
        keys = {
            **more,
            "devices": pp * tp * replicate * shard * more.get("cp", 1),
            "pp": pp,
            "tp": tp,
            "sp": tp > 1 and draw.random() < 0.7,
            "dp_replicate": replicate,
            "zero_stage": draw.choice([0, 1, 2, 3]),
            "schedule": draw.choice(sorted(SCHEDULES)) if pp == 2 else "1f1b",
            "global_batch": 8,
            "precision": "fp32",
        }
        if not 1 < keys["devices"] <= 8:
            continue
        if keys.get("cp_kind") == "ulysses" and keys["cp"] * tp > HEADS:
            continue
        try:
            Layout.parse(keys)
        except UserError:
            continue
        yield keys


def pairs(count: int, experts: bool = False) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of different layouts: one saves, the other loads. A third of the savers is used twice or more."""
    drawn = layouts(experts)
    some: list[dict[str, Any]] = [{"devices": 1, "global_batch": 8, "precision": "fp32", "micro_batch": 2}]
    for keys in drawn:
        if keys not in some:
            some.append(keys)
        if len(some) == 2 * count // 3:
            break
    if experts:
        some[0]["ep"] = 1
    draw = random.Random(5)
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    while len(found) < count:
        pair = (draw.choice(some), draw.choice(some))
        if pair[0] != pair[1] and pair not in found:
            found.append(pair)
    return found


def name(keys: dict[str, Any]) -> str:
    """A layout as a word."""
    parsed = Layout.parse(keys)
    axes = [
        ("pp", parsed.pp),
        ("replicate", parsed.dp_replicate),
        ("shard", parsed.dp_shard),
        ("cp", parsed.cp),
        ("tp", parsed.tp),
        ("ep", parsed.ep),
        ("etp", parsed.etp),
    ]
    words = [f"{axis}{size}" for axis, size in axes if size > 1] or ["one"]
    if parsed.cp > 1:
        words.append(parsed.cp_kind)
    if "ep" in keys:
        words.insert(0, "experts")
    if parsed.dp > 1:
        words.append(f"zero{parsed.zero_stage}")
    if parsed.pp > 1:
        words.append(parsed.schedule)
    return ".".join(words)
