"""The objects around a node's pod: JobSet, TrainJob with its runtime, PyTorchJob.

    a pod exits with 75      podFailurePolicy: FailJob ──► reason PodFailurePolicy ──► restart, not counted
    a node is taken away     the same, by the pod's condition DisruptionTarget; elastic: a new pod joins
    a pod exits otherwise    backoffLimit 0 ──► reason BackoffLimitExceeded ──► restart, max_restarts times
    the time limit           reason DeadlineExceeded ──► end

BlockingRecreate: new pods start when the old ones are gone, for these may still write their checkpoint.
Read in jobset 08dfbdf, kubeflow/trainer 8c0f505, training-operator 1.9 (plugins/torch/torch.go sets PET_*;
pytorch/envvar.go sets RANK, the pod's number; common/pod.go restarts exit codes of 128 and more).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scalewright.launch.job import LaunchJob
from scalewright.launch.targets.container import agent_command
from scalewright.launch.targets.kubernetes import pod
from scalewright.launch.targets.script import PORT, RESTARTS, bare_agent, elastic_options
from scalewright.spec.common.shell import Expression, Word
from scalewright.spec.errors import Stopped

Manifest = dict[str, Any]

NODES = "node"  # the replicated job, and its container: Trainer wants this name
INDEX = Expression("$JOB_COMPLETION_INDEX")  # a pod's number
ANCESTOR = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
RETRYABLE = 138  # training-operator restarts codes from 128 on, and leaves this one to programs


def jobset(job: LaunchJob) -> list[Manifest]:
    """A JobSet of one indexed Job: pod 0 has the name that the others meet it by."""
    name = pod.job_name(job)
    command = _agent(job, INDEX, f"{name}-{NODES}-0-0.{name}")
    spec: Manifest = {"suspend": True} if job.site.queue else {}
    spec |= _jobset_spec(job, pod.container(job, NODES, command), deadline=_deadline(job))
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": _metadata(job), "spec": spec}]


def trainjob(job: LaunchJob) -> list[Manifest]:
    """A TrainJob, and the TrainingRuntime that it refers to: what the run says, and what the site says."""
    job = replace(job, least_nodes=None)  # Trainer's torchrun has a fixed number
    here = pod.run_keys(job, NODES, bare_agent(job))
    nodes = {"name": NODES, "image": here["image"]} | pod.site_keys(job)
    version = {"apiVersion": "trainer.kubeflow.org/v1alpha1"}
    template = {"spec": _jobset_spec(job, nodes, labels=ANCESTOR)}
    policy = {"mlPolicy": {"numNodes": job.nodes, "torch": {}}, "template": template}
    runtime = {**version, "kind": "TrainingRuntime", "metadata": _metadata(job, queued=False), "spec": policy}
    spec: Manifest = {"suspend": True} if job.site.queue else {}
    if deadline := _deadline(job):
        spec["activeDeadlineSeconds"] = deadline
    spec["runtimeRef"] = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": pod.job_name(job)}
    spec["trainer"] = {
        "numNodes": job.nodes, "numProcPerNode": job.per_node, "image": here["image"],
        "command": pod.in_shell(job, bare_agent(job)), "env": pod.variables(job),
        "resourcesPerNode": pod.resources(job),
    }  # fmt: skip
    return [runtime, {**version, "kind": "TrainJob", "metadata": _metadata(job), "spec": spec}]


def pytorchjob(job: LaunchJob) -> list[Manifest]:
    """A PyTorchJob: a master and workers, whose pods its controller numbers by RANK."""
    meeting = Expression("$MASTER_ADDR"), Expression("$MASTER_PORT")
    command = _agent(job, Expression("$RANK"), *meeting, saved=RETRYABLE)
    node = pod.container(job, "pytorch", command)
    node["ports"] = [{"name": "pytorchjob-port", "containerPort": job.site.port or PORT}]
    replica = {"restartPolicy": "ExitCode", "template": {"spec": pod.pod_spec(job, node, restarts=True)}}
    policy: Manifest = {"cleanPodPolicy": "Running"}
    if job.site.queue:
        policy["suspend"] = True
    if deadline := _deadline(job):
        policy["activeDeadlineSeconds"] = deadline
    replicas = {"Master": {"replicas": 1, **replica}}
    if job.nodes > 1:
        replicas["Worker"] = {"replicas": job.nodes - 1, **replica}
    spec = {"nprocPerNode": str(job.per_node), "runPolicy": policy, "pytorchReplicaSpecs": replicas}
    return [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": _metadata(job), "spec": spec}]


def _agent(
    job: LaunchJob, number: Word, address: Word, port: Word | None = None, saved: int | None = None
) -> list[Word]:
    """A pod's command; of an elastic run it meets whoever is there."""
    if job.least_nodes is None:
        return agent_command(job, number, address, port=port, saved=saved)
    return bare_agent(job, elastic_options(job, address, port or str(job.site.port or PORT)), saved=saved)


def _metadata(job: LaunchJob, *, queued: bool = True) -> Manifest:
    metadata: Manifest = {"name": pod.job_name(job)}
    if job.site.namespace:
        metadata["namespace"] = job.site.namespace
    if job.site.queue and queued:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": job.site.queue}
    return metadata


def _deadline(job: LaunchJob) -> int | None:
    """Seconds until the pods are asked to leave, so that they have saved by the time limit."""
    limit = job.site.limit_s
    return limit - job.site.save_before_s if limit is not None else None


def _jobset_spec(
    job: LaunchJob, node: Manifest, *, deadline: int | None = None, labels: dict[str, str] | None = None
) -> Manifest:
    saved = {"name": "saved", "action": "RestartJobSetAndIgnoreMaxRestarts"}
    rules = [{**saved, "onJobFailureReasons": ["PodFailurePolicy"]}]
    if deadline:
        rules.append({"name": "limit", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]})
    template: Manifest = {"metadata": {"labels": labels}} if labels else {}
    template["spec"] = _indexed_job(job, pod.pod_spec(job, node), deadline)
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": job.site.max_restarts, "restartStrategy": "BlockingRecreate", "rules": rules},
        "replicatedJobs": [{"name": NODES, "replicas": 1, "template": template}],
    }


def _indexed_job(job: LaunchJob, node: Manifest, deadline: int | None) -> Manifest:
    spec: Manifest = {"completionMode": "Indexed", "parallelism": job.nodes, "completions": job.nodes}
    spec["backoffLimit"] = 0
    if deadline:
        spec["activeDeadlineSeconds"] = deadline
    codes = {"containerName": NODES, "operator": "In", "values": [Stopped.exit_code]}
    condition = [{"type": "DisruptionTarget", "status": "True"}]
    rules: list[Manifest] = [
        {"action": "FailJob", "onExitCodes": codes},
        {"action": "FailJob", "onPodConditions": condition},
    ]
    if job.least_nodes is not None:  # a pod that was taken away comes again alone, and joins the others
        spec["backoffLimit"] = job.site.max_restarts or RESTARTS
        rules = [{"action": "Ignore", "onPodConditions": condition}, rules[0]]
    spec["podFailurePolicy"] = {"rules": rules}
    spec["template"] = {"spec": node}
    return spec


KINDS: dict[str, Callable[[LaunchJob], list[Manifest]]] = {
    "jobset": jobset,
    "trainjob": trainjob,
    "pytorchjob": pytorchjob,
}
