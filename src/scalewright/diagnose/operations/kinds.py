"""The operations of a table by what they do, as data: a new name is a new row.

    name                 does             waits for                  passes on
    forward-compute      compute          its receive
    forward-send         send             its compute                to the next stage's forward-recv
    params-all-gather    communication    all replicas of a stage

The names are those of ByteDance's traces (Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis", OSDI 2025), which follow Megatron-LM.
"""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = {  # name -> whether it is text
    "dp_rank": False, "stage": False, "rank": False, "step": False, "optype": True, "start_ts": False,
    "duration": False, "seq_id": False, "mc": False, "mb_id": False, "gmc": False,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """An operation's part: its direction along the pipeline, and over what it is one collective.

    `direction`: +1 forward, -1 backward, 0 neither. `over_replicas`, `over_stages`: who must have come.
    """

    compute: bool = False
    sends: bool = False
    receives: bool = False
    direction: int = 0
    over_replicas: bool = False
    over_stages: bool = False

    @property
    def passes(self) -> bool:
        """Between neighbouring stages."""
        return self.sends or self.receives

    @property
    def waits(self) -> bool:
        """Whether others must come: its duration is waiting and transfer."""
        return self.passes or self.over_replicas or self.over_stages


FORWARD, BACKWARD = "forward-compute", "backward-compute"
KINDS = {
    FORWARD: Kind(compute=True, direction=1),
    BACKWARD: Kind(compute=True, direction=-1),
    "forward-send": Kind(sends=True, direction=1),
    "forward-recv": Kind(receives=True, direction=1),
    "backward-send": Kind(sends=True, direction=-1),
    "backward-recv": Kind(receives=True, direction=-1),
    "params-all-gather": Kind(over_replicas=True),
    "grads-reduce-scatter": Kind(over_replicas=True),
    "separate-grads-all-reduce": Kind(over_replicas=True),
    "layernorm-grads-all-reduce": Kind(),  # within a worker's tensor-parallel group, one row of the table
    "embedding-grads-all-reduce": Kind(over_stages=True),
    "optimizer-clip-main-grad": Kind(over_replicas=True, over_stages=True),
    "optimizer": Kind(),
    "gc": Kind(),
}
GATHERS = "params-all-gather"  # before the first forward of its model chunk
LOCAL = Kind()  # of a name that isn't in the table
COMMUNICATES = (*(name for name, kind in KINDS.items() if kind.waits), "layernorm-grads-all-reduce")


def kind_of(name: str) -> Kind:
    """The kind of an operation; one without a row takes its own time and waits for nobody."""
    return KINDS.get(name, LOCAL)
