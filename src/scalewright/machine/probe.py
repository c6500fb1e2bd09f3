"""A quick look at what this machine really does: matmul rates, copy bandwidth, and whether bf16 is worth it.

    matmul rate   2 n^3 / seconds, n doubled until one product takes long enough to time; the best of several
    copy          bytes read + bytes written per second, on arrays larger than any cache
    bf16          the three products of a linear layer, fp32 and bf16 by turns, in several rounds:
                  forward y = x W^T     input gradient dx = dy W     weight gradient dW = dy^T x
                  times as fast = median over rounds of (fp32 seconds / bf16 seconds of the same round)

The best of several runs stands for the peak; the median stands beside it. On a busy machine even the best may
be too low, so a run leaves MFU out once its steps do more than that (`train/metrics/record.py`). torch is
imported lazily; without it numpy measures fp32 on the CPU.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scalewright.spec.common.formatting import counted
from scalewright.spec.hardware.timings import BF16_MARGIN

BF16_AGREEMENT = 0.75  # share of the rounds that must have bf16 ahead: one lucky moment decides nothing
BF16_ROUNDS = (5, 50)  # at least, at most
BF16_SLOW_S = 0.3  # rounds longer than this are slow enough to be told apart by three of them
Run = Callable[[], Any]
TORCH_TYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Rate:
    """One measured rate, and what was measured."""

    what: str
    per_s: float  # the best run; FLOP/s or bytes/s
    median_per_s: float
    runs: int
    how: str
    threads: int | None = None  # CPU threads at work; None = not a CPU, or not known

    @classmethod
    def of(cls, what: str, amount: float, times: Sequence[float], how: str, threads: int | None = None) -> Rate:
        """The rate of `amount` FLOPs or bytes that took `times` seconds, run by run."""
        best, usual, runs = min(times), statistics.median(times), len(times)
        return cls(what, amount / best, amount / usual, runs, f"{how}, best of {runs}", threads)


@dataclass(frozen=True)
class Bf16Speed:
    """bf16 against fp32 on the products of one linear layer; true when bf16 is the faster by a margin."""

    device: str
    forward: float  # times as fast as fp32
    input_gradient: float
    weight_gradient: float
    overall: float  # of the three together
    how: str
    rounds: int = 1
    agreement: float = 1.0  # share of the rounds in which bf16 took less time than fp32
    fp32_per_s: float = 0.0  # FLOP/s of the three together, the median of the rounds
    spread: float = 1.0  # their upper quartile of fp32's time over the lower one

    @property
    def bf16_per_s(self) -> float:
        """FLOP/s in bf16. By the ratio of each round's two times: a busy moment that met one alone isn't in it."""
        return self.fp32_per_s * self.overall

    @property
    def fast(self) -> bool:
        """Whether bf16 is worth it here: faster by the margin, in most rounds, and no product slower."""
        none_slower = min(self.forward, self.input_gradient, self.weight_gradient) >= 1
        return self.overall >= BF16_MARGIN and self.agreement >= BF16_AGREEMENT and none_slower

    def __bool__(self) -> bool:
        return self.fast

    def dump(self) -> dict[str, object]:
        return {**asdict(self), "fast": self.fast}

    def describe(self) -> str:
        """One line: how bf16 compares, and what `precision: auto` therefore means."""
        means = "bf16" if self.fast else "fp32"
        parts = f"forward {self.forward:.2f}, backward {self.input_gradient:.2f} and {self.weight_gradient:.2f}"
        rounds = f"medians of {self.rounds} rounds" if self.rounds > 1 else "one round"
        return f"bf16 is {self.overall:.2f} times as fast as fp32 ({parts}; {rounds}): precision auto means {means}"


def load_torch() -> Any | None:
    """torch, or None where it isn't installed or doesn't import."""
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError):  # OSError: a shared library of a broken installation
        return None


def synchronize(torch: Any, device: str) -> None:
    """Waits until the device has done what was asked of it."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device == "mps":
        torch.mps.synchronize()


def time_runs(run: Callable[[], None], seconds: float, least: int = 3, most: int = 50) -> list[float]:
    """The seconds that each of several runs took, for about `seconds` in all."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < end and len(times) < most):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def matmul_rate(precision: str = "fp32", device: str = "cpu", seconds: float = 0.3) -> Rate | None:
    """FLOP/s of a square product in `precision`; None where it can't be measured here. Bounded in time."""
    if (torch := load_torch()) is None:
        if (precision, device) != ("fp32", "cpu"):
            return None
        return _search("fp32", _numpy_product, seconds, f"numpy {np.__version__}")
    if precision not in TORCH_TYPES or (precision == "tf32" and not device.startswith("cuda")):
        return None
    threads = torch.get_num_threads() if device == "cpu" else None
    how = f"torch {torch.__version__} on {device}" + (f" with {counted(threads, 'threads')}" if threads else "")
    try:
        with _tf32(torch, precision == "tf32") if device.startswith("cuda") else contextlib.nullcontext():
            return _search(precision, lambda n: _torch_product(torch, precision, device, n), seconds, how, threads)
    except (RuntimeError, NotImplementedError, TypeError):  # this device has no such product
        return None


def _search(what: str, product: Callable[[int], Run], seconds: float, how: str, threads: int | None = None) -> Rate:
    """Doubles n until one product is long enough to time well, then times several of that size."""
    n, end = 128, time.perf_counter() + seconds
    while True:
        run = product(n)
        run()  # the first call also pays for set-up
        once = min(time_runs(run, 0.0))  # of three: a neighbour's burst of work is not this product's time
        if once > seconds / 12 or (once > seconds / 100 and n >= 512) or n >= 8192:
            break  # the next size takes eight times as long
        n *= 2
    times = time_runs(run, max(seconds / 3, end - time.perf_counter()))
    return Rate.of(f"matmul {what}", 2.0 * n**3, times, f"{how}: {n} x {n} x {n}", threads)


