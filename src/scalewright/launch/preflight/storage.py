"""The folder of a run: room for its saves, whether it lasts, and whether all nodes see the same one.

saves at a time = checkpoint.keep + 1      the oldest goes when the newest is whole
"""

from __future__ import annotations

from pathlib import PurePosixPath

from scalewright.launch.preflight.facts import Facts
from scalewright.launch.preflight.rule import RuleFailure, Subject
from scalewright.spec.common.formatting import counted, gib

SUBJECT = Subject("storage", at=("node",))
GIB = 1 << 30
FORMAT = "docs/checkpoints.md: a part of each rank, keep"
IN_MEMORY = ("tmpfs", "ramfs")
OF_A_CONTAINER = ("overlay", "aufs")
NETWORK = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "ceph", "fuse.sshfs", "fuse.s3fs")
OF_A_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run")
CACHES_NEED = GIB  # compiled kernels of a large model, and torch's own files
FILES_BESIDE = 1000  # logs, traces, metrics


def _room(facts: Facts) -> tuple[int, int] | None:
    """Bytes that are free for saves, and those of one; None where either isn't known."""
    folder, size = facts.machine.folder, facts.run.save_bytes if facts.run else None
    if folder is None or folder.space is None or size is None:
        return None
    return folder.space.free, size


@SUBJECT.rule("no-room-to-save", "problem", "no room for a single save", FORMAT, needs=("a run that saves",))
def no_room_to_save(facts: Facts) -> RuleFailure | None:
    room = _room(facts)
    if room is None or room[0] >= room[1]:
        return None
    what = f"{gib(room[0] / GIB)} are free, and a checkpoint has {gib(room[1] / GIB)}"
    return RuleFailure(what, f"out_dir: {_path(facts)}", "free some, or set out_dir elsewhere")


@SUBJECT.rule("little-room", "warn", "no room for the saves that are kept, and the next one", FORMAT,
              needs=("a run that saves",))  # fmt: skip
def little_room(facts: Facts) -> RuleFailure | None:
    room, spec = _room(facts), facts.run.spec if facts.run else None
    if room is None or spec is None or room[0] < room[1]:
        return None
    several = spec.checkpoint.every > 0
    saves = spec.checkpoint.keep + 1 if several else 1
    there = sum(1 for _ in (spec.folder / "checkpoints").glob("step-*/COMMIT")) if several else 0
    needed = max(1, saves - there)
    if room[0] >= needed * room[1]:
        return None
    what = f"{gib(room[0] / GIB)} are free, and {needed} checkpoints have {gib(needed * room[1] / GIB)}"
    return RuleFailure(what, f"out_dir: {_path(facts)}", "free some, lower checkpoint.keep, or move out_dir")


@SUBJECT.rule("few-inodes", "warn", "few files may still be made", "statvfs(3): f_favail; df -i",
              needs=("a run that saves",))  # fmt: skip
def few_inodes(facts: Facts) -> RuleFailure | None:
    inodes = facts.machine.folder.inodes if facts.machine.folder else None
    if inodes is None or facts.run is None:
        return None
    needed = (facts.run.spec.checkpoint.keep + 1) * (2 * facts.place.world + 4) + FILES_BESIDE
    if inodes.free >= needed:
        return None
    ranks = counted(facts.place.world, "ranks")
    what = f"{inodes.free} files may still be made, and a run of {ranks} makes {needed}"
    return RuleFailure(what, f"out_dir: {_path(facts)}", "remove some (df -i), or set out_dir elsewhere")


@SUBJECT.rule("folder-unwritable", "problem", "the run's folder can't be written", "access(2)", needs=("a run",))
def folder_unwritable(facts: Facts) -> RuleFailure | None:
    folder = facts.machine.folder
    if folder is None or folder.writable:
        return None
    return RuleFailure(f"{folder.path} can't be written", "out_dir", "change its rights, or set out_dir elsewhere")


@SUBJECT.rule("folder-is-lost", "warn", "the run's folder goes with its pod or job",
              "Kubernetes docs, Volumes: files of a container; tmpfs(5)",
              needs=("a run that saves", "a scheduler"))  # fmt: skip
def folder_is_lost(facts: Facts) -> RuleFailure | None:
    system = facts.machine.folder.file_system if facts.machine.folder else ""
    if system not in (*IN_MEMORY, *OF_A_CONTAINER):
        return None
    why = "memory" if system in IN_MEMORY else "the container's own"
    what = f"{_path(facts)} is {why} ({system}): checkpoints go when it ends"
    return RuleFailure(what, "out_dir", "set it to a volume, or a shared file system")


@SUBJECT.rule("folder-of-a-node", "warn", "the run's folder is one that every node has for itself",
              "Filesystem Hierarchy Standard 3.0: /tmp, /var/tmp, /run", at=("submit",),
              needs=("a run that saves",))  # fmt: skip
def folder_of_a_node(facts: Facts) -> RuleFailure | None:
    folder = PurePosixPath(facts.run.spec.folder.as_posix()) if facts.run else PurePosixPath()
    mounted = [*facts.site.claims.values(), *(mount.partition(":")[2] for mount in facts.site.mounts)]
    if any(folder.is_relative_to(path) for path in mounted if path):
        return None
    if not any(folder.is_relative_to(place) for place in OF_A_NODE):
        return None
    if facts.place.nodes == 1 and not facts.place.scheduled:
        return None
    why = "every node has its own, and a save needs one" if facts.place.nodes > 1 else "it goes with the job"
    return RuleFailure(f"{folder} is a node's own folder: {why}", "out_dir", "set it to a shared file system")


@SUBJECT.rule("temporary-full", "warn", "no room for compiled kernels",
              "PyTorch docs, torch.compiler: TORCHINDUCTOR_CACHE_DIR is in the temporary folder",
              needs=("GPUs",))  # fmt: skip
def temporary_full(facts: Facts) -> RuleFailure | None:
    space = facts.machine.temporary
    if space is None or space.free >= CACHES_NEED or facts.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return None
    what = f"the temporary folder has {space.free >> 20} MiB left, where torch.compile writes its kernels"
    return RuleFailure(what, "TMPDIR", "free some, or set TMPDIR or TORCHINDUCTOR_CACHE_DIR to a larger disk")


@SUBJECT.rule("cache-on-network", "warn", "ranks compile into a folder over the network",
              "Triton issue 11512, PyTorch issue 173679: stale file handles in a shared cache",
              needs=("GPUs", "several nodes"))  # fmt: skip
def cache_on_network(facts: Facts) -> RuleFailure | None:
    shared = {name: kind for name, kind in facts.machine.caches.items() if kind in NETWORK}
    if not shared:
        return None
    name, kind = next(iter(shared.items()))
    what = f"{name} is on {kind}, where nodes replace each other's kernels while they are read"
    return RuleFailure(what, facts.where, f"set {name} to a disk of the node")


def _path(facts: Facts) -> str:
    return facts.machine.folder.path if facts.machine.folder else ""
