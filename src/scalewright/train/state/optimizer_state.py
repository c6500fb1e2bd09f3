"""The optimizer state of every weight, on its way into a checkpoint and back.

    shape of the state        of a weight           goes to                        example
    the weight's              any, 0-dim too        a tensor, cut like the weight  exp_avg
    one number                of one dimension up   state.json, by weight          Adam's step
    bytes with scales         any                   a tensor in fp32, as above     adamw_8bit's exp_avg
    anything else                                   refused: it can't be cut for another layout

Every value comes back as what it was: dtype, shape, or a Python number. `group_state.py` has the groups' values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.errors import UserError
from scalewright.train.diloco import Read
from scalewright.train.packed_adamw import PackedAdamW, Unpacked
from scalewright.train.state.group_state import decode, encode, same

Named = dict[str, dict[str, Tensor | Unpacked]]  # {weight: {kind: tensor}}
Numbers = dict[str, dict[str, object]]  # {kind: {weight: encoded number}}; "*" stands for every trained weight


def read_states(optimizer: Optimizer, weights: Weights) -> tuple[Named, Numbers]:
    """This rank's optimizer tensors by (weight, kind), and its numbers (as Adam's step) apart. Raises UserError."""
    check_states(optimizer, weights)
    tensors: Named = {}
    numbers: Numbers = {}
    states = [(weight, _states(optimizer, weight)) for weight in weights]
    # A one-number state of a one-number weight may be either; it is what it is for the other weights.
    plain = {kind for weight, state in states for kind, value in state.items() if not _like(value, weight)}
    for weight, state in states:
        for kind, value in state.items():
            if _like(value, weight) and not (value.numel() == 1 and kind in plain):
                tensors.setdefault(weight.name, {})[kind] = value
            elif value is not None:
                numbers.setdefault(kind, {})[weight.name] = encode(value)
    return tensors, numbers


def _states(optimizer: Optimizer, weight: Weight) -> dict[str, Any]:
    if isinstance(optimizer, PackedAdamW):
        return optimizer.unpacked(weight.master) if weight.trained else {}
    state: dict[str, Any] = optimizer.state.get(weight.master, {})
    return state


def _like(value: Any, weight: Weight) -> bool:
    return isinstance(value, (Tensor, Unpacked)) and value.shape == weight.master.shape


def check_states(optimizer: Optimizer, weights: Weights) -> None:
    """Raises UserError for states that a checkpoint can't hold: of other shapes than the weight, they can't be cut."""
    for weight in weights:
        for kind, value in _states(optimizer, weight).items():
            if value is None or isinstance(value, (bool, int, float)) or _like(value, weight):
                continue
            if not isinstance(value, Tensor):
                problem = f"is a {type(value).__name__}, not a tensor or a number"
            elif value.numel() != 1:
                problem = "has another shape than the weight"
            elif value.is_complex():
                problem = "is a complex number"
            else:
                continue
            problem = f"optimizer state '{kind}' of '{weight.name}' {problem}, so a checkpoint can't hold it"
            how = "use one whose state is elementwise, or save nothing: checkpoint.every=0 checkpoint.at_end=false"
            raise UserError(problem, "optimizer", how)


def check_first_states(optimizer: Optimizer, check: Callable[[], None]) -> None:
    """Lets the optimizer's next update end with `check`: not hours later, at the first save. No hook of torch's: where
    a class inherits from another optimizer, the inner `step` would call it too early."""
    update = optimizer.step

    def first(*arguments: Any, **keywords: Any) -> Any:
        optimizer.step = update  # type: ignore[method-assign]
        answer = update(*arguments, **keywords)
        check()
        return answer

    optimizer.step = first  # type: ignore[method-assign]


def gather_numbers(numbers: Numbers, weights: Weights, mesh: Mesh) -> tuple[Numbers, list[Numbers]]:
    """The numbers of all pipeline stages and shards: {kind: {weight: number}}, or {"*": number} for one that all
    weights share; and, where ranks have different numbers of the same weight, each rank's own. Nearly always every
    weight has the same number (Adam's step): then one small exchange is all."""
    names = [weight.name for weight in weights.trained()]
    shared = {kind: _shared(by_name, names) for kind, by_name in numbers.items()}
    answers = gather_json(shared, mesh)
    everywhere = {
        kind: {"*": value[0]}
        for kind, value in answers[0].items()
        if value and all(same(answer.get(kind), value) for answer in answers)
    }
    if len(everywhere) == len({kind for answer in answers for kind in answer}):
        return everywhere, []
    ranks = gather_json({kind: numbers[kind] for kind in numbers if kind not in everywhere}, mesh)
    merged: Numbers = dict(everywhere)
    differing: dict[str, set[str]] = {}
    for rank in ranks:
        for kind, by_name in rank.items():
            for name, value in by_name.items():
                if not same(merged.setdefault(kind, {}).setdefault(name, value), value):
                    differing.setdefault(kind, set()).add(name)
    if not differing:
        return merged, []

    def own(rank: Numbers) -> Numbers:
        kinds = differing.items()
        return {kind: {n: value for n, value in rank.get(kind, {}).items() if n in names} for kind, names in kinds}

    return merged, [own(rank) for rank in ranks]


def gather_island_numbers(
    numbers: Numbers, weights: Weights, mesh: Mesh, island: int, count: int
) -> tuple[list[Numbers], list[Numbers]]:
    """The same of `count` islands, of which this rank is in number `island`: a list of each one's numbers;
    and by rank, where ranks of one island have different numbers of the same weight."""
    of_island = {f"{island}/{kind}": by_name for kind, by_name in numbers.items()}
    merged, by_rank = gather_numbers(of_island, weights, mesh)
    islands: list[Numbers] = [{} for _ in range(count)]
    for key, by_name in merged.items():
        number, _, kind = key.partition("/")
        islands[int(number)][kind] = by_name
    plain: list[Numbers] = [{} for _ in by_rank]
    for rank, of_rank in zip(plain, by_rank, strict=True):
        for key, by_name in of_rank.items():
            rank.setdefault(key.partition("/")[2], {}).update(by_name)
    return islands, plain


def _shared(by_name: Mapping[str, Any], names: list[str]) -> list[Any]:
    """[the number that all these weights have], or []."""
    first = next(iter(by_name.values()))
    return [first] if set(by_name) == set(names) and all(same(v, first) for v in by_name.values()) else []


def write_states(optimizer: Optimizer, weights: Weights, kinds: Sequence[str], read: Read, numbers: Numbers) -> None:
    """Gives the optimizer its state back; `read(kind, weight)` gives a state's box, or None. The padding of a weight
    pads its state, with zeros. Not by `load_state_dict`, which casts every state to its weight's dtype."""
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for weight in weights.trained():
        master = weight.master
        entry: dict[str, Any] = {}
        for kind in kinds:
            if (box := read(kind, weight)) is not None:
                entry[kind] = _padded(box, weight).to(master.device)
        for kind, by_name in numbers.items():
            value = by_name.get(weight.name, by_name.get("*"))
            if value is None or kind in entry:  # saves of 0.1 took a 0-dim weight's moments for everyone's
                continue
            entry[kind] = decode(value, _device(kind, group_of[id(master)], master))
        if entry:
            optimizer.state[master] = entry
            if isinstance(optimizer, PackedAdamW):
                optimizer.pack(master)


def _device(kind: str, group: dict[str, object], master: Tensor) -> torch.device:
    """Where torch keeps a number of a weight: a `step` on the host, but for fused and captured updates."""
    on_device = kind != "step" or group.get("fused") or group.get("capturable")
    return master.device if on_device else torch.device("cpu")


def _padded(tensor: Tensor, weight: Weight) -> Tensor:
    """A box of a state in the shape of the weight's master."""
    if tensor.shape == weight.master.shape:
        return tensor
    whole = torch.zeros(weight.master.shape, dtype=tensor.dtype, device=tensor.device)
    weight.true(whole).copy_(tensor)
    return whole
