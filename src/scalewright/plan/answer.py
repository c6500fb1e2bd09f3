"""A prediction with what users get beside it: what would help, what would make it fit, what speaks for it.

prediction.dump()                                  the cost           (plan/predict.py)
  + what_if, smallest_fix, evidence                why, and how sure  (plan/explain.py)
  + buys                                           what each axis and technique is for (plan/buys.py)
  + lacks                                          what of the layout its trainer doesn't have
  + stages                                         each pipeline rank (plan/stages.py)
  + total {days, device_hours, cost, ...}          of a whole run (plan/whole_run.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.plan.buys import buys
from scalewright.plan.capabilities import find_capabilities, why_untrainable
from scalewright.plan.chips import Chip
from scalewright.plan.constants import Constants
from scalewright.plan.cost.memory import GIB
from scalewright.plan.explain import evidence, smallest_fix, what_if
from scalewright.plan.frameworks import OURS
from scalewright.plan.predict import Prediction
from scalewright.plan.request import Request
from scalewright.plan.stages import stages
from scalewright.plan.whole_run import WholeRun
from scalewright.spec.layout import Layout


def answer(
    found: Prediction,
    *,
    run: WholeRun | None = None,
    explain: bool = True,
    assumed: Sequence[str] = (),
    c: Constants | None = None,
) -> dict[str, Any]:
    """The keys of `predict --json`, of a whole `run` where it has tokens.

    Without `explain` what_if, buys, smallest_fix, evidence and lacks are left out: they price some forty
    other requests.
    """
    keys = found.dump()
    keys["model"] = {"name": found.request.model.name, **keys["model"]}
    keys["assumed"] = [*assumed, *keys["assumed"]]
    if explain:
        keys["buys"] = buys(found, c)
        keys["what_if"] = what_if(found, c)
        keys["smallest_fix"] = smallest_fix(found, c)
        keys["evidence"] = evidence(found, c=c)
        keys["lacks"] = lacks(found.request, keys["layout"])
    keys |= setting(found.request)
    if explain:
        keys["stages"] = stages(found)
    if run is not None and run.tokens is not None:
        keys["total"] = run.total(found)
        keys["assumed"] += run.assumed(found.request.devices)
    return keys


def setting(request: Request) -> dict[str, Any]:
    """What was asked of: lengths, the device and what of its memory a trainer gets, whose step time it is."""
    chip, trainer = request.chip, request.framework
    return {
        "seq_len": request.seq_len,
        "device": {
            "name": chip.name,
            "kind": chip.kind,
            "per_node": chip.node,
            "memory_gib": chip.capacity / GIB,
            "usable_gib": chip.capacity * trainer.usable / GIB,  # what a trainer can really allocate
            "links": links(chip),
        },
        "framework": trainer.name,
        "optimizer": request.optimizer.written,
    }


def lacks(request: Request, layout: Mapping[str, Any]) -> list[str]:
    """What of a priced layout its trainer doesn't have; of `train`, the reason why it can't run it."""
    kind = request.chip.kind
    if request.framework.name != OURS:
        trainer = find_capabilities(request.framework.name)
        return [*([] if trainer.runs_on(kind) else [f"{kind} support"]), *trainer.missing(layout)]
    keys = {key: value for key, value in layout.items() if key in Layout.model_fields}
    reason = why_untrainable(request.model, Layout.parse(keys, "layout"), request.seq_len, kind)
    return [] if reason is None else [reason]


def links(chip: Chip) -> list[dict[str, Any]]:
    """What joins devices, from the inside out: the kind, how many devices it joins (null: all), its rate."""
    found: list[dict[str, Any]] = []
    if chip.domain > 1:
        found.append({"kind": chip.link_kind, "devices": chip.domain, "bytes_per_s": chip.link_rate})
    if found and chip.fabric_kind == "network":  # no network beyond the domain
        return found
    return [*found, {"kind": chip.fabric_kind, "devices": None, "bytes_per_s": chip.fabric_rate}]
