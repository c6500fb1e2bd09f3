"""The pod of one node: a container that starts its ranks, with GPUs, volumes and shared memory.

limits     nvidia.com/gpu: ranks of the node   rdma/ib: 1   cpu, memory: where the site says so
volumes    /dev/shm (memory)   claims   folders of the machine
SIGTERM ── save_before_s ──► SIGKILL           the time in which ranks save

Settings that a cluster would refuse are refused here, with the fix:

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
from collections.abc import Sequence

from scalewright.launch.job import LaunchJob
from scalewright.launch.targets.container import check_all, dns_label, environment, image, mounts
from scalewright.spec.common.shell import Expression, Word, line
from scalewright.spec.errors import Mistakes, UserError

LEAST_GRACE = 30  # seconds; Kubernetes' own default


def pod_spec(job: LaunchJob, container: dict[str, object], *, restarts: bool = False) -> dict[str, object]:
    """A pod's spec around its container. `restarts` false: the pod ends with its container."""
    spec: dict[str, object] = {} if restarts else {"restartPolicy": "Never"}
    spec["terminationGracePeriodSeconds"] = max(job.site.save_before_s, LEAST_GRACE)
    if job.site.constraint:
        labels = [text.partition("=") for text in job.site.constraint.split(",")]
        spec["nodeSelector"] = {name: value for name, _, value in labels}
    if job.device == "cuda":  # nodes with GPUs often refuse pods that don't say this
        spec["tolerations"] = [{"key": job.site.gpu or GPU, "operator": "Exists", "effect": "NoSchedule"}]
    spec["containers"] = [container]
    spec["volumes"] = [volume for volume, _ in _volumes(job)]
    return spec


def container(job: LaunchJob, name: str, command: Sequence[Word]) -> dict[str, object]:
    """The container that starts a node's ranks."""
    return run_keys(job, name, command) | {"resources": resources(job)} | site_keys(job)


def run_keys(job: LaunchJob, name: str, command: Sequence[Word]) -> dict[str, object]:
    """A container's keys that a run sets: image, command, variables."""
    return {"name": name, "image": image(job), "command": in_shell(job, command), "env": variables(job)}


def site_keys(job: LaunchJob) -> dict[str, object]:
    """A container's keys that a site sets: where it works, what it may, what is mounted."""
    keys: dict[str, object] = {}
    if job.site.workdir:
        keys["workingDir"] = job.site.workdir
    if job.site.rdma:  # RDMA pins the memory that it transfers
        keys["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    keys["volumeMounts"] = [mount for _, mount in _volumes(job)]
    return keys


def variables(job: LaunchJob) -> list[dict[str, str]]:
    """The environment as Kubernetes lists it."""
    return [{"name": name, "value": kubelet(value)} for name, value in environment(job).items()]


def kubelet(word: Word) -> str:
    """A word of a command or a variable's value as the kubelet reads it: `$(NAME)` is expanded, `$$` is `$`.

    It would take a byte alone of a character beyond ASCII behind a `$`, too (expansion/expand.go).
    """
    if isinstance(word, Expression):
        return re.sub(r"\$(\w+)", r"$(\1)", word.text)
    return re.sub(r"\$(?=[$(]|[^\x00-\x7f])", "$$", word)


def in_shell(job: LaunchJob, command: Sequence[Word]) -> list[str]:
    """The command, after the site's lines of shell if there are any; the agent stays process 1 (signals)."""
    if not job.site.setup:
        return [kubelet(word) for word in command]
    return ["bash", "-c", kubelet("\n".join(["set -e", *job.site.setup, f"exec {line(command)}", ""]))]


def resources(job: LaunchJob) -> dict[str, dict[str, str | int]]:
    """What a pod takes of its node; Kubernetes requests what is limited."""
    limits: dict[str, str | int] = {}
    if job.site.cpus_per_rank:
        limits["cpu"] = job.site.cpus_per_rank * job.per_node
    if job.site.memory:
        limits["memory"] = quantity(job.site.memory)
    if job.device == "cuda":
        limits[job.site.gpu or GPU] = job.per_node
    if job.site.rdma:
        name, count = resource(job.site.rdma)
        limits[name] = count
    return {"limits": limits}


def _volumes(job: LaunchJob) -> list[tuple[dict[str, object], dict[str, str]]]:
    memory: dict[str, object] = {"emptyDir": {"medium": "Memory", "sizeLimit": job.site.shared_memory}}
    volumes = [("shared-memory", memory, "/dev/shm")]
    for number, (claim, path) in enumerate(job.site.claims.items()):
        volumes.append((f"claim-{number}", {"persistentVolumeClaim": {"claimName": claim}}, path))
    for number, (outside, path) in enumerate(mounts(job.site)):
        volumes.append((f"host-{number}", {"hostPath": {"path": outside, "type": "Directory"}}, path))
    return [({"name": name, **source}, {"name": name, "mountPath": path}) for name, source, path in volumes]


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
    """Raises one UserError of all settings that a cluster would refuse."""
    check_all(job, image, environment, _check_texts, _check_claims, _check_paths, _check_workdir)


def _check_texts(job: LaunchJob) -> None:
    mistakes = Mistakes()
    for key, (pattern, how) in PATTERNS.items():
        value = getattr(job.site, key)
        if value is not None and not re.fullmatch(pattern, value):
            mistakes.noted.append(UserError(f"{value!r} won't do", f"launch.{key}", f"write {how}"))
    mistakes.stop()


def _check_claims(job: LaunchJob) -> None:
    for claim in job.site.claims:
        if not re.fullmatch(SUBDOMAIN, claim):
            raise UserError(f"{claim!r} is no claim's name", "launch.claims", "see `kubectl get pvc`")


def _check_paths(job: LaunchJob) -> None:
    inside = [*job.site.claims.values(), *(path for _, path in mounts(job.site))]
    for path in inside:
        if not path.startswith("/") or ":" in path:
            raise UserError(f"{path!r} isn't an absolute path", "launch.claims", "write such as data: /data")
        if inside.count(path) > 1 or path.rstrip("/") == "/dev/shm":
            raise UserError(f"{path} is mounted twice", "launch.claims", "give each mount a path of its own")


def _check_workdir(job: LaunchJob) -> None:
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
