"""Warnings and errors: what each is called, how grave it is, and what to do about it.

    "Connect to 10.0.0.7<3456> failed : Connection refused"  ──► connection refused, peer 10.0.0.7

A line is a problem's where it holds all of its marks (in small letters); the first wins. How grave:

    cause      something to mend: it becomes a verdict
    symptom    says only that something failed elsewhere: a verdict where no cause is known
    harmless   NCCL goes on as well without it
"""

from __future__ import annotations

import re
from typing import NamedTuple

CAUSE, SYMPTOM, HARMLESS = "cause", "symptom", "harmless"
PEER = re.compile(r"(?:to|from|peer|by remote peer) ([\w.:%\-]{1,255})<\d+>")
# An INFO line without any of these words is none of the table's.
HINT = re.compile(r"[Ff]ailed|[Nn]o |not find|isabled|returned|[Uu]nable|refused|timed out|annot|rror")


class Problem(NamedTuple):
    """A row of the table. `any_of`: marks that belong together, in groups, of which one is enough."""

    name: str
    gravity: str
    any_of: tuple[tuple[str, ...], ...]
    fix: str = ""


REACH = (
    "see in the log of the rank at that address why it ended or never came; else let its ports through the "
    "firewall, and name the network that all nodes share with NCCL_SOCKET_IFNAME"
)
FIRST = "look for the first rank that ended: the others only notice that it is gone"
WARNED = "look at the lines with NCCL WARN before it, on all ranks"
PROBLEMS = (
    Problem("no NET plugin", HARMLESS, (("net/plugin", "no plugin found"),)),
    Problem("libnccl-net.so not found", HARMLESS,
            (("could not find: lib", "ccl-net"), ("ccl-net.so: cannot open shared object",))),
    Problem("libmlx5 symbol missing (dlvsym)", HARMLESS, (("dlvsym failed", "mlx5"),)),
    Problem("no InfiniBand device", HARMLESS, (("net/ib", "no device found"),)),
    Problem("P2P disabled between GPUs", HARMLESS, (("p2p is disabled between",),)),
    Problem("adapter can't be opened", CAUSE, (("unable to open device",), ("failed to open libibverbs",)),
            "check `ibv_devinfo` in the job's container: /dev/infiniband and rdma-core must be inside it"),
    Problem("connection refused", CAUSE, (("connection refused",),), REACH),
    Problem("connection timed out", CAUSE,
            (("connection timed out",), ("no route to host",), ("network is unreachable",)), REACH),
    Problem("InfiniBand transport error", CAUSE,
            (("net/ib", "completion", "error"), ("net/ib", "completion", "status="), ("ibv_wc_",)),
            "look at the fabric between these nodes: link errors (`ibqueryerrors`), RoCE's flow control, "
            "NCCL_IB_GID_INDEX; NCCL_IB_TIMEOUT=22 bridges short outages"),
    Problem("connection lost", CAUSE,
            (("connection closed by remote peer",), ("connection reset by peer",), ("broken pipe",)), FIRST),
    Problem("out of GPU memory", CAUSE, (("cuda failure", "out of memory"),),
            "leave NCCL some memory: a smaller micro-batch, fewer communicators, a small NCCL_BUFFSIZE"),
    Problem("shared memory too small", CAUSE,
            (("/dev/shm", "no space"), ("failed to extend /dev/shm",), ("creating shared memory segment",)),
            "give the container more of /dev/shm: `docker run --shm-size=16g` or --ipc=host"),
    Problem("two ranks on one GPU", CAUSE, (("duplicate gpu detected",),),
            "give each rank its own device: torch.cuda.set_device(local rank) before the first collective"),
    Problem("versions of NCCL differ", CAUSE, (("mismatched nccl version",),),
            "load one version everywhere: the same image, and no other libnccl in LD_LIBRARY_PATH"),
    Problem("no socket interface", CAUSE, (("no socket interface found",), ("no interface found",)),
            "set NCCL_SOCKET_IFNAME to an interface that is on every node, or unset it"),
    Problem("memory can't be registered", CAUSE, (("ibv_reg_mr", "fail"), ("ibv_reg_mr", "cannot allocate")),
            "raise the limit of locked memory: `ulimit -l unlimited`, in the container too"),
    Problem("InfiniBand call failed", CAUSE, (("call to ibv_", "failed"), ("call to ibv_", "error")),
            "check `ibv_devinfo`, the adapter's state and NCCL_IB_GID_INDEX"),
    Problem("ranks disagree on a collective", CAUSE, (("message truncated",), ("mismatched collective",)),
            "call the same collectives in the same order and with the same sizes on all ranks"),
    Problem("iommu=pt isn't set", CAUSE, (('missing "iommu=pt"',), ('missing "amd_iommu=on"',)),
            "boot the hosts with iommu=pt: without it GPUs may hang or go through the host"),
    Problem("NUMA balancing is on", CAUSE, (("numa auto balancing enabled",),),
            "turn it off: sysctl kernel.numa_balancing=0"),
    Problem("fine-grained PCIe is off", CAUSE, (("hsa_force_fine_grain_pcie",),), "set HSA_FORCE_FINE_GRAIN_PCIE=1"),
    Problem("CUDA failure", CAUSE, (("cuda failure",), ("hip failure",)),
            "an earlier kernel failed, or the driver is too old: run with CUDA_LAUNCH_BLOCKING=1"),
    Problem("collective timed out", SYMPTOM, (("watchdog caught collective operation timeout",),),
            "find the rank that never came: `scalewright diagnose` reads flight recorder dumps "
            "(TORCH_NCCL_TRACE_BUFFER_SIZE)"),
    Problem("unhandled system error", SYMPTOM, (("unhandled system error",), ("ncclsystemerror",)), WARNED),
    Problem("unhandled CUDA error", SYMPTOM, (("unhandled cuda error",), ("ncclunhandledcudaerror",)), WARNED),
    Problem("a remote rank ended", SYMPTOM, (("ncclremoteerror",), ("remote process exited",)), FIRST),
    Problem("internal error", SYMPTOM, (("ncclinternalerror",),), WARNED),
    Problem("invalid usage", SYMPTOM, (("ncclinvalidusage",), ("ncclinvalidargument",), ("invalid usage",)),
            "look at the lines with NCCL WARN before it: often two ranks on one GPU"),
)  # fmt: skip


def problem(text: str) -> Problem | None:
    """The row that a line belongs to; None for a line of which the table knows nothing."""
    small = text.lower()
    for row in PROBLEMS:
        for marks in row.any_of:
            # the first alone rules out nearly all: a tenth of the time that a generator of all takes
            if marks[0] in small and all(mark in small for mark in marks):
                return row
    return None


def peer(text: str) -> str:
    """The address that a connection went to: `10.0.0.7` of `Connect to 10.0.0.7<3456> failed`."""
    match = PEER.search(text)
    return match[1] if match else ""
