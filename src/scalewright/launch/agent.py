"""torchrun with two habits more: a signal lets its ranks save, and its exit code is theirs.

    TERM, USR1, USR2, HUP, Ctrl-C --> agent --TERM--> ranks: save, then leave with 75
                                 agent <---75--- ranks       torchrun would leave with 1, the agent with 75
    a second Ctrl-C          --> agent --KILL--> ranks: nobody saves anything

torchrun by itself kills ranks 30 s after a SIGTERM, dies of a SIGUSR1 and leaves them behind, and turns every
exit code into 1: a scheduler can't tell "saved, start me again" from a crash.

With --nnodes=MIN:MAX the ranks are started again where they are left by a node, or joined by one:

    a node dies             its ranks' peers fail ──► restart without it
    a node is asked to go   all save, 75; it tells the others' agents by the store ──► restart without it
    a node comes            torchrun asks the ranks to leave: save, 75 ──► restart with it

A rank that says that no further start helps (`no_more_starts` of settings.py) is not started again.

    python -m scalewright.launch.agent [--saved CODE] TORCHRUN'S OPTIONS -m scalewright train run.yaml

`--saved`: the code in the place of 75, for schedulers that restart on codes of their own.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from scalewright.launch.settings import ends_told
from scalewright.launch.stop import STOP_SIGNALS, begin_anew, heard_signals, keep_exit_code
from scalewright.spec.common.formatting import printable
from scalewright.spec.common.ports import port_is_taken
from scalewright.spec.errors import Stopped, UserError

INTERRUPTED = 128 + signal.SIGINT  # the shells' code
MONITOR = "_monitor_workers"  # of torchrun's agent: a look at its ranks, ten times a second
LEFT_TO_TORCHRUN = "SIGQUIT"
LEAVES = "scalewright/leaves"  # in the agents' store of a round
ENDED_BY_US = (-signal.SIGTERM,)  # torchrun ends the ranks that are slower to leave than the first


def main(arguments: Sequence[str]) -> int:
    """Runs torchrun with these options; returns the exit code."""
    begin_anew()
    keep_exit_code()
    options = list(arguments)
    saved = Stopped.exit_code
    if options[:1] == ["--saved"]:
        saved, options = int(options[1]), options[2:]
    asked: list[int] = []
    told: set[int] = set()

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        at_once = asked.count(signal.SIGINT) > 1
        told.clear()
        _end_ranks(told, at_once=at_once)
        if not told:
            sys.exit(INTERRUPTED if at_once else saved)  # there is no rank yet, and nothing to save

    for number in heard_signals():
        signal.signal(number, pass_on)
    if any(re.fullmatch(r"(--nnodes=)?\d+:\d+", option) for option in options):
        # Where ranks meet is made anew for each world: torch 2.13 keeps the old one's for nodes that were there before.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # Seconds, in which a signal would have ended this process with its own code.
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        with ends_told() as ended:
            look = _ends_saved(getattr(LocalElasticAgent, MONITOR), asked, told, ended)
            setattr(LocalElasticAgent, MONITOR, look)
            torchrun(["--signals-to-handle", LEFT_TO_TORCHRUN, *options])
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        if asked.count(signal.SIGINT) > 1 and Stopped.exit_code not in codes:
            return INTERRUPTED
        if were_saved(codes, asked=bool(asked)):
            print("the ranks saved and left: start them again to go on", file=sys.stderr, flush=True)
            return saved
        print(printable(error), file=sys.stderr, flush=True)
        return first_code(codes)
    except RuntimeError as error:
        if (taken := port_is_taken(error)) is None:
            raise
        print(f"error: {printable(taken)}", file=sys.stderr, flush=True)
        return UserError.exit_code
    return 0


def _ends_saved(
    monitor: Callable[..., Any], asked: list[int], told: set[int], ended: Callable[[], bool]
) -> Callable[..., Any]:
    """torchrun's look at its ranks, after which it doesn't start again those that saved and left.

    `--max-restarts` is for crashes: ranks that leave with 75 were asked to, here or on another node.
    Ranks that were started while a signal came are asked here.
    """

    def look(agent: Any, *arguments: Any) -> Any:
        elastic = agent._worker_group.spec.rdzv_handler.get_backend() != "static"
        if asked:
            if elastic:
                _leave(agent)
            _end_ranks(told, at_once=False)
        result = monitor(agent, *arguments)
        codes = [failure.exitcode for failure in result.failures.values()]
        if not codes:
            return result
        saved = were_saved(codes, asked=bool(asked))
        if saved and not asked and elastic and _goes_on(agent):
            agent._remaining_restarts += 1  # it takes one off: a node that comes or goes is no crash
        elif saved or ended():
            agent._remaining_restarts = 0
        elif agent._remaining_restarts:
            _end_ranks(set(), at_once=True)  # torchrun would wait 30 s for those that wait for a rank that is gone
        return result

    return look


def _leave(agent: Any) -> None:
    """Tells the other agents that this node goes. torchrun would close the rendezvous behind itself, for all."""
    with suppress(Exception):  # the store is gone with its node
        agent._worker_group.store.set(LEAVES, b"1")
    agent._worker_group.spec.rdzv_handler.shutdown = lambda: True


def _goes_on(agent: Any) -> bool:
    """Whether ranks saved and left because a node comes or goes, and not the run's end."""
    with suppress(Exception):
        return bool(
            agent._worker_group.spec.rdzv_handler.num_nodes_waiting() or agent._worker_group.store.check([LEAVES])
        )
    return False


def were_saved(codes: Iterable[int], *, asked: bool) -> bool:
    """Whether ranks that left with these codes are to be started again.

    One that left with 75 speaks for all: they agree on a step, and leave when every part is written. After a signal
    (`asked`) ranks that it killed before they had a handler have nothing to lose either: Slurm sends it to them, too.
    """
    codes = set(codes)
    if asked:
        return codes <= {Stopped.exit_code, *(-number for number in (*STOP_SIGNALS, getattr(signal, "SIGKILL", 9)))}
    return Stopped.exit_code in codes and codes <= {Stopped.exit_code, *ENDED_BY_US}


def first_code(codes: Iterable[int]) -> int:
    """The code to leave with after a failure: a rank's own, or 128 + the signal that killed it."""
    codes = sorted(codes)
    exited = [code for code in codes if code > 0 and code != Stopped.exit_code]
    killed = [128 - code for code in codes if code < 0 and code not in ENDED_BY_US]
    return [*exited, *killed, 1][0]


def _end_ranks(told: set[int], *, at_once: bool) -> None:
    """Asks torchrun's workers, this process's children, to save, or kills them: those not yet in `told`."""
    import psutil  # once the handlers are set

    for rank in psutil.Process(os.getpid()).children():
        if rank.pid not in told:
            told.add(rank.pid)
            with suppress(psutil.NoSuchProcess):  # it has left meanwhile
                (rank.kill if at_once else rank.terminate)()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
