"""Settings that an API server, a CRD's rules or a controller's webhook would refuse; one line, with the fix.

key            what it must look like                   who would refuse it
namespace      a DNS label                              API server
queue          a label's value                          API server
gpu, rdma      a resource's name, with a domain         API server (node capacity has no other)
memory, shm    a quantity: 512Gi                        API server
claims         a DNS name -> an absolute path, each once   API server
name           <= 63 with a pod's suffix, a letter first   JobSet's webhook, TrainJob's CEL rule
"""

from __future__ import annotations

import re

from scalewright.launch.job import LaunchJob
from scalewright.launch.targets.container import dns_label, environment, image, mounts
from scalewright.spec.errors import UserError

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
QUANTITY = r"\d+(\.\d+)?([kMGTPE]|[KMGTPE]i)?"
RESOURCE = rf"{SUBDOMAIN}/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
LABEL_VALUE = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
NODE_LABEL = rf"({SUBDOMAIN}/)?{LABEL_VALUE}={LABEL_VALUE}"

# key -> what its value must match whole, and what to write instead
PATTERNS = {
    "namespace": (LABEL, "lower case, digits and hyphens: team-a"),
    "queue": (LABEL_VALUE, "the name of a LocalQueue: training"),
    "gpu": (RESOURCE, "a resource with its domain: nvidia.com/gpu"),
    "rdma": (rf"{RESOURCE}(=\d+)?", "a resource, and how many: rdma/ib, vpc.amazonaws.com/efa=32"),
    "shared_memory": (QUANTITY, "a quantity: 16Gi"),
    "constraint": (rf"{NODE_LABEL}(,{NODE_LABEL})*", "labels of nodes: nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3"),
}
GPU = "nvidia.com/gpu"  # what NVIDIA's GPU Operator (its device plugin) calls a GPU

# Around a job's name in the longest name made of it: JobSet's "-node-0-INDEX-abcde" (a pod).
SUFFIX = len("-node-0-") + len("-abcde")


def check(job: LaunchJob) -> None:
    """Raises UserError for the first setting that a cluster would refuse."""
    image(job)
    environment(job)
    for key, (pattern, how) in PATTERNS.items():
        value = getattr(job.site, key)
        if value is not None and not re.fullmatch(pattern, value):
            raise UserError(f"{value!r} won't do", f"launch.{key}", f"write {how}")
    _check_paths(job)


def _check_paths(job: LaunchJob) -> None:
    for claim in job.site.claims:
        if not re.fullmatch(SUBDOMAIN, claim):
            raise UserError(f"{claim!r} is no claim's name", "launch.claims", "see `kubectl get pvc`")
    inside = [*job.site.claims.values(), *(path for _, path in mounts(job.site))]
    for path in inside:
        if not path.startswith("/") or ":" in path:
            raise UserError(f"{path!r} isn't an absolute path", "launch.claims", "write such as data: /data")
        if inside.count(path) > 1 or path.rstrip("/") == "/dev/shm":
            raise UserError(f"{path} is mounted twice", "launch.claims", "give each mount a path of its own")
    if job.site.workdir and not job.site.workdir.startswith("/"):
        raise UserError(f"{job.site.workdir} isn't absolute", "launch.workdir", "write the path in the container")


def job_name(job: LaunchJob) -> str:
    """The run's name as objects take it, short enough for the names of its pods."""
    return dns_label(job.name, 63 - SUFFIX - len(str(job.nodes - 1)))


def quantity(memory: str) -> str:
    """`512GB`, `512G` or `512Gi` as Kubernetes writes it."""
    text = memory.removesuffix("B")
    return text if text.endswith("i") else text.replace("K", "k")


def resource(text: str) -> tuple[str, int]:
    """`vpc.amazonaws.com/efa=32` as name and count; one without a count."""
    name, _, count = text.partition("=")
    return name, int(count or 1)
