"""Why some sources and rows are far off: what we know or think, a line each; "unknown" where we don't."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.plan.request import Request

FAR_SOURCES = {
    "bloom-chronicles": "single early iterations on a cluster that was being set up: the same layout took 130"
    " and 119 s in two tries. The same trainer and device in vTrain's table are a fifth faster at the same"
    " shapes, and no input tells the two apart.",
    "ultrascale-playbook": "nanotron's host floors (gradients added up by hooks, stages that wait for each"
    " other across nodes) show in no other source: left out, they are guessed.",
    "vtrain-single": "models of 0.15 to 0.3 billion parameters on one node, where memory-bound kernels and"
    " launches of that trainer decide: left out, these are guessed.",
    "megatron-bridge": "mixtures of experts, whose software moved by 1.3 to 1.8 within a year at the same layout.",
    "maxtext-tpu": "neither batch nor layout is stated: both are assumed.",
    "aws-h100-dispatch": "mixtures over EFA, whose dispatch reaches a part of the NICs' rate, on hosts that take"
    " 17 ms a layer whatever it sends: scored, and not fitted.",
    "nemo-longseq": "sequences up to 1M tokens; its times follow from TFLOP/s, and offload isn't stated.",
}

WHY = {
    "stalled": "slow like the stalled runs of that cluster (a fault that grows with devices), not marked",
    "wide": "host floor of tensor groups across nodes, extrapolated",
    "nanotron": "host floors that only nanotron has",
    "nemo-megatron-a100": "no layout, batch or recomputation stated: the planner's own are priced",
    "llama2-paper": "GPU-hours of whole runs, failures and checkpoints included; no layout stated",
    "bloom-chronicles": "one early iteration; see the source above",
    "early experts": "experts in a release of before 2026: later ones are up to 1.8 times as fast",
    "maxtext-tpu": "batch and layout not stated",
    "internevo": "400 Gbit/s a node for a thousand devices: traffic doesn't hide behind computation",
    "maxtext-gpu": "a small batch on XLA: what it hides isn't known",
    "vtrain-multi": "1.3 to 1.6 times as slow as with twice the micro-batch: the host, unseen by us",
    "vtrain-single": "tens of milliseconds to 2 s a step on models of 0.3B parameters: launches decide",
    "llm-foundry-mpt": "micro-batch 1 under FSDP: gathers of every micro-batch hide less than assumed",
}


def row_reason(row: Mapping[str, Any], request: Request, error: float) -> str:
    """The first reason that holds, or "unknown"; `error` is relative."""
    trainer, source = request.framework, str(row.get("source", ""))
    if trainer.name == "nanotron":
        stalled = error < 0 if request.devices >= 256 else error < -0.5
        return WHY["stalled" if stalled else "wide" if request.tp > 8 else "nanotron"]
    if request.model.moe is not None and trainer.kernels == "modern":
        return WHY["early experts"] if error < 0 and trainer.year < 2026 else "unknown"
    if source == "llm-foundry-mpt" and request.micro_batch > 1:
        return "unknown"
    if source == "vtrain-multi" and error > 0:
        return "unknown"
    return WHY.get(source) or WHY.get(trainer.name) or "unknown"
