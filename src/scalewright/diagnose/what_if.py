"""`--what-if NAME=FACTOR`: the step's time with some cost changed, by a replay of the trace.

    compute, memcpy, transfer      kernels, copies of memory, collectives without waiting in them
    host, data                     the host's work between its calls, the data loader's part of it
    waits                          0: the host never waits for the device
    stragglers                     0: ranks that others wait for are as the median one in what makes them late
    attention, optimizer, ...      kernels of one kind (traces/kinds.py)
    tp, dp_shard, ...              the transfer of a process group with this in its name
    rank2.compute                  a cost of one rank

A factor of 0.5 halves a cost, 0 takes it away, 2 doubles it. The answer is as good as the dependencies of replay.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scalewright.diagnose.ranks import Ranks
from scalewright.diagnose.replay import Change
from scalewright.diagnose.traces.kinds import COMMUNICATION
from scalewright.diagnose.verdicts import as_the_median
from scalewright.spec.errors import UserError

COSTS = {
    "compute": "compute",
    "memcpy": "copies",
    "transfer": "transfer",
    "host": "host",
    "data": "data",
}  # -> Change's
ALIASES = {"communication": "transfer", "copies": "memcpy"}
WAITS, STRAGGLERS = "waits", "stragglers"
ONE_RANK = re.compile(r"rank ?(\d+)\.(.+)")


def what_if(ranks: Ranks, texts: Sequence[str]) -> list[dict[str, object]]:
    """Each change by itself, and all of them together where there are several.

    Raises UserError for a name that the traces don't have, or for traces of GPUs and CPUs together.
    """
    if not ranks.replays:
        problem = "some ranks have a GPU's activity and some have none: they can't be replayed together"
        raise UserError(problem, "--what-if", "give traces of one kind")
    changes = [(text, _changes(ranks, text)) for text in texts]
    if len(changes) > 1:
        changes.append((", ".join(texts), [change for _, some in changes for change in some]))
    return [_effect(ranks, text, some) for text, some in changes]


def _effect(ranks: Ranks, text: str, changes: Sequence[Change]) -> dict[str, object]:
    gain = ranks.gain(*changes)
    steps = ranks.ranks[0].steps
    step = float((steps.end - steps.start).mean()) / 1e9 if len(steps) else None
    if ranks.recording is not None:
        step = ranks.recording.step
    return {
        "change": text,
        "window_s": ranks.window / 1e9 * (1 - gain / 100),
        "step_time_s": step * (1 - gain / 100) if step is not None else None,
        "gain_pct": gain,
    }


def _changes(ranks: Ranks, text: str) -> list[Change]:
    """The replay's changes for `NAME=FACTOR`."""
    name, equals, number = (part.strip() for part in text.rpartition("="))
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if not equals or not name or not 0 <= factor < math.inf:
        raise UserError(f"{text!r} is no NAME=FACTOR", "--what-if", "write for example `compute=0.8` or `data=0`")
    if match := ONE_RANK.fullmatch(name):
        only = frozenset({_place(ranks, int(match[1]), text)})
        return [replace(change, ranks=only) for change in _named(ranks, match[2], factor, text, of_a_rank=True)]
    return _named(ranks, name, factor, text)


def _named(ranks: Ranks, name: str, factor: float, text: str, of_a_rank: bool = False) -> list[Change]:
    cost = ALIASES.get(name.lower(), name.lower())
    costs = [known for known in COSTS if not (of_a_rank and known == "transfer")]
    if cost in costs:
        changed: dict[str, Any] = {COSTS[cost]: factor}
        return [Change(**changed)]
    if cost in (WAITS, STRAGGLERS) and factor != 0:
        raise UserError(f"{cost} can only be taken away", "--what-if", f"write `{cost}=0`")
    if cost == WAITS:
        return [Change(waits=False)]
    if cost == STRAGGLERS and not of_a_rank:
        return [as_the_median(ranks, late) for late in ranks.stragglers]
    kinds = sorted({kind for recorded in ranks.recorded for kind in recorded.kind} - {"", COMMUNICATION})
    if cost in kinds:
        return [Change(kinds={cost: factor})]
    groups = [] if of_a_rank else [g.group for g in ranks.matched if cost in g.group.lower()]
    if groups:
        return [Change(groups=dict.fromkeys(groups, factor))]
    known = [*costs, WAITS, *kinds, *([] if of_a_rank else [STRAGGLERS, *(g.group for g in ranks.matched)])]
    how = f"take {', '.join(known[:-1])} or {known[-1]}"
    raise UserError(f"nothing in the trace has the name {name!r}", f"--what-if {text}", how)


def _place(ranks: Ranks, number: int, text: str) -> int:
    numbers = [rank.trace.rank for rank in ranks.ranks]
    if number not in numbers:
        known = ", ".join(str(rank) for rank in numbers if rank is not None) or "none has a number"
        raise UserError(f"there is no trace of rank {number}", f"--what-if {text}", f"take one of these: {known}")
    return numbers.index(number)
