"""From paths to an answer: what they are decides who reads them.

trace            ranks.py, answer.py        flight_recorder   flight/        memory   memory/
nccl             nccl/                      log, run          logs/
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalewright.diagnose.answer import answer
from scalewright.diagnose.flight.answer import flight_answer
from scalewright.diagnose.inputs import FLIGHT, LOG, NCCL, READ, RUN, TRACE, inputs
from scalewright.diagnose.logs.answer import log_answer
from scalewright.diagnose.logs.expected import Given
from scalewright.diagnose.logs.run_folder import run_answer
from scalewright.diagnose.memory.answer import memory_answer
from scalewright.diagnose.nccl.answer import nccl_answer
from scalewright.diagnose.pickles import NotPlainData
from scalewright.diagnose.ranks import read_ranks
from scalewright.diagnose.traces.json_array import NotATrace
from scalewright.spec.errors import UserError


def diagnose(paths: Sequence[Path], given: Given | None = None) -> dict[str, Any]:
    """The answer, with the keys of its kind; raises UserError for paths that can't be read.

    `given` adds to a log of training what it doesn't state.
    """
    kind, files = inputs(paths)
    given = given or Given()
    if kind != LOG and given != Given():
        what = "model, cluster, layout and seq_len are for a log of training"
        raise UserError(what, f"{paths[0]} is none", "leave them out")
    try:
        if kind == TRACE:
            return answer(read_ranks(files))
        if kind == LOG:
            return log_answer(files, given)
        if kind == RUN:
            return run_answer(files[0])
        if kind == NCCL:
            return nccl_answer(files)
        return flight_answer(files) if kind == FLIGHT else memory_answer(files)
    except (NotATrace, NotPlainData) as error:
        raise UserError(str(error), ", ".join(map(str, paths[:3])), f"give {READ}") from None
    except OSError as error:
        raise UserError(f"it can't be read: {error.strerror}", str(error.filename or paths[0])) from None
