"""Positions: how far RoPE's pairs turn and what scalings do to them, beside ALiBi's slopes, on the model's own code.

RoPE    q(p) . k(s) depends on p - s alone; pair i turns once in 2 pi theta^(2 i / d) tokens
linear  every pair slower by f       NTK   the slowest by f, the fastest not      YaRN  slow ones by f, fast ones not
ALiBi   score - slope x distance, slope 2^(-8 (h + 1) / a): nothing turns, nothing is new beyond the trained length
"""

from __future__ import annotations

import math
from typing import Any

from scalewright.learn.attention import alibi_slope, ntk_theta, rope_pairs_within, rope_wavelength
from scalewright.learn.lab.bench import Bench
from scalewright.learn.lab.outcome import Curve, Outcome, Value, curves, table
from scalewright.spec.model import RopeScaling

HEAD, THETA, CONTEXT, FACTOR, HEADS = 64, 10_000.0, 2048, 4.0, 8
ANGLES = "angles in fp32, of positions up to 2,048"


def run(bench: Bench) -> Outcome:
    """Wavelengths that the model's tables have, a score at many positions, slopes of its bias."""
    waves = bench.part("wavelengths", _wavelengths)
    score = bench.part("a score by position", lambda: _score(bench.seed))
    slopes = bench.part("slopes", _slopes)
    pairs = (0, HEAD // 4, HEAD // 2 - 1)
    values = [
        Value(f"tokens of a turn, pair {pair}", waves["none"][pair], rope_wavelength(pair, HEAD, THETA), "tokens",
              "2 pi theta^(2 i / d)", 0.001, ANGLES)
        for pair in pairs
    ]  # fmt: skip
    slowest = HEAD // 2 - 1
    values += [
        Value("linear: the slowest pair, slower by", waves["linear"][slowest] / waves["none"][slowest], FACTOR, "times",
              "f", 0.001, ANGLES),
        Value("YaRN: the fastest pair, slower by", waves["yarn"][0] / waves["none"][0], 1.0, "times", "1", 0.001,
              ANGLES),
        Value("YaRN: the slowest pair, slower by", waves["yarn"][slowest] / waves["none"][slowest], FACTOR, "times",
              "f", 0.001, ANGLES),
        Value("NTK theta: the slowest pair, slower by", _slower(slowest), FACTOR, "times", "theta f^(d / (d - 2))",
              0.001, "by the formula's theta in the model's tables"),
        Value("pairs that turned within 2,048 tokens", sum(wave <= CONTEXT for wave in waves["none"]),
              rope_pairs_within(CONTEXT, HEAD, THETA), "pairs", "d / 2 · ln(s / 2 pi) / ln theta", 0.0, "counted"),
        Value("a score's change when both move", score["moved"], 1e-4, "", "depends on the distance alone", 0.0,
              ANGLES, "at most"),
        Value("ALiBi: slope of the first head", slopes[0], alibi_slope(0, HEADS), "", "2^(-8 / a)", 1e-6, "fp32"),
        Value("ALiBi: slope of the last head", slopes[-1], alibi_slope(HEADS - 1, HEADS), "", "2^-8", 1e-6, "fp32"),
    ]  # fmt: skip
    lines = [Curve(name, [(pair, wave) for pair, wave in enumerate(rows)]) for name, rows in waves.items()]
    lines.append(Curve("the trained length", [(0, CONTEXT), (slowest, CONTEXT)], expected=True))
    rows = [[f"head {head}", f"{slope:.4f}", f"{math.log(100) / slope:,.0f}"] for head, slope in enumerate(slopes)]
    return Outcome(
        values,
        [
            curves("tokens of a turn, by pair", "pair of a head", "tokens", lines, log="y"),
            curves("RoPE: a score as the key moves away", "distance", "q . k of ones", [
                Curve("as the model turns them", score["by_distance"])], log="x"),
            curves("ALiBi: what is subtracted", "distance", "of a score", [
                Curve(f"head {head}", [(at, slopes[head] * at) for at, _ in score["by_distance"]])
                for head in range(0, HEADS, 2)], log="xy"),
            table("ALiBi: where a token weighs a hundredth", ["", "slope", "tokens away"], rows),
        ],
        [f"pairs that never turned within {CONTEXT} tokens meet new angles beyond them"],
    )  # fmt: skip


def _angles(scaling: RopeScaling | None, theta: float = THETA) -> list[float]:
    """Radians a token of every pair, as the model's tables have them."""
    import torch

    from scalewright.model.rope import rotary_tables

    cos, sin = rotary_tables(torch.tensor([[0, 1]]), theta, HEAD, scaling, CONTEXT)
    turned = torch.atan2(sin.double(), cos.double())[0, 1, 0]
    return [float(angle) for angle in turned]


def _wavelengths() -> dict[str, list[float]]:
    kinds = {
        "none": None,
        "linear": RopeScaling(kind="linear", factor=FACTOR),
        "yarn": RopeScaling(kind="yarn", factor=FACTOR, original_context=CONTEXT),
    }
    return {name: [2 * math.pi / angle for angle in _angles(scaling)] for name, scaling in kinds.items()}


def _slower(pair: int) -> float:
    return _angles(None)[pair] / _angles(None, ntk_theta(THETA, FACTOR, HEAD))[pair]


def _score(seed: int) -> dict[str, Any]:
    """A query and a key at one distance, at many places; and two rows of ones over distances."""
    import torch

    from scalewright.model.rope import rotary_tables, rotate

    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 1, 1, 1, HEAD, generator=generator) / HEAD**0.5

    def turned(x: torch.Tensor, position: int) -> torch.Tensor:
        return rotate(x, *rotary_tables(torch.tensor([[position]]), THETA, HEAD, None, CONTEXT))

    scores = [float((turned(q, at + 100) * turned(k, at)).sum()) for at in range(0, CONTEXT - 100, 97)]
    ones = torch.ones(1, 1, 1, HEAD) / HEAD**0.5
    distances = sorted({round(1.25**power) for power in range(34)})
    by_distance = [(at, float((turned(ones, at) * turned(ones, 0)).sum())) for at in distances]
    return {"moved": max(scores) - min(scores), "by_distance": by_distance}


def _slopes() -> list[float]:
    """What a head's bias grows by from one token of distance to the next."""
    import torch

    from scalewright.model.visible import alibi_bias, local_slopes

    slopes = local_slopes(HEADS, range(HEADS), torch.device("cpu"))
    bias = alibi_bias(torch.tensor([9]), torch.arange(10), slopes)[0, :, 0]
    return [float(row[-2] - row[-3]) for row in bias]
