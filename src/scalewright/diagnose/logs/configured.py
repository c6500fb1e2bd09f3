"""A log beside its run's configuration: what such a run should take, and where the two disagree.

pretrain.sh   32 layers of 4,096   tp 8 · pp 2      64 devices ──► plan.predict ──► p10, p50, p90
train.log     tp 8                                  32 devices ──┘   the log is of what ran: 32 devices
flags         --layout pp=1                                          and the user's word goes over both
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scalewright.diagnose.logs.arguments import Facts
from scalewright.plan.defaults import resolve_sizes
from scalewright.plan.predict import price
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.question import Question

SIZES = ("devices", "tp", "pp", "cp", "ep", "micro_batch", "global_batch")  # that logs state, and ran
DIMS = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads"}


def predicted(
    run: Question, cluster: str, facts: Facts, layout: Mapping[str, Any], seq_len: int | None
) -> dict[str, Any]:
    """The keys of `Prediction.dump` for the run, at the sizes that its log states, then those of the flags.

    Raises UserError where such a run can't be.
    """
    place = load_cluster(cluster)
    length = seq_len or facts.get("seq_len") or run.seq_len
    stated = {**run.layout.dump(), **_stated(facts), **layout}
    if "nodes" in layout:
        del stated["devices"]
    if "global_batch_tokens" in layout:
        del stated["global_batch"]
    full = Layout.parse(resolve_sizes(stated, place, length), "layout")
    check_layout(full, run.model, length)
    return price(replace(run, cluster=place).with_length(length).with_layout(full)).dump()


def disagreements(run: Question, facts: Facts) -> list[str]:
    """Where the log and the configuration aren't of the same run, in words."""
    model, layout = run.model, run.layout.dump()
    sizes = [
        f"{key.replace('_', ' ')} is {facts[key]:,} in the log and {layout[key]:,} in the configuration: "
        "the log's is taken"
        for key in SIZES
        if key in _stated(facts) and layout.get(key) not in (None, facts[key])
    ]
    shapes = [
        f"{key} is {facts[key]:,} in the log and {getattr(model, name):,} in the configuration: "
        "is it of this run?"
        for key, name in DIMS.items()
        if isinstance(facts.get(key), int) and facts[key] != getattr(model, name)
    ]
    return sizes + shapes


def _stated(facts: Facts) -> Facts:
    return {key: facts[key] for key in SIZES if isinstance(facts.get(key), int)}
