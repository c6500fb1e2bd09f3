"""Batch size: a sum of micro-batches is the batch, and beyond the gradient's noise scale more sequences save few steps.

    |G_B|² = |G|² + tr(S) / B        expected square of a gradient of B examples (McCandlish et al. 2018, eq. A.1)
    noise scale = tr(S) / |G|²       the batch at which noise and signal are alike

|G|² and tr(S) are fitted on small and large batches of real text; the squares of the batches between are then expected.
"""

from __future__ import annotations

from typing import Any

from scalewright.learn.lab.bench import Bench
from scalewright.learn.lab.outcome import Curve, Outcome, Value, curves
from scalewright.learn.scaling import steps_over_least

WIDTH, LAYERS = 64, 2
BATCHES = (8, 32, 128, 512, 2048)
MICRO = 4  # micro-batches of the accumulated one


def run(bench: Bench) -> Outcome:
    """Mean squares of gradients by batch size, and one batch cut into micro-batches."""
    draws = 48 if bench.short else 192
    squares = {int(size): mean for size, mean in bench.part("gradients", lambda: _squares(bench, draws)).items()}
    added = bench.part("accumulation", lambda: _accumulated(bench))
    low, high = BATCHES[0], BATCHES[-1]
    noise = (squares[low] - squares[high]) / (1 / low - 1 / high)
    signal = squares[high] - noise / high
    scale = noise / signal
    values = [
        Value("difference of the accumulated gradient", added["difference"], 1e-5, "",
              f"the mean of {MICRO} micro-batches", 0.0, "fp32's rounding of another order, of the largest gradient",
              "at most")
    ]  # fmt: skip
    values += [
        Value(f"mean square of a gradient of {size}", squares[size], signal + noise / size, "", "|G|² + tr(S) / B",
              0.25, f"the mean of {draws} draws")
        for size in BATCHES[1:-1]
    ]  # fmt: skip
    smooth = [round(2 ** (power / 2)) for power in range(4, 25)]
    lines = [
        Curve("measured", list(squares.items())),
        Curve("|G|² + tr(S) / B", [(size, signal + noise / size) for size in smooth], expected=True),
    ]
    steps = [(size, steps_over_least(size, scale)) for size in smooth]
    return Outcome(
        values,
        [
            curves("the square of a gradient by batch", "examples", "square", lines, log="xy"),
            curves("steps needed, over the fewest", "examples", "times", [Curve("1 + B_noise / B", steps, True)],
                   log="xy"),
        ],
        [f"the noise scale of this network at its start is {scale:,.0f} examples; it grows as the loss falls"],
    )  # fmt: skip


def _squares(bench: Bench, draws: int) -> dict[int, float]:
    import torch

    from scalewright.learn.lab.network import Bytes

    network, generator = Bytes(WIDTH, LAYERS, bench.seed), torch.Generator().manual_seed(bench.seed)
    means = {}
    for size in BATCHES:
        total, rounds = 0.0, max(8, draws * BATCHES[0] // size) if size > 128 else draws
        for _ in range(rounds):
            places = torch.randint(8, len(bench.text) - 1, (size,), generator=generator)
            torch.autograd.backward(network.loss(bench.text, places))
            total += float(network.gradient().double().square().sum())
        means[size] = total / rounds
    return means


def _accumulated(bench: Bench) -> dict[str, Any]:
    import torch

    from scalewright.learn.lab.network import Bytes

    network = Bytes(WIDTH, LAYERS, bench.seed)
    places = torch.arange(8, 8 + 64 * 11, 11)
    torch.autograd.backward(network.loss(bench.text, places))
    whole = network.gradient()
    for part in places.chunk(MICRO):
        torch.autograd.backward(network.loss(bench.text, part) / MICRO)
    return {"difference": float((network.gradient() - whole).abs().max() / whole.abs().max())}
