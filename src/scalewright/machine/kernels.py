"""The kernels of a training step, timed one by one at a few sizes each: what a CPU's prices are made of.

    linear  attention  norm  gated  activation  rope  residual  embedding  loss  add  optimizer

Forward and backward apart, through autograd, written as the model's own code writes them: an operator of many
small steps costs what its steps cost. Sizes span what fits a cache and what doesn't. One thread is timed by
its own clock, which stands still while something else has the core. torch is imported by the caller;
`numpy_timings` is for a machine without it, and coarse.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from scalewright.machine.probe import TORCH_TYPES

ROWS = ((16, 64), (128, 256), (512, 512), (2048, 768))  # tokens and hidden size of the memory-bound kernels
PRODUCTS = ((16, 32, 64), (128, 64, 176), (128, 384, 1024), (512, 384, 1024), (1024, 768, 2048))
SQUARES = ((1, 16, 2, 16), (1, 64, 4, 32), (1, 256, 8, 64), (4, 256, 8, 64))  # batch, tokens, heads, dim
VOCABULARIES = ((16, 64), (128, 1024), (512, 8192))  # tokens and words
ELEMENTS = (1 << 10, 1 << 16, 1 << 20, 1 << 23)
COLD_BYTES, COPIES = 48e6, 64  # a layer's weights come from memory: all others were read since the last time
QUARTILE = 0.25  # whatever else runs can only add to a time
ALIKE = ("add", "optimizer", "watched")  # the same whatever a run computes in
Clock = Callable[[], float]


@dataclass(frozen=True)
class Case:
    """One kernel at one size: a forward, and what makes its backward from the forward's output."""

    what: str
    size: float
    forward: Callable[[], Any]
    backward: Callable[[Any], Any] | None = None
    backward_size: float | None = None


def torch_timings(torch: Any, precision: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Every kernel's curves in `precision`, as plain data for `Timing`; each case takes about `seconds`."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for case in torch_cases(torch, precision):
        forward, backward = _times(case, seconds, clock)
        found.setdefault((case.what, "forward"), []).append((case.size, forward))
        if backward is not None:
            size = case.backward_size or case.size
            found.setdefault((case.what, "backward"), []).append((size, backward))
    for (what, phase), points in found.items():
        yield curve(what, points, phase, None if what in ALIKE else precision)


def curve(
    what: str, points: Sequence[tuple[float, float]], phase: str = "forward", precision: str | None = None
) -> dict[str, Any]:
    """Points as a curve that never falls: a larger size can't be faster, so its time bounds the smaller's."""
    sizes, seconds = zip(*sorted(points), strict=True)
    falling = np.minimum.accumulate(np.array(seconds)[::-1])[::-1]
    return {
        "what": what, "phase": phase, "precision": precision,
        "sizes": [float(size) for size in sizes], "seconds": [max(float(s), 1e-9) for s in falling],
    }  # fmt: skip


def quick(times: Sequence[float]) -> float:
    """The quartile of the fast runs."""
    return sorted(times)[int(QUARTILE * (len(times) - 1))]


def _times(
    case: Case, seconds: float, clock: Clock = time.perf_counter, most: int = 40
) -> tuple[float, float | None]:
    """Seconds of a forward and of a backward."""
    forward: list[float] = []
    backward: list[float] = []
    end = time.perf_counter() + seconds
    while len(forward) < 3 or (time.perf_counter() < end and len(forward) < most):
        start = clock()
        out = case.forward()
        middle = clock()
        forward.append(middle - start)
        if case.backward is not None:
            case.backward(out)
            backward.append(clock() - middle)
        if len(forward) == 2 and forward[1] > 4 * seconds:  # a slow machine: once has to do
            break
    return quick(forward[1:]), quick(backward[1:]) if backward else None  # the first pays for set-up


# -- torch ----------------------------------------------------------------------------------------


def torch_cases(torch: Any, precision: str) -> Iterator[Case]:
    """The kernels of a step in `precision`, from small to large."""
    dtype = getattr(torch, TORCH_TYPES[precision])
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, kind: Any = dtype) -> Any:
        return torch.randn(*shape, generator=generator).to(kind).requires_grad_()

    functional = torch.nn.functional
    for rows, k, n in PRODUCTS:
        x, weight = random(rows, k), random(n, k)
        many = min(COPIES, 1 + int(COLD_BYTES / (n * k * dtype.itemsize)))
        layers = [weight, *(weight.detach().clone().requires_grad_() for _ in range(many - 1))]
        run = _in_turn(functional.linear, x, layers)
        yield _case("linear", 2.0 * rows * k * n, run, x, *layers)
    for batch, tokens, heads, dim in SQUARES:
        three = [random(batch, heads, tokens, dim) for _ in range(3)]
        attend = partial(functional.scaled_dot_product_attention, *three, is_causal=True)
        yield _case("attention", 4.0 * batch * heads * tokens**2 * dim, attend, *three)
    width = dtype.itemsize
    for rows, hidden in ROWS:
        yield from _moves(torch, random, rows, hidden, width)
    for rows, words in VOCABULARIES:
        yield _embedding(functional, random, torch, rows, words)
        yield _loss(torch, random, rows, words)
    if precision == "fp32":
        yield from _updates(torch)
        yield Case("watched", 1.0, _watched(torch))


