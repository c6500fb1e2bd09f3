"""What slows or stops a run's communication: one rule, one function, silent where its cause isn't shown.

    errors           what the table of problems knows, and warnings that it doesn't
    slow_links.py    between nodes: sockets instead of InfiniBand · GPUDirect RDMA off · few adapters
                     within one: the network or shared memory instead of P2P · PCIe instead of NVLink
    differences.py   hosts and ranks that do otherwise than the rest

NCCL chooses on its own, and says why only in passing: a rule looks for the reason among the variables and
messages, and its confidence falls where there is none.

Errors that only follow from others are left out:

ncclSystemError on 31 ranks, "Connect to 10.0.0.7 failed : Connection refused" on one  ──► the one
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scalewright.diagnose.nccl.differences import DIFFERENCES
from scalewright.diagnose.nccl.log import Log, Message, names
from scalewright.diagnose.nccl.problems import CAUSE, SYMPTOM
from scalewright.diagnose.nccl.slow_links import BETWEEN, WITHIN
from scalewright.diagnose.nccl.summary import Summary
from scalewright.diagnose.verdict import Verdict

MOST_UNKNOWN = 5  # warnings that the table doesn't know: the first tell most, the rest is among the messages


def errors(log: Log) -> list[Verdict]:
    """Warnings of the table; those that only say that something failed where nothing tells what."""
    causes = [message for message in log.messages.values() if message.problem.gravity == CAUSE]
    known = [message for message in causes if message.problem.any_of]
    symptoms = [message for message in log.messages.values() if message.problem.gravity == SYMPTOM]
    unknown = [message for message in causes if not message.problem.any_of]
    return [_error(message) for message in [*known, *unknown[:MOST_UNKNOWN], *([] if known else symptoms)]]


def _error(message: Message) -> Verdict:
    evidence = [f"{message.file}, line {message.line}: {message.text}"]
    if message.count > 1 or message.hosts:
        times = "once" if message.count == 1 else f"{message.count:,} times"
        evidence.append(f"printed {times}" + (f", by {names(sorted(message.hosts))}" if message.hosts else ""))
    if message.peers:
        evidence.append(f"the other end: {names(sorted(message.peers))}")
    fix = message.problem.fix or "NCCL's own words: its documentation's chapter on troubleshooting has most of them"
    return Verdict(message.problem.name, evidence, fix,
                   0.9 if message.problem.gravity == CAUSE and message.problem.any_of else 0.5)  # fmt: skip


RULES: Sequence[Callable[[Summary], Verdict | None]] = (*BETWEEN, *WITHIN, *DIFFERENCES)


def verdicts(run: Summary) -> list[Verdict]:
    """All causes: errors first, then what slows, the surest first."""
    slow = [verdict for rule in RULES if (verdict := rule(run)) is not None]
    return [*errors(run.log), *sorted(slow, key=lambda verdict: -(verdict.confidence or 0.0))]
