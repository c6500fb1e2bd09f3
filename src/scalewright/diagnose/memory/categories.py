"""The purpose of each block of a snapshot: a judgement by its stack, its life and its size.

    parameters      held since before the recording, or allocated while the model was built
    gradients       came in a backward, and outlived it
    optimizer       came in the optimizer's step, and outlived it
    activations     came in a forward, and lived until a backward
    communication   gathered parameters, buckets, buffers of collectives: by their stack
    loss            in the loss's functions; before it and in the backward tensors of the logits' size
    temporary       came and went within a forward, a backward or an optimizer's step
    other           nothing tells: freed in a forward and allocated before the recording

Blocks that were held before the recording have no stack. Where gradients or the optimizer's states were seen, they are
told apart by sizes: a parameter, its gradient and its states have the same number of elements.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from scalewright.diagnose.memory.blocks import BEFORE, Life, levels
from scalewright.diagnose.memory.stacks import BACKWARD, FORWARD, SETTING_UP, STEP, UNKNOWN, Stack, Stacks

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "communication", "loss", "temporary", "other")
PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, COMMUNICATION, LOSS, TEMPORARY, OTHER = range(len(CATEGORIES))
SMALL_LOSS = 1 << 20  # bytes below which a tensor of the loss doesn't tell the logits' size
STATES = 2  # of Adam: two a parameter


@dataclass(frozen=True)
class Phases:
    """The part of a step of every allocation, in order of the events: `begun` and `names`."""

    begun: list[int]
    names: list[str]

    def when(self, event: int) -> str:
        """The part that an event is in: that of the last allocation; `unknown` before the first."""
        place = bisect_right(self.begun, event)
        return self.names[place - 1] if place else UNKNOWN

    def next(self, names: tuple[str, ...], after: int) -> float:
        """The first allocation of some parts beyond an event; infinite without."""
        places = {name: bisect_right(self._numbers[name], after) for name in names}
        later = (self._numbers[name][place] for name, place in places.items() if place < len(self._numbers[name]))
        return min(later, default=float("inf"))

    @cached_property
    def _numbers(self) -> dict[str, list[int]]:
        numbers: dict[str, list[int]] = defaultdict(list)
        for event, name in zip(self.begun, self.names, strict=True):
            numbers[name].append(event)
        return numbers


@dataclass(frozen=True)
class Judged:
    """Each block's category and stack, the parts of steps, and whether the snapshot has stacks at all."""

    category: list[int]
    stacks: list[Stack]
    phases: Phases
    stacked: bool


def judge(blocks: Sequence[Life]) -> Judged:
    """The category of every block."""
    reader = Stacks()
    stacks = [reader.read(block.frames) for block in blocks]
    stacked = any(stack.python for stack in stacks)
    # A block without Python that came in the recording is autograd's: its threads run no Python.
    names = [
        BACKWARD if stacked and stack.phase == UNKNOWN and block.born > BEFORE else stack.phase
        for block, stack in zip(blocks, stacks, strict=True)
    ]
    in_order = sorted((block.born, name) for block, name in zip(blocks, names, strict=True) if block.born > BEFORE)
    phases = Phases([born for born, _ in in_order], [name for _, name in in_order])
    category = [OTHER] * len(blocks)
    if stacked:
        logits = _logits(blocks, stacks, names)
        category = [
            LOSS if row in logits and not stack.communicates else _category(block, stack, name, phases)
            for row, (block, stack, name) in enumerate(zip(blocks, stacks, names, strict=True))
        ]
        _split_held(blocks, stacks, category, phases)
    return Judged(category, stacks, phases, stacked)


def _category(block: Life, stack: Stack, phase: str, phases: Phases) -> int:
    if stack.communicates:
        return COMMUNICATION
    if stack.loss:
        return LOSS
    if phase == SETTING_UP:
        return PARAMETERS
    if phase == STEP:
        return OPTIMIZER if _outlives(block, phases, (FORWARD, BACKWARD)) else TEMPORARY
    if phase == BACKWARD:
        if _outlives(block, phases, (FORWARD, STEP)):
            return GRADIENTS
        return ACTIVATIONS if stack.model else TEMPORARY  # computed again
    if phase == FORWARD:
        return ACTIVATIONS if _outlives(block, phases, (BACKWARD,)) else TEMPORARY
    if block.dies is None:
        return PARAMETERS
    return {STEP: OPTIMIZER, BACKWARD: ACTIVATIONS}.get(phases.when(block.dies), OTHER)


