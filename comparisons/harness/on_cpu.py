"""Runs a training script on CPU processes where its trainer wants accelerators: `on_cpu.py train.py`.

Accelerate   shards (FSDP2) on accelerators alone: it is told that Gloo's processes have some
DeepSpeed    sums in shared memory with code that is compiled first: left out, Gloo does it
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from typing import Any


def main() -> None:
    """Puts the stand-ins in place and runs the script."""
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))  # not this folder, whose names hide others
    accelerate()
    with contextlib.suppress(ImportError):
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    runpy.run_path(sys.argv[0], run_name="__main__")


def accelerate() -> None:
    """Processes that the launcher started for accelerators have the CPU in their place."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    plain = PartialState._prepare_backend

    def gloo(self: Any, cpu: bool = False, *rest: Any, **keys: Any) -> Any:
        if cpu:  # the run's own wish
            return plain(self, cpu, *rest, **keys)
        return "gloo", DistributedType.MULTI_GPU

    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = gloo


if __name__ == "__main__":
    main()
