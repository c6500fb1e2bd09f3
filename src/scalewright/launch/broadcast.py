"""Where ranks meet that mpirun started on several hosts without MASTER_ADDR: rank 0 tells the others, by MPI.

rank 0: host name, free port ──MPI.bcast──► all ranks ──► tcp://host:port
"""

from __future__ import annotations

import importlib
import socket
from dataclasses import replace

from scalewright.launch.rank import BROADCAST, RankContext
from scalewright.spec.errors import UserError


def with_address(context: RankContext) -> RankContext:
    """The same rank with an address; every rank of the world must call it. UserError without mpi4py."""
    if context.rendezvous != BROADCAST:
        return context
    try:
        rc = importlib.import_module("mpi4py").rc
        rc.finalize = False
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError):  # not installed, or no MPI library for it
        raise UserError(
            f"{context.starter} started {context.world} ranks on several hosts but MASTER_ADDR is not set",
            "environment",
            "set it to the first host (mpirun -x MASTER_ADDR=..., or mpiexec -genv MASTER_ADDR ...), "
            "or install mpi4py, by which rank 0 tells the others",
        ) from None
    address = f"tcp://{socket.gethostname()}:{_free_port()}" if context.rank == 0 else ""
    address = mpi.COMM_WORLD.bcast(address, root=0)
    mpi.Finalize()
    return replace(context, rendezvous=address)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])
