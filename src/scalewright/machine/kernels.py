"""The kernels of a training step, timed one by one at a few sizes each: what a CPU's prices are made of.

    linear  attention  norm  gated  activation  rope  residual  embedding  loss  add  optimizer

As in a step, many forwards come first and their backwards after, in the opposite order, each on numbers of
its own: what a backward reads was written long before, weights come from memory, memory comes and goes.

    f f f f f f ──► b b b b b b      seconds of a forward, and of a backward: the sums by their count

They are written as the model's own code writes them: an operator of many small steps costs what they cost.
One thread is timed by its own clock, which stands still while something else has the core. torch is imported
by the caller; `numpy_timings` is for a machine without it, and coarse.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from scalewright.machine.probe import TORCH_TYPES

ROWS = ((16, 64), (128, 256), (512, 512), (2048, 512))  # tokens and hidden size of the memory-bound kernels
PRODUCTS = ((16, 32, 64), (128, 64, 176), (128, 384, 1024), (512, 384, 1024), (512, 768, 2048))
SQUARES = ((1, 16, 2), (1, 64, 4), (1, 256, 4), (2, 512, 4))  # batch, tokens, heads
HEADS = {"attention": 64, "attention_narrow": 32}  # a narrow head has as much softmax and half the FLOPs
VOCABULARIES = ((16, 64), (128, 1024), (512, 8192))  # tokens and words
ELEMENTS = (1 << 8, 1 << 14, 1 << 18, 1 << 22)
NORM_PIECE = 65536  # numbers, as the step cuts gradients on a CPU (train/clipping.py)
COLD_BYTES, MOST = 32e6, 32  # what a row of kernels touches together, and how many they are at most
TURN_S = 0.05  # what a row of forwards and backwards may take, where that leaves at least two of them
QUARTILE = 0.25  # whatever else runs can only add to a time
ALIKE = ("add", "optimizer", "watched")  # the same whatever a run computes in
Curve = dict[str, Any]  # plain data of a TimingCurve
Point = tuple[float, float]  # a size and its seconds
Clock = Callable[[], float]
Forward = Callable[[], Any]
Backward = Callable[[Any], Any]
Instance = tuple[Forward, Backward | None]  # on numbers of its own; the backward takes the forward's output


@dataclass(frozen=True)
class Case:
    """One kernel at one size: FLOPs, bytes or elements of a forward (`TimingCurve` defines which)."""

    what: str
    size: float
    touched: float  # bytes of an instance's numbers, about
    make: Callable[[], Instance]
    backward_size: float | None = None


def torch_timings(torch: Any, precision: str, seconds: float, meet: Forward = lambda: None) -> Iterator[Curve]:
    """Every kernel's curves in `precision`, as plain data for `TimingCurve`; each case takes about `seconds`.

    `meet` is called before each: all processes time the same kernel at the same time.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    curves: defaultdict[tuple[str, str], list[Point]] = defaultdict(list)
    for case in torch_cases(torch, precision):
        forward, backward = times(case, seconds, clock, meet)
        curves[case.what, "forward"].append((case.size, forward))
        if backward is not None:
            curves[case.what, "backward"].append((case.backward_size or case.size, backward))
    for (what, phase), points in curves.items():
        yield curve(what, points, phase, None if what in ALIKE else precision)


def curve(what: str, points: Sequence[Point], phase: str = "forward", precision: str | None = None) -> Curve:
    """Points as a curve that never falls: a larger size can't be faster, so its time bounds the smaller's."""
    sizes, seconds = zip(*sorted(points), strict=True)
    falling = np.minimum.accumulate(np.array(seconds)[::-1])[::-1]
    data = {"sizes": [float(size) for size in sizes], "seconds": [max(float(s), 1e-9) for s in falling]}
    return {"what": what, "phase": phase, "precision": precision, **data}


def quick(seconds: Sequence[float]) -> float:
    """The quartile of the fast runs."""
    return sorted(seconds)[int(QUARTILE * (len(seconds) - 1))]


