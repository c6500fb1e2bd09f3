"""A ladder of small runs, to fit a law of one's own to: sizes x tokens, each a run file that `train` takes.

    sizes   0.2M  0.5M  1.2M ...     each with several numbers of tokens, so that N and D vary apart;
    tokens    .25M  .5M  1M ...      what costs more than the cap is left out, but never a size's smallest

Every run ends its own learning-rate schedule: in the middle of a longer run a loss is higher (Hoffmann et al., 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.budget.laws import Law
from scalewright.budget.recipe import recipes, usual
from scalewright.budget.shape import make_shape, size_of
from scalewright.spec.base import to_yaml
from scalewright.spec.common.files import write_signed
from scalewright.spec.common.formatting import count, counted
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec

SIZES, STEPS = 5, 32  # sizes of a ladder where none are given, and how many times the smallest its largest has
RATIOS = (10.0, 20.0, 40.0)  # tokens a parameter, where no tokens are given
MOST_RUNS = 200
NARROWEST, LEAST_VOCAB = 64, 512  # of a model with two heads
WARMUP = 0.05
VALID_SEQUENCES = 512  # the same first ones of every run, whatever its batch


@dataclass(frozen=True)
class Rung:
    """One run: its model, exact parameters, and tokens."""

    model: ModelSpec
    params: int
    tokens: float

    @property
    def flops(self) -> float:
        return 6.0 * self.params * self.tokens

    @property
    def name(self) -> str:
        return f"n{count(self.params)}-d{count(self.tokens)}".lower()


def ladder(
    law: Law, flops: float | None, params: Sequence[float], tokens: Sequence[float], like: str | None, vocab: int | None
) -> list[Rung]:
    """The runs, from small to large. `flops`: the most of one run. Raises UserError."""
    if not params:
        if flops is None:
            how = "add --flops 1e15 (the largest run's), or --params 0.2M,0.5M,1M"
            raise UserError("a ladder needs its largest run or its sizes", "budget ladder", how)
        params = _sizes(law.optimum(flops)[0], vocab or LEAST_VOCAB)
    rungs: dict[tuple[int, float], Rung] = {}
    for wanted in sorted(params):
        model = make_shape(wanted, "total", like, vocab)
        size = size_of(model, "total")
        lengths = sorted(tokens or [ratio * size for ratio in RATIOS])
        kept = [length for length in lengths if flops is None or 6 * size * length <= 1.001 * flops] or lengths[:1]
        rungs |= {(size, length): Rung(model, size, length) for length in kept}
    if len(rungs) > MOST_RUNS:
        raise UserError(
            counted(len(rungs), "runs"), "budget ladder", f"give fewer sizes or tokens: at most {MOST_RUNS} runs"
        )
    return sorted(rungs.values(), key=lambda rung: rung.flops)


def _sizes(largest: float, vocab: int) -> list[float]:
    """Sizes up to the largest, in equal ratios; the smallest isn't mostly its embedding. Raises UserError."""
    smallest = max(largest / STEPS, 2 * NARROWEST * vocab)
    if smallest > largest / 4:
        how = "give more --flops, or a smaller --vocab"
        raise UserError(f"a ladder up to {count(largest)} parameters, of vocabulary {vocab:,}", "budget ladder", how)
    return [largest * (smallest / largest) ** (1 - at / (SIZES - 1)) for at in range(SIZES)]


def write(rungs: Sequence[Rung], folder: Path, data: str | None, seq_len: int, device: str, force: bool) -> list[Path]:
    """A run file each, in `folder`; their runs go to folder/runs."""
    paths = []
    for rung in rungs:
        path = folder / f"{rung.name}.yaml"
        write_signed(path, to_yaml(run_keys(rung, folder, data, seq_len, device)), force)
        paths.append(path)
    return paths


def run_keys(rung: Rung, folder: Path, data: str | None, seq_len: int, device: str) -> dict[str, Any]:
    """The keys of a rung's run file."""
    batch, rate = usual(recipes(rung.params, size_of(rung.model, "non-embedding"), rung.tokens, None))
    sequences = max(1, round(batch / seq_len))
    steps = max(1, round(rung.tokens / (sequences * seq_len)))
    source = {"train": data, "valid": data} if data else {"train": "DATA_FOLDER"}
    return {
        "version": 1, "name": rung.name, "out_dir": str(folder / "runs" / rung.name), "model": rung.model.written(),
        "device": device, "data": {**source, "seq_len": seq_len},
        "layout": {"global_batch": sequences, "micro_batch": sequences},
        "optimizer": {"lr": float(f"{rate:.3g}")},
        "lr_schedule": {"kind": "cosine", "warmup_steps": max(1, round(WARMUP * steps)), "min_ratio": 0.1},
        "train": {"steps": steps, "valid_every": steps if data else 0,
                  "valid_batches": max(1, round(VALID_SEQUENCES / sequences))},
        "checkpoint": {"at_end": False},
    }  # fmt: skip
