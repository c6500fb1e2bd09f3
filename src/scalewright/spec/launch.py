"""The site: where a run's processes start, and what the scheduler there asks for (`launch:` of run.yaml).

    run.yaml   launch: {nodes: 4, partition: gpu, time_limit: "24:00:00"}     of this run
    site.yaml          {account: abc, container: img.sqsh, interface: ib0}    --profile: of the cluster

Keys of the run win over those of a profile. A target (`launch slurm`, `launch kubernetes`, ...) takes the
keys that it has a word for and names the ones that it hasn't.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from scalewright.spec.base import Spec
from scalewright.spec.errors import UserError

# A character that isn't a control, a separator of lines, a mark of direction or half of a pair.
SIGN = r"[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
NAMES = (r"[\w@%+:/=~.][\w.@%+:/=~,-]*", "a name, or several with commas: gpu,gpu-long")
SIZES = (r"[0-9]+(\.[0-9]+)?([KMGT]i?)?B?", "a size: 512G, 16Gi")
# What each text of a key matches whole, and what to write instead. None poses as a program's option.
PATTERNS = {
    "hosts": (r"(?!-|.*@-)[\w.@%+:/\[\]\\-]+", "hosts as ssh takes them: node-a, me@node-a, 10.0.0.7, fe80::1"),
    "python": (rf"(?![-%]|\w+=){SIGN}+", "a program's name or path: venv/bin/python"),
    "setup": (rf"(?:{SIGN}|[\n\t])*", "shell without control characters"),
    "env": (r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name in letters, digits and _"),
    "env value": (r"[^\0\ud800-\udfff]*", "a value in UTF-8, without NUL"),
    **dict.fromkeys(("partition", "account", "qos", "reservation"), NAMES),
    "constraint": (r"[\w.@%+:/=~,&|*!()\[\] -]+", "features: a100&ib, [rack1|rack2]; or labels: zone=a"),
    "exclude": (r"(?!-)[\w.,:/\[\]-]+", "names of nodes: gpu[01-04,7],login-1"),
    "gpu": (r"(?!-)[\w.@+:/=() -]+", "a kind: gpu:h100, nvidia.com/gpu, NVIDIA H100 80GB HBM3"),
    **dict.fromkeys(("memory", "shared_memory"), SIZES),
    "time_limit": (r"([0-9]+-)?[0-9]{1,3}(:[0-9]{2}){0,2}", "minutes, or [D-]HH:MM:SS"),
    "options": (rf"{SIGN}+", "an option in one line"),
}
TEXT = (rf"(?!-){SIGN}+", "letters, digits and signs in one line, without a - at the start")

Preflight = Literal["stop", "warn", "off"]


class LaunchSpec(Spec):
    """Settings of a site. Null: the site's own default, or derived from the layout."""

    # machines
    nodes: int | None = Field(None, ge=1)  # null: as many as `devices` need
    per_node: int | None = Field(None, ge=1)  # ranks of a node; null: devices / nodes, at most the cluster's, else 8
    hosts: tuple[str, ...] = ()  # ssh, mpi, torchrun: names, the first one is met by the others
    port: int | None = Field(None, ge=1024, le=65535)  # where ranks meet; null: 29500, or by the job's number
    interface: str | None = None  # of the network between nodes: ib0, eth0
    # the process
    python: str = "python"
    workdir: str | None = None  # null: where the job was submitted
    modules: tuple[str, ...] = ()  # `module load` of each
    setup: tuple[str, ...] = ()  # lines of shell before Python: source venv/bin/activate
    env: dict[str, str] = Field(default_factory=dict)
    agent: Literal["torchrun", "rank"] = "torchrun"  # a node starts torchrun, or the scheduler every rank
    max_restarts: int = Field(0, ge=0)  # of torchrun on its nodes
    preflight: Preflight = "stop"  # what a problem that a look at the start finds does (launch/preflight)
    # the scheduler
    time_limit: str | None = None  # minutes, or [D-]HH:MM:SS
    save_before_s: int = Field(120, ge=0)  # seconds before the limit at which ranks save and leave
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    cpus_per_rank: int | None = Field(None, ge=1)
    memory: str | None = None  # of a node: 512G
    gpu: str | None = None  # Slurm: gres type (gpu:h100); Kubernetes: resource (nvidia.com/gpu); clouds: H100
    options: tuple[str, ...] = ()  # further options of the scheduler, as they are
    # containers
    container: str | None = None  # an image, or a file of one
    mounts: tuple[str, ...] = ()  # /on/host:/inside
    namespace: str | None = None
    queue: str | None = None  # Kueue's LocalQueue
    claims: dict[str, str] = Field(default_factory=dict)  # persistent volume claim -> its path inside
    shared_memory: str = "16Gi"
    rdma: str | None = None  # Kubernetes resource of the network card: rdma/ib, vpc.amazonaws.com/efa=32
    kubernetes: Literal["jobset", "trainjob", "pytorchjob"] = "jobset"  # the kind of object

    @property
    def limit_s(self) -> int | None:
        """The time limit in seconds, as Slurm reads it: M, M:S or H:M:S; with days D-H, D-H:M or D-H:M:S."""
        if self.time_limit is None:
            return None
        days, dash, rest = self.time_limit.rpartition("-")
        parts = [int(part) for part in rest.split(":")]
        parts = [*parts, 0, 0][:3] if dash or len(parts) == 3 else [0, *parts, 0][:3]
        return int(days or 0) * 86400 + parts[0] * 3600 + parts[1] * 60 + parts[2]

    @field_validator("*", mode="before")
    @classmethod
    def _unset(cls, value: Any, info: ValidationInfo) -> Any:
        """'' sets nothing, as it did in older releases: a text has its default, `setup` a line fewer."""
        if info.field_name == "setup" and isinstance(value, (list, tuple)):
            return tuple(item for item in value if item != "")
        field = cls.model_fields[str(info.field_name)]
        is_text = field.annotation in (str, str | None)
        return field.get_default(call_default_factory=True) if value == "" and is_text else value

    @field_validator("*")
    @classmethod
    def _texts(cls, value: Any, info: ValidationInfo) -> Any:
        """Texts as scripts, directives and options of every target take them."""
        name = str(info.field_name)
        texts = [value] if isinstance(value, str) else value if isinstance(value, (tuple, dict)) else ()
        pairs = [(name, text) for text in texts]
        pairs += [(f"{name} value", text) for text in value.values()] if isinstance(value, dict) else []
        for key, text in pairs:
            pattern, how = PATTERNS.get(key, TEXT)
            if not re.fullmatch(pattern, text):
                raise UserError(f"{text[:80]!r} won't do", f"launch.{name}", f"write {how}")
        return value

    @field_validator("preflight", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        """YAML reads a bare `off` as false, and `on` as true."""
        return {False: "off", True: "stop"}.get(value, value) if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _time_to_save(self) -> LaunchSpec:
        if self.limit_s is not None and self.limit_s <= self.save_before_s:
            problem = f"time_limit {self.time_limit} is no longer than save_before_s {self.save_before_s}"
            how = "the run would leave after its first step: set save_before_s to what a save takes"
            raise UserError(problem, "launch", how)
        return self
