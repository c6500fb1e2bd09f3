"""How sure a prediction is: a spread around the median that grows with what is unknown.

    sigma^2 = base^2 + (engine never measured)^2 + (device of another family)^2 + (experts)^2 + (over a network)^2

Of logarithms, times a factor of each quantity (rate, ttft_s, tpot_s), with which a band holds four fifths of what was
measured by sources that the fit left out, each source with the weight that it has there (`fit.spreads`).
"""

from __future__ import annotations

import numpy as np

from scalewright.inference.constants import Constants
from scalewright.inference.setup import Columns

TENTH = 1.2816  # standard deviations from the median to p10 and p90
MEASURED = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")


def sigmas(t: Columns, c: Constants, of: str = "rate") -> np.ndarray:
    """The standard deviation of the logarithm of each setup's rate, ttft_s or tpot_s."""
    names = [setup.names for setup in t.setups]
    unknown = {
        "engine": [n["host"].removeprefix("host.") not in MEASURED for n in names],
        "device": [n["memory"].endswith((".other", ".tpu")) for n in names],
        "experts": [s.hit < 1 for s in t.setups],
        "network": [n["reduce"] == "reduce.network" and s.tp > 1 for n, s in zip(names, t.setups, strict=True)],
    }
    square = np.full(len(t), c["spread.base"] ** 2)
    for name, which in unknown.items():
        square += np.array(which, dtype=float) * c[f"spread.{name}"] ** 2
    return np.asarray(np.sqrt(square) * c[f"spread.{of}"])


def band(value: float, sigma: float) -> dict[str, float]:
    """p10, p50 and p90 of a median with this spread."""
    factor = float(np.exp(TENTH * sigma))
    return {"p10": value / factor, "p50": value, "p90": value * factor}