def _numpy_product(n: int) -> Callable[[], None]:
    left, right = np.random.default_rng(0).standard_normal((2, n, n), dtype=np.float32)
    out = np.empty((n, n), dtype=np.float32)

    def run() -> None:
        np.matmul(left, right, out=out)

    return run


def _torch_product(torch: Any, precision: str, device: str, n: int) -> Callable[[], None]:
    dtype = getattr(torch, TORCH_TYPES[precision])
    left, right = (_random(torch, (n, n), device).to(dtype) for _ in range(2))  # zeros would run too fast
    out = torch.empty(n, n, device=device, dtype=dtype)

    def run() -> None:
        torch.mm(left, right, out=out)
        synchronize(torch, device)

    return run


def _random(torch: Any, shape: tuple[int, int], device: str) -> Any:
    """Random numbers from a generator of their own, so that a probe never moves a run's."""
    return torch.randn(*shape, device=device, generator=torch.Generator(device=device).manual_seed(0))


@contextlib.contextmanager
def _tf32(torch: Any, on: bool) -> Iterator[None]:
    """While it lasts, fp32 products on CUDA use TF32, or don't; the setting is put back after."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if on else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def copy_rate(device: str = "cpu", seconds: float = 0.15, size: int = 1 << 27) -> Rate:
    """Bytes/s of a large copy, reads and writes together."""
    torch = load_torch()
    if torch is not None:
        source = torch.ones(size // 4, device=device)
        target = torch.zeros_like(source)

        def run() -> None:
            target.copy_(source)
            synchronize(torch, device)

        how = f"torch {torch.__version__} on {device}"
    else:
        plain, other = np.ones(size // 4, dtype=np.float32), np.zeros(size // 4, dtype=np.float32)

        def run() -> None:
            np.copyto(other, plain)

        how = f"numpy {np.__version__}, one thread"
    run()
    return Rate.of("copy", 2.0 * size, time_runs(run, seconds), f"{how}: {size >> 20} MiB read and written")


def compare_bf16(device: str = "cpu", seconds: float = 0.4) -> Bf16Speed | None:
    """bf16 against fp32 for a linear layer's three products, in rounds; None where torch can't run it.

    A round times each product once in fp32 and at once after it in bf16, so that a busy moment meets both;
    medians over rounds leave out what met one alone.
    """
    if (torch := load_torch()) is None:
        return None
    scale = 8 if device.startswith("cuda") else 1
    tokens, inner, outer = 512 * scale, 512 * scale, 1408 * scale
    shapes = {"x": (tokens, inner), "w": (outer, inner), "dy": (tokens, outer)}
    plain = {name: _random(torch, shape, device) for name, shape in shapes.items()}
    half = {name: value.to(torch.bfloat16) for name, value in plain.items()}

    def products(t: Mapping[str, Any]) -> list[Callable[[], Any]]:
        return [lambda: t["x"] @ t["w"].t(), lambda: t["dy"] @ t["w"], lambda: t["dy"].t() @ t["x"]]

    try:
        pairs = list(zip(products(plain), products(half), strict=True))
        times = _rounds(pairs, seconds, lambda: synchronize(torch, device))
    except (RuntimeError, NotImplementedError):  # no bf16 products at all
        return None
    how = f"torch {torch.__version__} on {device}: {tokens} tokens, {inner} -> {outer}, medians of {len(times)} rounds"
    return _speed(device, times, how, 3 * 2.0 * tokens * inner * outer)


Times = list[tuple[float, float]]  # (fp32, bf16) seconds of each product


def _rounds(
    pairs: Sequence[tuple[Run, Run]], seconds: float, synchronize: Run, clock: Callable[[], float] = time.perf_counter
) -> list[Times]:
    """The seconds of both runs of every pair, round by round, after one round that warms up."""

    def timed(run: Run) -> float:
        start = clock()
        run()
        synchronize()
        return clock() - start

    least, most = BF16_ROUNDS
    rounds: list[Times] = []
    for run in [run for pair in pairs for run in pair]:
        timed(run)
    begin = clock()
    while len(rounds) < most:
        rounds.append([(timed(fp32), timed(bf16)) for fp32, bf16 in pairs])
        spent = clock() - begin
        enough = 3 if spent / len(rounds) > BF16_SLOW_S else least
        if spent >= seconds and len(rounds) >= enough:
            break
    return rounds


def _speed(device: str, rounds: list[Times], how: str, flops: float = 0.0) -> Bf16Speed:
    """The medians over rounds of each product's ratio, and of the ratio of whole rounds, each of so many FLOPs."""
    tiny = 1e-9  # a clock may stand still
    forward, to_input, to_weight = [
        statistics.median(fp32 / max(bf16, tiny) for fp32, bf16 in product) for product in zip(*rounds, strict=True)
    ]
    whole = [sum(fp32 for fp32, _ in times) / max(sum(bf16 for _, bf16 in times), tiny) for times in rounds]
    ahead = sum(ratio > 1 for ratio in whole) / len(whole)
    plain = [max(sum(fp32 for fp32, _ in times), tiny) for times in rounds]
    low, usual, high = statistics.quantiles(plain, n=4) if len(plain) > 1 else plain * 3
    ratios = forward, to_input, to_weight, statistics.median(whole)
    return Bf16Speed(device, *ratios, how, len(rounds), ahead, flops / usual, high / max(low, tiny))