def _in_turn(linear: Callable[..., Any], x: Any, layers: list[Any]) -> Callable[[], Any]:
    """A product with one layer's weights after the other's."""
    turns = itertools.cycle(layers)
    return lambda: linear(x, next(turns))


def _case(what: str, size: float, forward: Callable[[], Any], *leaves: Any) -> Case:
    def backward(out: Any) -> None:
        out.backward(out.detach())
        for leaf in leaves:
            leaf.grad = None

    return Case(what, size, forward, backward)


def _moves(torch: Any, random: Any, rows: int, hidden: int, width: int) -> Iterator[Case]:
    """Kernels bound by memory, or by Python where they are small; sizes: bytes read and written forward."""
    functional = torch.nn.functional
    x, y = random(rows, hidden), random(rows, hidden)
    scale, shift = random(hidden, kind=torch.float32), random(hidden, kind=torch.float32)
    scale, shift = (t.detach().to(x.dtype).requires_grad_() for t in (scale, shift))
    once = float(rows * hidden * width)
    shape = (hidden,)
    yield _case("norm", 2 * once, lambda: functional.rms_norm(x, shape, scale, 1e-5), x, scale)
    yield _case(
        "layer_norm", 2 * once, lambda: functional.layer_norm(x, shape, scale, shift), x, scale, shift
    )
    yield _case("gated", 3 * once, lambda: functional.silu(x) * y, x, y)
    yield _case("activation", 2 * once, lambda: functional.gelu(x, approximate="tanh"), x)
    yield _case("residual", 3 * once, lambda: x + y, x, y)
    heads = random(1, rows, hidden // 32, 32)
    cos, sin = (random(1, rows, 1, 16, kind=torch.float32).detach() for _ in range(2))

    def rotate() -> Any:
        first, second = heads[..., :16], heads[..., 16:]
        parts = [first * cos - second * sin, second * cos + first * sin]
        return torch.cat(parts, dim=-1).to(heads.dtype)

    yield _case("rope", 2 * once, rotate, heads)


def _embedding(functional: Any, random: Any, torch: Any, rows: int, words: int, hidden: int = 256) -> Case:
    """A look-up; its backward fills a gradient of the whole table."""
    table, tokens = random(words, hidden), torch.arange(rows) % words
    width = table.element_size()
    look = _case(
        "embedding", 2.0 * rows * hidden * width, partial(functional.embedding, tokens, table), table
    )
    return replace(look, backward_size=float(words * hidden * width))


def _loss(torch: Any, random: Any, rows: int, words: int) -> Case:
    """Cross-entropy whose gradient is made in place, as the trainer's."""
    logits, targets = random(rows, words).detach(), torch.zeros(rows, dtype=torch.int64)
    size = float(rows * words * (logits.element_size() + 4))

    def forward() -> Any:
        logs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        torch.nn.functional.nll_loss(logs, targets, reduction="sum")
        return logs

    def backward(logs: Any) -> Any:
        gradient = logs.exp_()
        hot = targets[:, None]
        gradient.scatter_add_(1, hot, -torch.ones_like(hot, dtype=gradient.dtype))
        gradient.mul_(torch.ones(rows, 1))
        return gradient.to(logits.dtype)

    return Case("loss", size, forward, backward)


def _updates(torch: Any) -> Iterator[Case]:
    """What a step does to fp32 numbers: sums of gradients, their norm, and Adam."""
    for size in ELEMENTS:
        weight = torch.randn(size, generator=torch.Generator().manual_seed(0)).requires_grad_()
        weight.grad = torch.ones(size)
        total = torch.zeros(size)
        yield Case("add", float(size), partial(total.add_, weight.grad))
        adam = torch.optim.AdamW([weight], lr=1e-9, fused=True)

        def update(adam: Any = adam, weight: Any = weight) -> None:
            torch._foreach_norm([weight.grad])
            adam.step()

        yield Case("optimizer", float(size), update)


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


# -- numpy, where there is no torch ---------------------------------------------------------------


def numpy_timings(seconds: float) -> Iterator[dict[str, Any]]:
    """Products and passes over memory in numpy; backwards are taken for twice their forwards."""
    generator = np.random.default_rng(0)
    points: dict[str, list[tuple[float, float]]] = {}
    for rows, k, n in PRODUCTS:
        x, weight = generator.standard_normal((rows, k)), generator.standard_normal((k, n))
        x, weight = x.astype(np.float32), weight.astype(np.float32)
        once, _ = _times(Case("linear", 0, partial(np.matmul, x, weight)), seconds)
        points.setdefault("linear", []).append((2.0 * rows * k * n, once))
    for size in ELEMENTS:
        x = generator.standard_normal(size).astype(np.float32)
        once, _ = _times(Case("add", 0, partial(np.add, x, x, np.empty_like(x))), seconds)
        points.setdefault("add", []).append((float(size), once))
        points.setdefault("optimizer", []).append((float(size), 6 * once))
        moved, _ = _times(Case("move", 0, partial(np.tanh, x)), seconds)
        for what in ("norm", "layer_norm", "gated", "activation", "rope", "residual", "embedding", "loss"):
            points.setdefault(what, []).append((8.0 * size, moved))
    points["attention"] = points["linear"]
    for what, some in points.items():
        precision = None if what in ("add", "optimizer") else "fp32"
        yield curve(what, some, "forward", precision)
        if precision:
            yield curve(what, [(size, 2 * s) for size, s in some], "backward", precision)