def _outlives(block: Life, phases: Phases, later: tuple[str, ...]) -> bool:
    """Whether a block is still held when one of the later parts begins, or at the end."""
    return block.dies is None or phases.next(later, block.born) < block.dies


def _logits(blocks: Sequence[Life], stacks: Sequence[Stack], phase: Sequence[str]) -> set[int]:
    """Rows of the logits and their gradients: of the size of the loss's tensors, beside it in time.

    The output of the head comes right before the loss and has no name of its own; in the backward the same size comes
    first. Other types have half or twice the bytes.
    """
    losses = [row for row, stack in enumerate(stacks) if stack.loss and blocks[row].born >= 0]
    largest = max((blocks[row].size for row in losses), default=0)
    if largest < SMALL_LOSS:
        return set()
    sizes = {largest // 2, largest, 2 * largest}
    order = sorted((row for row, block in enumerate(blocks) if block.born >= 0), key=lambda row: blocks[row].born)
    result: set[int] = set()
    ahead: int | None = None  # the last tensor of that size in the forward
    after = False  # between a loss and the end of its backward's first tensors
    for row in order:
        if stacks[row].loss:
            if ahead is not None:
                result.add(ahead)
            ahead, after = None, True
        elif blocks[row].size in sizes:
            if phase[row] == FORWARD:
                ahead, after = row, False
            elif phase[row] == BACKWARD and after:
                result.add(row)
    return result


def _split_held(blocks: Sequence[Life], stacks: Sequence[Stack], category: list[int], phases: Phases) -> None:
    """Tells parameters, gradients and states apart among blocks without a stack, by sizes that were seen.

    Those of a parameter's size that are freed between an optimizer's step and the next backward are gradients.
    """
    seen = {kind: _most(blocks, category, kind) for kind in (GRADIENTS, OPTIMIZER)}
    by_states = Counter({size: count // STATES for size, count in seen[OPTIMIZER].items()})
    model = max(seen[GRADIENTS], by_states, key=_bytes)
    quotas = {
        PARAMETERS: Counter(model),
        GRADIENTS: model - seen[GRADIENTS],
        OPTIMIZER: model + model - seen[OPTIMIZER],
    }
    for row, block in enumerate(blocks):
        if block.born == BEFORE and block.dies is None and stacks[row].phase == UNKNOWN:
            kind = next((kind for kind, quota in quotas.items() if quota[block.whole] > 0), None)
            if kind is not None:
                quotas[kind][block.whole] -= 1
                category[row] = kind
    held = Counter(block.whole for block in blocks if block.born == BEFORE and block.dies is None)
    last_step = Counter(model) if model else held  # its gradients, which `zero_grad` frees in the recording
    for row, block in enumerate(blocks):
        freed = block.born == BEFORE and block.dies is not None and stacks[row].phase == UNKNOWN
        within = phases.next((STEP,), block.dies or 0) < phases.next((FORWARD, BACKWARD), block.dies or 0)
        if freed and not within and category[row] in (OTHER, OPTIMIZER) and last_step[block.whole] > 0:
            last_step[block.whole] -= 1
            category[row] = GRADIENTS


def _bytes(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())


def _most(blocks: Sequence[Life], category: Sequence[int], kind: int) -> Counter[int]:
    """The sizes of a category's blocks: of those that are held, or when it holds most, of one step.

    Those that are held are better known: the others' blocks may be larger than the trace has them.
    """
    mine = [block for block, purpose in zip(blocks, category, strict=True) if purpose == kind]
    if not mine:
        return Counter()
    last = max(max(block.born, block.dies or 0) for block in mine)
    most = int(levels(mine, [0] * len(mine), 1, last + 1)[0].argmax()) - 1
    sizes = Counter(block.whole for block in mine if block.alive(most))
    held = Counter(block.whole for block in mine if block.dies is None)
    return held if _bytes(held) >= _bytes(sizes) / 2 else sizes
