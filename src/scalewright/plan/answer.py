"""The answer of `predict`: the prediction, changes that would help, the smallest fix, and the evidence.

prediction.dump()                                  the cost           (plan/predict.py)
  + what_if, smallest_fix, evidence                the reasons and the evidence  (plan/explain.py)
  + buys                                           the gain of each axis and technique (plan/ablation.py)
  + lacks                                          features of the layout that its trainer lacks
  + stages                                         each pipeline stage (plan/stages.py)
  + total {days, device_hours, cost, ...}          the whole run (plan/whole_run.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.plan.ablation import ablation
from scalewright.plan.capabilities import of_framework, why_untrainable
from scalewright.plan.chips import Chip
from scalewright.plan.constants import Constants
from scalewright.plan.cost.memory import GIB
from scalewright.plan.explain import evidence, smallest_fix, what_if
from scalewright.plan.frameworks import OURS
from scalewright.plan.predict import Prediction
from scalewright.plan.records import Link
from scalewright.plan.request import Request
from scalewright.plan.stages import stages
from scalewright.plan.whole_run import WholeRun
from scalewright.spec.layout import Layout


def answer(
    prediction: Prediction,
    *,
    run: WholeRun | None = None,
    explain: bool = True,
    assumed: Sequence[str] = (),
    c: Constants | None = None,
) -> dict[str, Any]:
    """The keys of `predict --json`; `total` only where `run` has tokens.

    `explain` false leaves out what_if, buys, smallest_fix, evidence, lacks and stages; the first four price
    about forty other requests.
    """
    keys = prediction.dump()
    keys["model"] = {"name": prediction.request.model.name, **keys["model"]}
    keys["assumed"] = [*assumed, *keys["assumed"]]
    if explain:
        keys["buys"] = ablation(prediction, c)
        keys["what_if"] = what_if(prediction, c)
        keys["smallest_fix"] = smallest_fix(prediction, c)
        keys["evidence"] = evidence(prediction, c=c)
        keys["lacks"] = lacks(prediction.request, keys["layout"])
    keys |= setting(prediction.request)
    if explain:
        keys["stages"] = stages(prediction)
    if run is not None and run.tokens is not None:
        keys["total"] = run.total(prediction)
        keys["assumed"] += run.assumed(prediction.request.devices)
    return keys


def setting(request: Request) -> dict[str, Any]:
    """The sequence length, the device with its usable memory and links, the trainer and the optimizer."""
    chip, trainer = request.chip, request.framework
    return {
        "seq_len": request.seq_len,
        "device": {
            "name": chip.name,
            "kind": chip.kind,
            "per_node": chip.node,
            "memory_gib": chip.capacity / GIB,
            "usable_gib": chip.capacity * trainer.usable / GIB,  # what a trainer can allocate of it
            "links": links(chip),
        },
        "framework": trainer.name,
        "optimizer": request.optimizer.written,
        **({"diloco": request.diloco.dump()} if request.diloco is not None else {}),
    }


def lacks(request: Request, layout: Mapping[str, Any]) -> list[str]:
    """Features of the layout that its trainer lacks; for our own trainer, why `train` can't run it."""
    kind = request.chip.kind
    if request.framework.name != OURS:
        trainer = of_framework(request.framework)
        return [*([] if trainer.runs_on(kind) else [f"{kind} support"]), *trainer.missing(layout)]
    keys = {key: value for key, value in layout.items() if key in Layout.model_fields}
    reason = why_untrainable(request.model, Layout.parse(keys, "layout"), request.seq_len, kind)
    return [] if reason is None else [reason]


def links(chip: Chip) -> list[Link]:
    """The links from the inside out: their kind, the devices that one joins (null: all), its rate."""
    levels: list[Link] = []
    if chip.domain > 1:
        levels.append({"kind": chip.link_kind, "devices": chip.domain, "bytes_per_s": chip.link_rate})
    if levels and chip.fabric_kind == "network":  # no network beyond the domain
        return levels
    return [*levels, {"kind": chip.fabric_kind, "devices": None, "bytes_per_s": chip.fabric_rate}]
