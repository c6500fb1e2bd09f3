"""Bits that a rank's device or memory flips, on purpose: of weights and states, and what the run makes of it."""

from __future__ import annotations

import json
import random
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runs import run_data
from scalewright.launch.local import run_local
from scalewright.parallel.collectives import gather_json
from scalewright.train.guard.copies import first_holders
from scalewright.train.resolve import read_run, resolve
from scalewright.train.run import PRELOAD, enter
from scalewright.train.session import Session
from scalewright.train.start import Start


def flip(tensor: Tensor, place: int, bit: int) -> None:
    """Flips one bit of one number, in place; `bit` counts from the lowest."""
    with torch.no_grad():
        view = tensor.detach().view(-1)[place : place + 1].view(torch.uint8)
        view[bit // 8] ^= 1 << (bit % 8)


def plant(folder: Path, layout: dict[str, Any], cases: int, seed: int = 0, **changes: Any) -> list[dict[str, Any]]:
    """So many flips on a layout, each on a random rank, tensor, number and bit, then a step: what was flipped, and what
    the comparison named. Each begins from the same state."""
    (folder / "flips").mkdir()
    adamw = {"name": "adamw", "lr": 1e-2, "clip_norm": 1.0}
    data = run_data(folder, layout=layout, optimizer=adamw, train={"steps": 1, "guard": {"check_copies": 1}}, **changes)
    prepare = partial(_plant, answers=folder / "flips" / "answers.json", cases=cases, seed=seed)
    start = Start(resolve(read_run(data, ())), "cpu", quiet=True, prepare=prepare)
    run_local(enter, (start,), layout["devices"], preload=PRELOAD, threads=1)
    answers: list[dict[str, Any]] = json.loads((folder / "flips" / "answers.json").read_text())
    return answers


def _plant(session: Session, *, answers: Path, cases: int, seed: int) -> None:
    copies, found = session.copies, []
    copies.action = "log"  # one run has all cases
    with closing(session.batches()) as batches:
        micros, counted = next(iter(batches))
    step = partial(session.step, micros, counted)
    step()  # the optimizer's states are there from now on
    copies.after(1, saves=True)
    assert not copies._known, "healthy copies are alike"
    guard = session.guard.state()
    for case in range(cases):
        held = list(copies._held())
        kept = [item.tensor.clone() for item in held]
        draw = random.Random(f"{seed}/{case}")
        ranks = [rank for rank, count in enumerate(gather_json(len(held), session.mesh)) if count]
        rank, planted = draw.choice(ranks), None
        if session.mesh.rank == rank:
            item = draw.choice([item for item in held if item.tensor.numel()])
            place, bit = draw.randrange(item.tensor.numel()), draw.randrange(8 * item.tensor.element_size())
            flip(item.tensor, place, bit)
            planted = {"rank": rank, "tensor": item.name, "of": item.kind, "place": place, "bit": bit}
        for _ in range(case % 3):  # it is seen at once, and it stays
            step()
        copies.after(2, saves=True)
        (planted,) = (entry for entry in gather_json(planted, session.mesh) if entry)
        named = [odd.dump() for odd in copies._known]
        found.append({**planted, "steps": case % 3, "stays": _differs(session, planted), "named": named})
        for item, tensor in zip(held, kept, strict=True):
            item.tensor.copy_(tensor)
        session.parallel.weights.publish()
        session.guard.load(guard)
        copies.after(3, saves=True)
        assert not copies._known, "the flip is undone"
    if session.mesh.rank == 0:
        answers.write_text(json.dumps(found))


def _differs(session: Session, planted: dict[str, Any]) -> bool:
    """Whether the flipped tensor still differs from the copy of another rank: by the numbers themselves. The lowest
    bit of a moment may be rounded away in a step."""
    which = planted["tensor"], planted["of"]
    held = next((item for item in session.copies._held() if (item.name, item.kind) == which), None)
    mine = None
    if held is not None:
        mine = [first_holders(session.mesh.grid, held.axes), held.tensor.view(-1).view(torch.uint8).tolist()]
    answers = gather_json(mine, session.mesh)
    first, numbers = answers[planted["rank"]]
    alike = [rank for rank, holder in enumerate(first) if holder == first[planted["rank"]] and answers[rank]]
    return any(answers[rank][1] != numbers for rank in alike)


def train_with_a_flip(folder: Path, layout: dict[str, Any], rank: int, at: int, **changes: Any) -> None:
    """A run in which a bit of one rank's second moments flips after update `at`."""
    data = run_data(folder, layout=layout, optimizer={"name": "adamw", "lr": 1e-2}, **changes)
    prepare = partial(_flip_later, rank=rank, at=at)
    start = Start(resolve(read_run(data, ())), "cpu", quiet=True, prepare=prepare)
    run_local(enter, (start,), layout["devices"], preload=PRELOAD, threads=1)


def _flip_later(session: Session, *, rank: int, at: int) -> None:
    if session.mesh.rank != rank:
        return
    optimizer, calls = session.state.optimizer, [0]
    weight = session.parallel.weights.trained()[3]

    def after(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == at:
            flip(optimizer.state[weight.master]["exp_avg_sq"], 0, 20)

    optimizer.register_step_post_hook(after)
