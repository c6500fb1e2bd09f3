"""Whether the threads of this run fit into the cores that are idle; one line at its start where they don't.

The number of threads is not changed for it: sums of another number of threads differ in their last bits, and
a resume on a quieter machine would no longer be the same run.
"""

from __future__ import annotations

import torch

from scalewright.launch.rank import RankContext
from scalewright.machine.load import CpuMark, others_busy, too_many_threads
from scalewright.machine.processor import read_processor


def thread_remark(context: RankContext, busy: CpuMark | float | None) -> str | None:
    """The line, or None. `busy`: cores that others keep busy, or the mark since which that is counted."""
    others = others_busy(busy, alike=context.local_world) if isinstance(busy, CpuMark) else busy
    return too_many_threads(read_processor(), torch.get_num_threads(), context.local_world, others)
