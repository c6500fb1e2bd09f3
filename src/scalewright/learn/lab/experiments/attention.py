"""Attention's square: scores that reach memory against tiles that never leave the chip, bytes counted one by one.

    materialised   q k -> scores -> softmax -> v        4 s d + 4 s² numbers a head
    tiled          for a tile of keys: for all queries: running maximum and sum      2 s d + 3 s d ceil(4 s d / M)

Both are written out with a counter at every load and store of a slow memory (Dao et al. 2022, algorithms 0 and 1; the
maxima and sums, 2 numbers a row and tile, are left out there and counted apart here), and compared with torch's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.learn.attention import materialised_bytes, tiled_bytes
from scalewright.learn.lab.bench import Bench, clock_in_turn
from scalewright.learn.lab.outcome import Curve, Outcome, Value, curves, table
from scalewright.spec.common.formatting import metric

HEAD = 32  # numbers of a head
CHIP = 64 * 1024  # bytes of the fast memory
LENGTHS = (256, 512, 1024)
WIDTH = 4.0  # bytes of fp32
TIMED = (512, 1024, 2048)
Matrix = NDArray[np.float32]


@dataclass
class SlowMemory:
    """Counts the numbers that pass between it and the chip; `rows`: of maxima and sums."""

    moved: int = 0
    rows: int = 0

    def load(self, x: Matrix) -> Matrix:
        self.moved += x.size
        return x

    def store(self, to: Matrix, x: Matrix) -> None:
        self.moved += x.size
        to[...] = x


def run(bench: Bench) -> Outcome:
    """Bytes of both at growing lengths, their difference from torch's attention, and seconds of torch's two kernels."""
    lengths = LENGTHS[:1] if bench.short else LENGTHS
    counted = bench.part("bytes", lambda: {str(s): _count(s, bench.seed) for s in lengths})
    seconds = bench.timed("seconds", lambda: _seconds(TIMED[:2] if bench.short else TIMED, 3 if bench.short else 9))
    values: list[Value] = []
    for length in lengths:
        seen, exact = counted[str(length)], "counted at every load and store"
        values += [
            Value(f"{length} tokens, materialised", seen["materialised"] * WIDTH,
                  materialised_bytes(length, HEAD, element=WIDTH), "B", "4 s d + 4 s²", 0.0, exact),
            Value(f"{length} tokens, tiled", seen["tiled"] * WIDTH, tiled_bytes(length, HEAD, CHIP, element=WIDTH), "B",
                  "2 s d + 3 s d ceil(4 s d / M)", 0.0, exact),
            Value(f"{length} tokens: difference from torch's", seen["difference"], 1e-5, "", "fp32's rounding", 0.0,
                  "a bound", "at most"),
        ]  # fmt: skip
    first, last = (str(length) for length in (TIMED[0], TIMED[1] if bench.short else TIMED[-1]))
    growth = int(last) / int(first)
    values.append(
        Value("seconds of materialised attention, grown",
              seconds["materialised"][last] / seconds["materialised"][first],
              growth**2, "times", "(s2 / s1)²", 0.5, "caches, and softmax beside the products", timed=True)
    )  # fmt: skip
    lines = [Curve(name, [(int(s), t) for s, t in rows.items()]) for name, rows in seconds.items()]
    start = seconds["materialised"][first]
    lines.append(Curve("s²", [(int(s), start * (int(s) / int(first)) ** 2) for s in seconds["tiled"]], expected=True))
    rows = [
        [f"{s} tokens", metric(seen["materialised"] * WIDTH, "B"), metric(seen["tiled"] * WIDTH, "B"),
         f"{seen['materialised'] / seen['tiled']:.1f}", metric(seen["rows"] * WIDTH, "B")]
        for s, seen in counted.items()
    ]  # fmt: skip
    heads = ["a head", "materialised", "tiled", "times fewer", "maxima and sums besides"]
    return Outcome(
        values,
        [table(f"bytes moved with {CHIP // 1024} KiB on the chip", heads, rows),
         curves("seconds of 8 heads on this CPU", "tokens", "seconds", lines, ("", "s"), log="xy")],
    )  # fmt: skip


def _count(length: int, seed: int) -> dict[str, Any]:
    import torch

    drawn = np.random.default_rng(seed).standard_normal((3, length, HEAD), dtype=np.float32)
    q, k, v = drawn
    heads = [torch.from_numpy(x)[None] for x in drawn]
    exact = torch.nn.functional.scaled_dot_product_attention(heads[0], heads[1], heads[2])[0].numpy()
    plain, tiles = SlowMemory(), SlowMemory()
    outputs = (materialised(q, k, v, plain), tiled(q, k, v, tiles))
    difference = max(float(np.abs(out - exact).max()) for out in outputs)
    return {"materialised": plain.moved, "tiled": tiles.moved, "rows": tiles.rows, "difference": difference}


def materialised(q: Matrix, k: Matrix, v: Matrix, memory: SlowMemory) -> Matrix:
    """Attention whose scores, then their softmax, go to memory and come back; [s, d]."""
    scores, shares, out = (
        np.empty((len(q), len(k)), np.float32),
        np.empty((len(q), len(k)), np.float32),
        np.empty_like(q),
    )
    memory.store(scores, memory.load(q) @ memory.load(k).T / math.sqrt(q.shape[1]))
    seen = memory.load(scores)
    powers = np.exp(seen - seen.max(1, keepdims=True))
    memory.store(shares, powers / powers.sum(1, keepdims=True))
    memory.store(out, memory.load(shares) @ memory.load(v))
    return out


def tiled(q: Matrix, k: Matrix, v: Matrix, memory: SlowMemory) -> Matrix:
    """Attention by tiles of keys, each with all queries; a row's maximum and sum are carried along; [s, d]."""
    length, size = q.shape
    tiles = math.ceil(4 * length * size * WIDTH / CHIP)
    step = math.ceil(length / tiles)
    out, highest, total = np.zeros_like(q), np.full((length, 1), -np.inf, np.float32), np.zeros((length, 1), np.float32)
    for first in range(0, length, step):
        keys, values = memory.load(k[first : first + step]), memory.load(v[first : first + step])
        for row in range(0, length, min(step, size)):
            rows = slice(row, row + min(step, size))
            scores = memory.load(q[rows]) @ keys.T / math.sqrt(size)
            top = np.maximum(highest[rows], scores.max(1, keepdims=True))
            powers, kept = np.exp(scores - top), np.exp(highest[rows] - top)
            before = memory.load(out[rows])
            new_total = total[rows] * kept + powers.sum(1, keepdims=True)
            memory.store(out[rows], (before * total[rows] * kept + powers @ values) / new_total)
            highest[rows], total[rows] = top, new_total
            memory.rows += 4 * len(top)
    return out


def _seconds(lengths: tuple[int, ...], repeats: int) -> dict[str, dict[str, float]]:
    import torch

    torch.set_num_threads(1)
    rows: dict[str, dict[str, float]] = {"materialised": {}, "tiled": {}}
    for length in lengths:
        q, k, v = torch.randn(3, 1, 8, length, HEAD)

        def plain(q: Any = q, k: Any = k, v: Any = v) -> Any:
            return (q @ k.transpose(-1, -2) / math.sqrt(HEAD)).softmax(-1) @ v

        def fused(q: Any = q, k: Any = k, v: Any = v) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

        for name, seconds in clock_in_turn({"materialised": plain, "tiled": fused}, repeats).items():
            rows[name][str(length)] = seconds
    return rows
