"""What the planner's table says that a trainer has, beside what is written for it.

    missing(layout) == []   if and only if   no key of the layout is lost: dropped, changed or refused

A trainer's own form of a feature (FORMS) isn't lost. Where one of both is narrower, the reason stands here:
NOT_WRITTEN (the trainer has it), BEYOND_THE_TABLE (which knows neither models nor what divides what),
NOT_LISTED (it has it in a combination for which the table has no rule).
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from emit.limited import written
from emit.random_runs import DENSE, MIXTURE, random_layout
from scalewright.emit.emitted import Changed, Emitted
from scalewright.emit.settings import Settings
from scalewright.emit.trainers import TRAINERS
from scalewright.plan.frameworks import check_name, find_framework, of_framework
from scalewright.spec.capabilities import Capabilities
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec

AXES = {
    "schedule", "virtual_stages", "zero_stage", "tp", "pp", "cp", "ep", "etp", "sp", "cp_kind",
    "dp_replicate", "offload", "recompute",
}  # fmt: skip
FORMS: dict[tuple[str, Any], str] = {  # value -> how the form of it begins that is written
    ("recompute", "selective"): "selective:",  # modules, or every second product
    ("zero_stage", 2): "FSDP",  # without resharding after the forward
    ("schedule", "interleaved"): "circular",  # the same bubble, but all forwards first
}
BEYOND_THE_TABLE = (
    "splits each expert over the ranks of tp", "without expert parallelism torchtitan cuts experts over tp",
    "trains experts beside tp only with the sequence split too", "mixtures of experts aren't written",
    "MaxText can't run ep", "Colossal-AI can't run ep",
    "micro-batches or more, here are", "shards in a node and replicates over nodes",
    "torchtitan shards where context or expert parallelism is",  # ep that tp doesn't take whole
)  # fmt: skip
NOT_WRITTEN = {
    "deepspeed": (
        "DeepSpeed can't run dp_replicate",  # MiCS of stage 3
        "which a recomputation of parts doesn't expect",  # selective, with stage 3
    ),
    "accelerate": ("has no cp_kind ulysses",),  # sp_size, of DeepSpeed
    "transformers": ("has no cp_kind ulysses",),
}
NOT_LISTED = {  # activations of layers that are recomputed
    "accelerate": "offload activations",
    "levanter": "offload activations",
}


def capabilities(name: str) -> Capabilities:
    """As the planner finds them for `--framework NAME`."""
    check_name(name)
    return of_framework(find_framework(name))


@cache
def runs(count: int, seed: int, cluster: str) -> tuple[RunSpec, ...]:
    """Runs with random layouts: dense models and mixtures in turn."""
    rng, models = random.Random(seed), [ModelSpec.parse(DENSE), ModelSpec.parse(MIXTURE)]
    made: list[RunSpec] = []
    while len(made) < count:
        model = models[len(made) % 2]
        layout = _layout(rng, model)
        if layout is not None:
            keys = {"model": model.dump(), "data": {"train": "corpus", "seq_len": 2048}, "train": {"steps": 200}}
            made.append(RunSpec.parse({**keys, "cluster": cluster, "layout": layout.dump()}))
    return tuple(made)


def _layout(rng: random.Random, model: ModelSpec) -> Layout | None:
    """A layout whose data-parallel ranks shard something; None for others."""
    keys = {**random_layout(rng, model.moe is not None), "precision": "bf16"}
    keys |= {
        "offload": rng.choice(("none", "none", "none", "optimizer", "parameters", "activations", "all")),
        "recompute": rng.choice(("none", "none", "full", "selective", {"every": 2}, {"budget": 0.5})),
        "devices": rng.choice((16, 32, 64)),
    }
    if rng.random() < 0.6:  # many have one thing alone that is unusual
        keys |= {"pp": 1, "schedule": "1f1b"}
    if rng.random() < 0.5:
        keys["cp"] = 1
    if rng.random() < 0.4:
        keys["tp"] = 1
    if keys["tp"] > 1:
        keys["sp"] = rng.random() < 0.7
    keys["etp"] = rng.choice((1, keys["tp"])) if model.moe else 1
    try:
        layout = Layout.parse(keys)
        check_layout(layout, model, 2048)
    except UserError:
        return None
    return layout if layout.dp_shard > 1 else None


def lost(answer: Emitted | str) -> list[str]:
    """What is lost of a layout, in words: `axis value: why`."""
    if isinstance(answer, str):
        return [answer]
    items = [*answer.dropped, *(item for item in answer.changed if not _is_form(item))]
    return [
        f"{item.key.removeprefix('layout.')} {item.value}: {item.why}"
        for item in items
        if item.key.startswith("layout.") and item.key.split(".")[1] in AXES
    ]


def _is_form(item: Changed) -> bool:
    axis = item.key.removeprefix("layout.")
    return any(
        axis == known and item.value == value and item.written.startswith(form)
        for (known, value), form in FORMS.items()
    )


def disagreements(name: str, count: int, seed: int) -> list[str]:
    """Layouts on which the table and what is written differ: all that the table lacks must be lost."""
    trainer, differing = capabilities(name), []
    known = (*BEYOND_THE_TABLE, *NOT_WRITTEN.get(name, ()))
    for run in runs(count, seed, "tpu-v5p" if name == "maxtext" else "dgx-h100"):
        assert isinstance(run.model, ModelSpec)
        answer = written(name, Settings(run, run.model))
        losses, lacks = lost(answer), trainer.missing(run.layout.dump())
        beyond = [words for words in losses if not any(text in words for text in known)]
        if (not losses and lacks and lacks != [NOT_LISTED.get(name)]) or (beyond and not lacks):
            differing.append(f"table {lacks}, written {losses}: {run.layout.stated()}")
    return differing


@pytest.mark.parametrize("name", TRAINERS)
def test_the_table_agrees_with_what_is_written(name: str) -> None:
    assert capabilities(name).known
    assert disagreements(name, 40, seed=1) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINERS)
def test_it_agrees_on_many_layouts(name: str) -> None:
    assert disagreements(name, 800, seed=2) == []


@pytest.mark.slow
def test_every_reason_is_one_that_is_given() -> None:
    """A reason that no emitter gives any more must leave the lists."""
    reasons = [*BEYOND_THE_TABLE, *(text for texts in NOT_WRITTEN.values() for text in texts)]
    given: set[str] = set()
    for name in TRAINERS:
        for run in runs(240, 3, "dgx-h100"):
            assert isinstance(run.model, ModelSpec)
            answer = written(name, Settings(run, run.model))
            given |= {text for text in reasons if any(text in words for words in lost(answer))}
    assert given == set(reasons)
