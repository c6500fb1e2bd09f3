"""Random runs, and what must come back when one is written for a trainer and read again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.settings import OUTSIDE, Settings, settings_of
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec
from scalewright.spec.same import below

DENSE: dict[str, Any] = {
    "name": "dense", "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8, "context": 4096,
    "norm_eps": 1e-6, "rope": {"theta": 500000.0},
}  # fmt: skip
MIXTURE: dict[str, Any] = {
    **DENSE, "name": "mixture", "family": "mixtral",
    "moe": {"num_experts": 8, "top_k": 2, "moe_intermediate_size": 2816},
}  # fmt: skip
COUNTS = pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.slow)])
RESOLVED = ("layout.stage_layers", "lr_schedule.decay_steps")  # nulls that others have as numbers


def random_layout(rng: random.Random, experts: bool) -> dict[str, Any]:
    """Keys of a layout; many are refused by the checks."""
    pp = rng.choice((1, 1, 2, 4))
    schedule = rng.choice(("1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "zb-interleaved")) if pp > 1 else "1f1b"
    return {
        "devices": rng.choice((8, 16, 32, 64)), "tp": rng.choice((1, 1, 2, 4)), "pp": pp,
        "cp": rng.choice((1, 1, 1, 2)), "cp_kind": rng.choice(("ring", "ulysses", "allgather")),
        "ep": rng.choice((1, 2, 4)) if experts else 1, "dp_replicate": rng.choice((1, 1, 2)),
        "schedule": schedule, "zero_stage": rng.choice((0, 1, 2, 3)), "micro_batch": rng.choice((1, 2, 4)),
        "global_batch": rng.choice((64, 128, 256)), "precision": rng.choice(("bf16", "fp16", "fp32", "fp8")),
        "recompute": rng.choice(("none", "full", "selective", {"every": 2}, {"budget": 0.5})),
        "offload": rng.choice(("none", "none", "optimizer", "parameters", "all")),
    }  # fmt: skip


def random_runs(count: int, seed: int, experts: bool = True) -> Iterator[Settings]:
    """So many runs with layouts that are valid for their model; dense models and mixtures in turn."""
    rng, made = random.Random(seed), 0
    while made < count:
        mixture = experts and made % 2 == 1
        model = ModelSpec.parse(MIXTURE if mixture else DENSE)
        optimizer = {"lr": rng.choice((1e-4, 3e-4)), "betas": [0.9, rng.choice((0.95, 0.98))],
                     "weight_decay": rng.choice((0.0, 0.1)), "clip_norm": rng.choice((0.5, 1.0))}  # fmt: skip
        rates = {
            "kind": rng.choice(("cosine", "linear", "constant", "wsd")),
            "warmup_steps": rng.choice((0, 20)),
            "min_ratio": rng.choice((0.0, 0.1)),
        }
        try:
            layout = Layout.parse(random_layout(rng, mixture))
            check_layout(layout, model, 2048)
        except UserError:
            continue
        run = RunSpec.parse({
            "model": model.dump(), "layout": layout.dump(), "data": {"train": "corpus", "seq_len": 2048},
            "optimizer": optimizer, "lr_schedule": rates, "train": {"steps": 200},
            "seed": rng.randrange(1000),
        })  # fmt: skip
        made += 1
        yield settings_of(run)


def differences(settings: Settings, emitted: Emitted, reading: Reading, keys: tuple[str, ...]) -> list[str]:
    """Keys (dotted, or `layout` for all below it) that came back different, though nothing reported them."""
    reported = {item.key for item in (*emitted.dropped, *emitted.changed)}
    skip = (*reported, *OUTSIDE, *settings.irrelevant())
    data = {"train": "corpus", **reading.run.get("data", {})}
    back = RunSpec.parse({"model": settings.model.dump(), **reading.run, "data": data})
    model = back.model if isinstance(back.model, ModelSpec) else settings.model
    values = Settings(back, model).values
    return [
        f"{key}: {value!r} came back as {values.get(key)!r}"
        for key, value in settings.values.items()
        if below(key, keys)
        and not below(key, skip)
        and not (value is None and key in RESOLVED)
        and not _alike(value, values.get(key))
    ]


def _alike(value: Any, back: Any) -> bool:
    """Equal, or the same decimal of a number that was printed."""
    if isinstance(value, float) and isinstance(back, (int, float)):
        return abs(value - back) <= 1e-9 * abs(value)
    if isinstance(value, list) and isinstance(back, list):
        return len(value) == len(back) and all(_alike(a, b) for a, b in zip(value, back, strict=True))
    return bool(value == back)