def times(
    case: Case, seconds: float, clock: Clock = time.perf_counter, meet: Forward = lambda: None, most: int = 20
) -> tuple[float, float | None]:
    """Seconds of a forward and of a backward, among their like."""
    first = case.make()
    _row([first], clock)  # pays for set-up
    once = sum(_row([first], clock))
    many = min(MOST, int(COLD_BYTES / case.touched), int(TURN_S / max(once, 1e-9)))
    row = [first, *(case.make() for _ in range(max(2, many) - 1))]
    _row(row, clock)
    meet()
    runs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(runs) < 2 or (time.perf_counter() < end and len(runs) < most):
        runs.append(_row(row, clock))
    forward, backward = (quick([each / len(row) for each in spent]) for spent in zip(*runs, strict=True))
    return forward, None if first[1] is None else backward


def _row(row: Sequence[Instance], clock: Clock) -> tuple[float, float]:
    """Seconds of all forwards, and of all backwards in the opposite order."""
    start = clock()
    outputs = [forward() for forward, _ in row]
    middle = clock()
    for _, backward in reversed(row):
        out = outputs.pop()
        if backward is not None:
            backward(out)
    return middle - start, clock() - middle


def torch_cases(torch: Any, precision: str) -> Iterator[Case]:
    """The kernels of a step in `precision`, from small to large."""
    dtype = getattr(torch, TORCH_TYPES[precision])
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, kind: Any = dtype) -> Any:
        return torch.randn(*shape, generator=generator).to(kind).requires_grad_()

    width = dtype.itemsize
    for rows, k, n in PRODUCTS:
        make = partial(_run_on, random, torch.nn.functional.linear, ((rows, k), (n, k)))
        yield Case("linear", 2.0 * rows * k * n, width * (rows * k + rows * n + 2.0 * n * k), make)
    attend = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    for what, dim in HEADS.items():
        for batch, tokens, heads in SQUARES:
            shape = (batch, heads, tokens, dim)
            make, size = partial(_run_on, random, attend, (shape,) * 3), float(batch * heads * tokens * dim)
            yield Case(what, 4.0 * size * tokens, width * 8 * size, make)
    for rows, hidden in ROWS:
        yield from _moves(torch, random, rows, hidden, width)
    for rows, words in VOCABULARIES:
        yield _embedding(torch, random, rows, words, width)
        make, once = partial(_loss, torch, random, rows, words), float(rows * words)
        yield Case("loss", once * (width + 4), 2 * once * (width + 4), make)
    if precision == "fp32":
        yield from _updates(torch)
        yield Case("watched", 1.0, 1e6, lambda: (_watched(torch), None))


def _instance(forward: Forward, *leaves: Any) -> Instance:
    def backward(out: Any) -> None:
        out.backward(out.detach())
        for leaf in leaves:
            leaf.grad = None

    return forward, backward


def _moves(torch: Any, random: Any, rows: int, hidden: int, width: int) -> Iterator[Case]:
    """Kernels bound by memory, or by Python where they are small; sizes: bytes read and written forward."""
    functional, once = torch.nn.functional, float(rows * hidden * width)
    whole, row = (rows, hidden), (hidden,)
    kernels: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
        "norm": (lambda x, w: functional.rms_norm(x, row, w, 1e-5), (whole, row), 2),
        "layer_norm": (lambda x, w, b: functional.layer_norm(x, row, w, b), (whole, row, row), 2),
        "gated": (lambda gate, up: functional.silu(gate) * up, (whole, whole), 3),
        "activation": (lambda x: functional.gelu(x, approximate="tanh"), (whole,), 2),
        "residual": (lambda x, y: x + y, (whole, whole), 3),
    }
    for what, (run, shapes, passes) in kernels.items():
        yield Case(what, passes * once, 2 * passes * once, partial(_run_on, random, run, shapes))
    yield Case("rope", 2 * once, 8 * once, partial(_rope, torch, random, rows, hidden))


