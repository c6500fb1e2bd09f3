"""Where ranks meet, made sure of: rank 0 tells it over MPI where nothing else does; a name has to resolve.

rank 0: host name, free port ──MPI.bcast──► all ranks ──► tcp://host:port
"""

from __future__ import annotations

import importlib
import socket
from dataclasses import replace

from scalewright.launch.rank import BROADCAST, RankContext
from scalewright.spec.errors import UserError

# Their hosts are there before the job is. A pod's name may resolve a minute after its neighbour has started.
RESOLVED = ("Slurm", "LSF")


def with_address(context: RankContext) -> RankContext:
    """The same rank with an address; every rank of the world must call it.

    Raises UserError where mpirun gives no address and mpi4py isn't there, and for a name unknown here: the
    ranks would wait for it until the timeout of the start.
    """
    if context.rendezvous == BROADCAST:
        return replace(context, rendezvous=_broadcast(context))
    if context.starter in RESOLVED:
        _check_name(context)
    return context


def _broadcast(context: RankContext) -> str:
    what = f"{context.starter} started {context.world} ranks on several hosts but MASTER_ADDR is not set"
    how = "set it to the first host (mpirun -x MASTER_ADDR=... or mpiexec -genv MASTER_ADDR ...), or install "
    how += "mpi4py for this MPI, by which rank 0 tells the others"
    try:
        rc = importlib.import_module("mpi4py").rc
        rc.finalize = False
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError):  # not installed, or no MPI library for it
        raise UserError(what, "environment", how) from None
    if mpi.COMM_WORLD.size != context.world:
        raise UserError(f"{what}, and mpi4py is another MPI's: it sees no other rank", "environment", how)
    address = f"tcp://{socket.gethostname()}:{free_port()}" if context.rank == 0 else ""
    address = mpi.COMM_WORLD.bcast(address, root=0)
    mpi.Finalize()
    return str(address)


def _check_name(context: RankContext) -> None:
    host = context.rendezvous.removeprefix("tcp://").rpartition(":")[0]
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        what = f"{host}, where the ranks are to meet, has no address here ({error.strerror})"
        how = "export MASTER_ADDR=<a name or address of it that every node knows>"
        raise UserError(what, "environment", how) from None


def free_port() -> int:
    """One of this host that nobody listens at."""
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])
