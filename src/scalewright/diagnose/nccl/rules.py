"""What slows or stops a run's communication: one rule, one function, silent where its cause isn't shown.

    errors.py        what the table of problems knows, and warnings that it doesn't
    between_nodes.py  sockets instead of InfiniBand · GPUDirect RDMA off · few adapters · the wrong interface
    within_node.py   the network or shared memory instead of P2P · PCIe instead of NVLink · few channels
    differences.py   hosts and ranks that do otherwise than the rest

NCCL chooses on its own, and says why only in passing: a rule looks for the reason among the variables and
messages, and its confidence falls where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scalewright.diagnose.nccl.between_nodes import BETWEEN
from scalewright.diagnose.nccl.differences import DIFFERENCES
from scalewright.diagnose.nccl.errors import errors
from scalewright.diagnose.nccl.summary import Summary
from scalewright.diagnose.nccl.within_node import WITHIN
from scalewright.diagnose.verdict import Verdict

RULES: Sequence[Callable[[Summary], Verdict | None]] = (*BETWEEN, *WITHIN, *DIFFERENCES)


def verdicts(run: Summary) -> list[Verdict]:
    """All causes: errors first, then what slows, the surest first."""
    slow = [verdict for rule in RULES if (verdict := rule(run)) is not None]
    return [*errors(run.log), *sorted(slow, key=lambda verdict: -(verdict.confidence or 0.0))]
