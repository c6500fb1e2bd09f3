"""Features of a layout that no bundled run has: each widens the band of a prediction, and is named in the answer.

    megatron, zero 2           no run has it (Megatron-FSDP): never measured       zero 1               hundreds
    schedule zbv               no run of any trainer                               1f1b                 hundreds
    zero 3 and experts         each was measured, and never both                   fp8 and a pipeline   dozens
    50,000 devices             more than twice those of the largest run

`plan/data/measured.yaml` lists those of the bundled runs; a test makes it anew. A ZeRO stage is another program in each
trainer, so that it counts with the trainer; the other features are much the same in all. Each widens the band by
`band.feature`; comparisons/unmeasured_features.py leaves each out of the fit, and looks how far its runs are off then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from scalewright.plan.frameworks import DATA
from scalewright.plan.request import Request
from scalewright.spec.base import read_yaml

FAR = 2  # times the devices of the largest run


def features(r: Request) -> Iterator[str]:
    """What this layout makes use of, and what of it together."""
    if r.devices > 1:
        yield f"zero_stage {r.zero_stage} with {_family(r)}"
    if r.pp > 1:
        yield f"schedule {r.schedule}"
    if r.cp > 1:
        yield f"cp_kind {r.cp_kind}"
    if r.ep > 1:
        yield "expert parallelism"
    if r.offload != "none":
        yield f"offload {r.offload}"
    if r.compress != "none":
        yield f"compress {r.compress}"
    if r.diloco is not None:
        yield "diloco"
    yield f"precision {r.precision}"
    yield from (" and ".join(pair) for pair in combinations(_kinds(r), 2))


def _kinds(r: Request) -> list[str]:
    """What changes a whole step, by kind: bf16 and DDP don't, and ZeRO-1 and 2 are a matter of the trainer."""
    stated = {
        "tensor parallelism": r.tp > 1,
        "pipeline parallelism": r.pp > 1,
        "context parallelism": r.cp > 1,
        "expert parallelism": r.ep > 1,
        "offload": r.offload != "none",
        "zero_stage 3": r.zero_stage == 3 and r.devices > 1,
        f"precision {r.precision}": r.precision not in ("bf16", "fp16"),
    }
    return [name for name, has in stated.items() if has]


def never(r: Request) -> list[str]:
    """Those that no bundled run has; of a trainer without any run its ZeRO stages are no news, and of a feature without
    any its pairs."""
    seen, ours = measured(), "" if r.framework.measured else f"with {_family(r)}"
    names = [name for name in features(r) if name not in seen.features and not (ours and name.endswith(ours))]
    names = [name for name in names if " and " not in name or seen.paired.issuperset(name.split(" and "))]
    far = FAR * seen.devices
    return [*names, f"more than {far} devices"] if r.devices > far else names


def _family(r: Request) -> str:
    """The trainer, whatever its release: `megatron-2020` and `megatron-bridge` are megatron."""
    return re.sub(r"-(\d{4}|gpu|bridge)$", "", r.framework.name)


class Measured(NamedTuple):
    """Of the bundled runs: what they have, what of it in some pair, their devices' names, the most of these, and the
    largest tp, pp, cp and ep."""

    features: frozenset[str]
    paired: frozenset[str]
    chips: frozenset[str]
    devices: int
    sizes: Mapping[str, int]


@lru_cache(maxsize=1)
def measured() -> Measured:
    """What has been measured, from the file."""
    table = read_yaml(DATA / "measured.yaml")
    pairs = [name.split(" and ") for name in table["features"] if " and " in name]
    paired = frozenset(part for pair in pairs for part in pair)
    return Measured(frozenset(table["features"]), paired, frozenset(table["chips"]), table["devices"], table["sizes"])
