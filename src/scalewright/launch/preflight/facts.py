"""The facts that rules look at: a plain value, so that a test can make any machine, job and environment.

    Facts
    ├── environ   variables of this process, or those that a job will have
    ├── place     nodes and ranks, and where they meet
    ├── site      the run's `launch` keys
    ├── run       its settings, the size of a save, the seconds of the last one
    ├── machine   interfaces, limits, folders, clocks of this machine
    └── nodes     what every node reported

What couldn't be looked at is None (limits: absent), and no rule speaks of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scalewright.spec.launch import LaunchSpec
from scalewright.spec.run import RunSpec

ON_NODE = ("torchrun", "Ray Train", "RANK and WORLD_SIZE", "none", "local")  # started by no scheduler
POD_TARGETS = ("kubernetes",)


@dataclass(frozen=True)
class ProcessPlace:
    """Where this process stands among the others; of a job to be written, where its first rank will."""

    starter: str = "none"
    target: str = ""  # of a job to be written: slurm, ssh, ...; "" at a start
    rank: int = 0
    world: int = 1
    nodes: int = 1
    per_node: int = 1
    address: str = ""  # the host where ranks meet; "": they need none, or it isn't known yet
    port: int | None = None
    store_is_up: bool = False  # torchrun's agent holds the port

    @property
    def on_first_node(self) -> bool:
        """Whether rank 0 is on this node."""
        return self.rank < self.per_node

    @property
    def scheduled(self) -> bool:
        """Whether a scheduler starts the ranks, and takes their machine away afterwards."""
        if self.target:
            return self.target not in ("torchrun", "ssh", "mpi")
        return self.starter not in ON_NODE


@dataclass(frozen=True)
class Interface:
    """A network interface: addresses, whether it is up, and its largest packet in bytes."""

    addresses: tuple[str, ...] = ()
    up: bool = True
    mtu: int = 1500


@dataclass(frozen=True)
class Card:
    """A network card of RDMA: whether it is AWS's EFA, and the state of each port by number."""

    efa: bool = False
    ports: Mapping[int, str] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """Whether any of its ports is."""
        return any("ACTIVE" in state for state in self.ports.values())


@dataclass(frozen=True)
class Space:
    """Room in bytes."""

    total: int
    free: int


@dataclass(frozen=True)
class Folder:
    """The folder that a run would write to, or the nearest one above it that exists."""

    path: str
    space: Space | None = None
    file_system: str = ""  # ext4, nfs4, tmpfs, ...
    inodes: Space | None = None  # files that it may still hold; None: it doesn't count them
    writable: bool = True


@dataclass(frozen=True)
class Machine:
    """This machine; None: not looked at, or it doesn't say."""

    host: str = ""
    interfaces: Mapping[str, Interface] | None = None
    host_addresses: tuple[str, ...] | None = None  # of its own name; empty: the name leads nowhere
    meeting_addresses: tuple[str, ...] | None = None  # of the place where ranks meet
    port_taken: bool | None = None  # the port where ranks meet, on rank 0's machine
    port_holder: str = ""  # who has it, where this user may see that
    ephemeral_ports: tuple[int, int] | None = None  # which Linux gives to connections
    root: bool = False
    cards: Mapping[str, Card] = field(default_factory=dict)
    kernel: tuple[int, int] | None = None
    peer_memory: bool | None = None  # nvidia_peermem is loaded
    limits: Mapping[str, int] = field(default_factory=dict)  # those that are set: open_files, file_size, ...
    locks_freely: bool = False  # CAP_IPC_LOCK: locked_memory doesn't count
    overcommit: int | None = None  # vm.overcommit_memory
    cores: int | None = None
    shared_memory: Space | None = None
    temporary: Space | None = None
    folder: Folder | None = None
    caches: Mapping[str, str] = field(default_factory=dict)  # variable of a compiler's cache -> file system
    clock: float | None = None  # seconds since 1970


@dataclass(frozen=True)
class Run:
    """What rules need of a run."""

    spec: RunSpec
    save_bytes: int | None = None  # of a checkpoint; None for a model of the user's own
    last_save_s: float | None = None  # measured, by an earlier call of the same run
    modified: float | None = None  # when its file was written

    @property
    def saves(self) -> bool:
        """Whether it writes checkpoints."""
        return bool(self.spec.checkpoint.every or self.spec.checkpoint.at_end)


@dataclass(frozen=True)
class Node:
    """What a node's first rank reported."""

    host: str
    rank: int
    versions: Mapping[str, str] = field(default_factory=dict)  # python, torch, scalewright, nccl, driver
    gpus: Mapping[str, int] = field(default_factory=dict)  # kind -> how many
    cards: int = 0  # of RDMA, active
    variables: Mapping[str, str] = field(default_factory=dict)  # of NCCL and Gloo
    mtu: int | None = None  # of the interface between nodes
    run: str = ""  # a digest of the run
    clock: float = 0.0  # read by all at the same moment
    sees_folder: bool = True  # it sees the file that rank 0 wrote to the run's folder


@dataclass(frozen=True)
class Facts:
    """All that rules look at."""

    environ: Mapping[str, str] = field(default_factory=dict)
    place: ProcessPlace = ProcessPlace()
    site: LaunchSpec = field(default_factory=LaunchSpec)
    run: Run | None = None
    machine: Machine = Machine()
    nodes: tuple[Node, ...] = ()
    gpus: bool = False  # ranks have GPUs

    @property
    def where(self) -> str:
        """Where a variable stands."""
        return "launch.env" if self.place.target else "environment"

    def unset(self, name: str) -> str:
        """How to be rid of a variable."""
        return f"leave {name} out" if self.place.target else f"unset {name}"

    def set(self, text: str) -> str:
        """How to set a variable, given as NAME=VALUE."""
        return f"set {text}" if self.place.target else f"export {text}"

    def on(self, name: str) -> bool:
        """Whether a switch among the variables is on."""
        return self.environ.get(name, "0").strip().lower() not in ("", "0", "false", "off", "no")


# What a rule may need before it is asked: its name, as docs/preflight-rules.md shows it, and the test.
NEEDS: Mapping[str, Callable[[Facts], bool]] = {
    "GPUs": lambda facts: facts.gpus,
    "several ranks": lambda facts: facts.place.world > 1,
    "several ranks a node": lambda facts: facts.place.per_node > 1,
    "several nodes": lambda facts: facts.place.nodes > 1,
    "a run": lambda facts: facts.run is not None,
    "a run that saves": lambda facts: facts.run is not None and facts.run.saves,
    "a scheduler": lambda facts: facts.place.scheduled,
    "InfiniBand": lambda facts: any(card.active and not card.efa for card in facts.machine.cards.values()),
    "EFA": lambda facts: any(c.efa for c in facts.machine.cards.values()) or "efa" in (facts.site.rdma or ""),
    "Slurm": lambda facts: facts.place.target == "slurm",
    "Kubernetes": lambda facts: facts.place.target in POD_TARGETS,
}
