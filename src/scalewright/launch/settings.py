"""Settings that libraries read from the environment: written here, or read and passed on; nowhere else."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scalewright.spec.common.files import scratch_folder
from scalewright.spec.errors import UserError

MANY_FILES = 65536  # open files of a rank: sockets to every member of each of its groups, and data


def use_loopback() -> None:
    """Makes Gloo use the loopback interface: local workers need no resolvable host name."""
    if sys.platform in ("linux", "darwin"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")


def make_deterministic() -> None:
    """Sets a fixed workspace for cuBLAS, without which its results may differ from run to run."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def use_expandable_segments() -> None:
    """Lets torch's CUDA allocator grow its segments: blocks of many sizes then leave fewer gaps between them.

    A value that the user's environment sets stays, under torch's older name, too.
    """
    if not os.environ.get("PYTORCH_CUDA_ALLOC_CONF"):
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def keep_few_kernels() -> None:
    """Makes oneDNN, and torch's own list in front of it, keep 128 kernels of 16-bit products on a CPU.

    Their defaults are 1,024, at 0.3 to 1 MiB each, one for every shape that they met: prompts and batches of
    all lengths fill them. To be called before the first product. Values of the user's environment stay.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    os.environ.setdefault("LRU_CACHE_CAPACITY", "128")


def describe_rank(rank: int, world: int, local_rank: int, device: str) -> None:
    """Sets what DeepSpeed reads of a rank, and where it looks for a device: to be called before its import.

    torchrun sets the same; a machine's GPUs are passed over by a run on the CPU.
    """
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(local_rank))
    os.environ["DS_ACCELERATOR"] = device


def quiet_profiler() -> None:
    """Keeps the log lines of torch's profiler off stderr, where it writes some with every trace."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")


TOLD = "SCALEWRIGHT_NO_MORE_STARTS"  # a file, from whoever starts ranks again to them


@contextmanager
def ends_told() -> Iterator[Callable[[], bool]]:
    """Within, processes that are started from here can tell that no further start of them helps; whether one has."""
    with scratch_folder("starts") as folder:
        file = folder / "no-more"
        os.environ[TOLD] = str(file)
        try:
            yield file.exists
        finally:
            os.environ.pop(TOLD, None)


def no_more_starts() -> None:
    """Tells the agent, or Ray's worker, that started this process: it would only end in the same way again."""
    if path := os.environ.get(TOLD):
        with suppress(OSError):
            Path(path).touch()


# The trackers' own variables that a run obeys where its `track` keys are silent (track/store.py).
TRACKING = ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY")


def tracking_variables() -> dict[str, str]:
    """Those of TRACKING that are set and not empty."""
    return {name: os.environ[name] for name in TRACKING if os.environ.get(name)}


def keep_flight_records(folder: Path) -> None:
    """Makes torch keep each group's last collectives, and NCCL write them to `folder` when it times out.

    To be called before the first process group. Values that the user's environment sets stay.
    """
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "4096")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    prefix = str(folder.absolute() / "nccl-rank-")  # torch adds the rank
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", prefix)
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", prefix)  # its older name


def raise_file_limit(target: int = MANY_FILES) -> int | None:
    """Raises this process's limit of open files towards `target`, within the system's limit (Unix).

    Returns the limit now in force; None where there is none.
    """
    try:
        resource = importlib.import_module("resource")
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return None if soft == resource.RLIM_INFINITY else int(soft)
    most = target if hard == resource.RLIM_INFINITY else min(target, hard)
    with suppress(OSError, ValueError):  # macOS has a lower limit than it states
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def present_environment() -> dict[str, str]:
    """The environment of this process, as a value for those who look at it: `doctor`, a run's record."""
    return dict(os.environ)


def cache_folder() -> Path:
    """Where copies of what lies in stores are kept on this node: SCALEWRIGHT_CACHE, else in the user's cache."""
    given, caches = os.environ.get("SCALEWRIGHT_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(given) if given else Path(caches or "~/.cache").expanduser() / "scalewright"
    except RuntimeError:
        raise UserError("this user has no home folder", "HOME", "set HOME, or SCALEWRIGHT_CACHE to a folder") from None


def memory_folder() -> Path:
    """The node's file system in memory, for the newest steps of runs: SCALEWRIGHT_MEMORY, else /dev/shm."""
    return Path(os.environ.get("SCALEWRIGHT_MEMORY") or "/dev/shm")


def gloo_interfaces() -> list[str]:
    """The network interfaces that Gloo was told to use (GLOO_SOCKET_IFNAME); none: any."""
    return [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
