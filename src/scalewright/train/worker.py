"""One rank's whole life: join the others, build (train/build.py), train (train/session.py), leave."""

from __future__ import annotations

import time
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import torch

from scalewright.launch.rank import RankContext
from scalewright.machine.load import CpuMark
from scalewright.parallel.mesh import join_world, leave_world
from scalewright.spec.errors import Stopped
from scalewright.train.build import build
from scalewright.train.device import own_device
from scalewright.train.hangs.patience import Patience
from scalewright.train.memory.out_of_memory import memory_explained
from scalewright.train.resolve import Resolved
from scalewright.train.signals import StopRequest
from scalewright.train.threads import thread_remark


def work(
    context: RankContext,
    resolved: Resolved,
    *,
    device: str,
    until: int | None = None,
    quiet: bool = False,
    busy: CpuMark | float | None = None,
    patience: Patience | None = None,
) -> dict[str, Any]:
    """Trains as one rank; the answer has the keys of `train.run.Result`. Raises Stopped after a signal, not
    after a callback's "stop", on all ranks alike.

    `busy`: how busy others keep this machine (`train/threads.py`). `patience`: the watchdog's.
    """
    started = time.perf_counter()
    place = own_device(device, context)
    if context.threads:
        torch.set_num_threads(context.threads)
    if device == "cuda":
        torch.cuda.set_device(place)
    run = resolved.run
    if run.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    if not context.alone:
        join_world(
            context.rank,
            context.world,
            context.rendezvous,
            place,
            attempt=context.attempt,
            shared_store=context.shared_store,
            timeout=timedelta(seconds=run.train.timeouts.start_s),
        )
    together = False
    try:
        with (
            memory_explained(run, resolved.seq_len, context.rank, place),
            StopRequest(last=context.starter == "local") as stop,
            ExitStack() as kept,
        ):
            session = build(resolved, context, place, quiet, kept, patience)
            if session.record is not None and device == "cpu":
                session.record.remark(thread_remark(context, busy))
            answer = session.train(stop, until, started)
        together = True
        return answer
    except Stopped:  # which all ranks had agreed on
        together = True
        raise
    finally:
        leave_world(together=together)
