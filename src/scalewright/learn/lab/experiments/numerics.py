"""Number formats on real gradients: what fp16 loses without a loss scale, bf16 of small updates, and sums of order.

|g| S <= smallest / 2      becomes 0                        fp16: 2^-25 without a scale (S = 1)
|g| S >  largest           becomes inf                      the scale ends below largest / max |g|
w + u = w                  u / w below epsilon / 2          bf16: 1/512 of the weight
sum of n                   error <= (n - 1) epsilon / 2     one after the other; log2 n in pairs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scalewright.learn.lab.bench import Bench
from scalewright.learn.lab.outcome import Curve, Outcome, Value, curves, table
from scalewright.learn.numerics import FORMATS, loss_scale, lost_update, sum_error, tree_sum_error
from scalewright.spec.common.formatting import share

WIDTH, LAYERS, TOKENS = 128, 4, 512
SCALES = tuple(range(0, 33, 4))  # powers of two
TERMS = 1 << 20


def run(bench: Bench) -> Outcome:
    """Gradients of a small network on text, cast; an update that survives; sums in two orders."""
    cast = bench.part("gradients in fp16", lambda: _gradients(bench.text, bench.seed))
    sums = bench.part("sums of a million numbers", lambda: _sums(bench.seed))
    survives = bench.part("the smallest update that bf16 keeps", _least_update)
    best, exact = cast["scale"], "counted on the same gradients in fp32"
    values = [
        Value("gradients that fp16 makes 0, unscaled", cast["zero"][0], cast["below"][0], "share",
              "|g| <= 2^-25", 0.0, exact),
        Value("... at the loss scale", cast["zero_at_scale"], cast["below_at_scale"], "share", "|g| S <= 2^-25", 0.0,
              exact),
        Value("gradients that become inf at the loss scale", cast["inf_at_scale"], 0.0, "share",
              "S <= 65,504 / max |g|", 0.0, exact),
        Value("least relative update that bf16 keeps", survives, lost_update("bf16"), "", "epsilon / 2", 0.01,
              "to the next number above it"),
        Value("error of an fp32 sum, one after the other", sums["in_order"], sum_error(TERMS), "",
              "(n - 1) epsilon / 2", 0.0, "a bound", "at most"),
        Value("error of the sum in pairs", sums["in_pairs"], tree_sum_error(TERMS), "", "log2 n epsilon / 2", 0.0,
              "a bound", "at most"),
    ]  # fmt: skip
    lines = [
        Curve("become 0", list(zip(SCALES, cast["zero"], strict=True))),
        Curve("become inf", list(zip(SCALES, cast["inf"], strict=True))),
        Curve("below half of the smallest number", list(zip(SCALES, cast["below"], strict=True)), expected=True),
    ]
    rows: list[Sequence[str | int]]
    rows = [[name, f.bits, f"{f.largest:.3g}", f"{f.smallest_normal:.2g}", f"{f.epsilon:.2g}",
             share(cast["lost"][name])]
            for name, f in FORMATS.items() if name in cast["lost"]]  # fmt: skip
    heads = ["format", "bits", "largest", "smallest normal", "epsilon", "gradients lost, unscaled"]
    return Outcome(
        values,
        [
            curves("gradients that fp16 loses, by the loss scale", "log2 of the scale", "share", lines, ("", "share")),
            table("formats", heads, rows),
        ],
        [f"the largest power of two that keeps the largest gradient finite is 2^{best.bit_length() - 1}"],
    )  # fmt: skip


def _gradients(text: bytes, seed: int) -> dict[str, Any]:
    """Shares of a small network's gradients that a cast makes 0 or inf, and the shares that the formats predict."""
    import torch

    from scalewright.learn.lab.network import Bytes

    network = Bytes(WIDTH, LAYERS, seed)
    torch.autograd.backward(network.loss(text[: TOKENS + 1], torch.arange(TOKENS)))
    gradient = network.gradient().double()
    gradient = gradient[gradient != 0]
    size, half = gradient.numel(), FORMATS["fp16"].smallest / 2

    def zeros(scale: float) -> float:
        return float(((gradient * scale).half() == 0).sum() / size)

    def infinite(scale: float) -> float:
        return float((gradient * scale).half().isinf().sum() / size)

    def below(scale: float) -> float:
        return float(((gradient * scale).abs() <= half).sum() / size)

    scale = int(loss_scale(float(gradient.abs().max())))
    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    return {
        "zero": [zeros(2.0**power) for power in SCALES], "inf": [infinite(2.0**power) for power in SCALES],
        "below": [below(2.0**power) for power in SCALES], "scale": scale, "zero_at_scale": zeros(scale),
        "below_at_scale": below(scale), "inf_at_scale": infinite(scale),
        "lost": {name: float((gradient.float().to(kind).float() == 0).sum() / size) for name, kind in kinds.items()},
    }  # fmt: skip


def _least_update() -> float:
    """The smallest share of a weight of 1 that changes it in bf16, by bisection."""
    import torch

    low, high = 0.0, 1.0
    one = torch.ones((), dtype=torch.bfloat16)
    for _ in range(40):
        middle = (low + high) / 2
        kept = bool((one.double() + middle).to(torch.bfloat16) > one)
        low, high = (low, middle) if kept else (middle, high)
    return high


def _sums(seed: int) -> dict[str, float]:
    import numpy as np

    numbers = np.random.default_rng(seed).random(TERMS, dtype=np.float32)
    exact = numbers.astype(np.float64).sum()
    in_order = np.cumsum(numbers, dtype=np.float32)[-1]  # numpy adds a running sum one number after the other
    pairs = numbers
    while len(pairs) > 1:
        pairs = pairs[0::2] + pairs[1::2]
    return {"in_order": abs(float(in_order) - exact) / exact, "in_pairs": abs(float(pairs[0]) - exact) / exact}