def _run_on(random: Any, run: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> Instance:
    numbers = [random(*shape) for shape in shapes]
    return _instance(partial(run, *numbers), *numbers)


def _rope(torch: Any, random: Any, rows: int, hidden: int) -> Instance:
    heads = random(1, rows, hidden // 32, 32)
    cos, sin = (random(1, rows, 1, 16, kind=torch.float32).detach() for _ in range(2))

    def rotate() -> Any:
        first, second = heads[..., :16], heads[..., 16:]
        parts = [first * cos - second * sin, second * cos + first * sin]
        return torch.cat(parts, dim=-1).to(heads.dtype)

    return _instance(rotate, heads)


def _embedding(torch: Any, random: Any, rows: int, words: int, width: int, hidden: int = 256) -> Case:
    """A look-up; its backward fills a gradient of the whole table."""

    def make() -> Instance:
        table, tokens = random(words, hidden), torch.arange(rows) % words
        return _instance(partial(torch.nn.functional.embedding, tokens, table), table)

    table = float(words * hidden * width)
    return Case("embedding", 2.0 * rows * hidden * width, 2 * table, make, table)


def _loss(torch: Any, random: Any, rows: int, words: int) -> Instance:
    """Cross-entropy whose gradient is made in place, as the trainer's."""
    logits, targets = random(rows, words).detach(), torch.zeros(rows, dtype=torch.int64)

    def forward() -> Any:
        logs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        torch.nn.functional.nll_loss(logs, targets, reduction="sum")
        return logs

    def backward(logs: Any) -> Any:
        gradient, hot = logs.exp_(), targets[:, None]
        gradient.scatter_add_(1, hot, -torch.ones_like(hot, dtype=gradient.dtype))
        gradient.mul_(torch.ones(rows, 1))
        return gradient.to(logits.dtype)

    return forward, backward


def _updates(torch: Any) -> Iterator[Case]:
    """A step's operations on fp32 numbers: sums of gradients, their norm, and Adam."""

    def add(size: int) -> Instance:
        return partial(torch.zeros(size).add_, torch.ones(size)), None

    def update(size: int) -> Instance:
        weight = torch.ones(size).requires_grad_()
        weight.grad = torch.ones(size)
        adam = torch.optim.AdamW([weight], lr=1e-9, fused=True)
        pieces = weight.grad.split(NORM_PIECE)

        def run() -> None:
            torch._foreach_norm(pieces)
            adam.step()

        return run, None

    for size in ELEMENTS:
        yield Case("add", float(size), 8.0 * size, partial(add, size))
        yield Case("optimizer", float(size), 16.0 * size, partial(update, size))


def _watched(torch: Any) -> Callable[[], Any]:
    """One operator that Python looks at, as selective recomputation has it do."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    x = torch.ones(1)

    def run() -> None:
        with Watch():  # type: ignore[no-untyped-call]
            torch.neg(x)

    return run


MOVES = ("norm", "layer_norm", "gated", "activation", "rope", "residual", "embedding", "loss")


def numpy_timings(seconds: float) -> Iterator[Curve]:
    """Products and passes over memory in numpy; backwards are taken for twice their forwards.

    Messages aren't timed by it: `ranks.py` adds what a stream over the loopback interface does.
    """
    generator = np.random.default_rng(0)

    def random(*shape: int) -> Any:
        return generator.standard_normal(shape, dtype=np.float32)

    def seconds_of(call: Callable[..., Any], *shapes: tuple[int, ...]) -> float:
        touched = 8.0 * sum(math.prod(shape) for shape in shapes)
        case = Case("", 0.0, touched, lambda: (partial(call, *(random(*shape) for shape in shapes)), None))
        return times(case, seconds)[0]

    points: defaultdict[str, list[Point]] = defaultdict(list)
    for rows, k, n in PRODUCTS:
        points["linear"].append((2.0 * rows * k * n, seconds_of(np.matmul, (rows, k), (k, n))))
    for size in ELEMENTS:
        once, moved = seconds_of(np.add, (size,), (size,)), seconds_of(np.tanh, (size,))
        points["add"].append((float(size), once))
        points["optimizer"].append((float(size), 6 * once))
        for what in MOVES:
            points[what].append((8.0 * size, moved))
    points["attention"] = points["linear"]
    for what, kernel_points in points.items():
        precision = None if what in ALIKE else "fp32"
        yield curve(what, kernel_points, "forward", precision)
        if precision:
            yield curve(what, [(size, 2 * s) for size, s in kernel_points], "backward", precision)
