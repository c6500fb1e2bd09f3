"""`launch kubernetes`: a manifest of a JobSet, a TrainJob (Kubeflow Trainer 2) or a PyTorchJob (Kubeflow 1).

    launch.kubernetes   controller that must be installed      restarts after "saved, start me again" (75)
    jobset              JobSet                                 all pods, any number of times
    trainjob            Kubeflow Trainer 2 (it brings JobSet)  the same; its runtime is in the manifest
    pytorchjob          Kubeflow Training Operator 1           each pod, any number of times (75 becomes 138)

pod.py      the pod of a node: container, resources, mounts, shared memory; settings that a cluster would refuse
kinds.py    the three kinds of object around it
"""

from __future__ import annotations

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets.container import NO_MODULES, kept_folders, lost, sizes, to_yaml, unused
from scalewright.launch.targets.kubernetes.kinds import KINDS
from scalewright.launch.targets.kubernetes.pod import check, job_name

UNUSED = {
    "hosts": "Kubernetes chooses the machines", "modules": NO_MODULES, "agent": "a pod starts its ranks with torchrun",
    "partition": "queue names a Kueue LocalQueue", "account": "namespaces and queues hold quotas here",
    "qos": "priorities are a cluster's own classes", "reservation": "Kubernetes has none",
    "exclude": "cordon the nodes, or choose others by constraint", "options": "edit the manifest",
}  # fmt: skip
OF_KIND = {
    "trainjob": {"port": "Kubeflow Trainer sets 29400"},
    "pytorchjob": {"max_restarts": "a PyTorchJob restarts what has saved, and nothing else"},
}

# How the first pod is selected, of JobSets (a TrainJob makes one) and of PyTorchJobs.
FIRST_OF_JOBSET = "jobset.sigs.k8s.io/jobset-name={name},batch.kubernetes.io/job-completion-index=0"
FIRST_OF_PYTORCHJOB = "training.kubeflow.org/job-name={name},training.kubeflow.org/replica-type=master"


def write(job: LaunchJob) -> Written:
    """The manifest of a job. Raises UserError for settings that a cluster would refuse."""
    check(job)
    kind = job.site.kubernetes
    name = job_name(job)
    documents = KINDS[kind](job)
    file = f"{name}.k8s.yaml"
    namespace = ("--namespace", job.site.namespace) if job.site.namespace else ()
    submit = ("kubectl", "apply", *namespace, "-f", file)
    first = (FIRST_OF_PYTORCHJOB if kind == "pytorchjob" else FIRST_OF_JOBSET).format(name=name)
    comments = [
        f"{job.name}: {sizes(job, 'pods')}. Written by `scalewright launch kubernetes`.",
        f"Start:  {' '.join(submit)}",
        f"Logs:   {' '.join(('kubectl', 'logs', *namespace, '-f', '-l', first))}",
        "A pod that is asked to leave saves and exits with 75; all pods then go on from that checkpoint.",
    ]
    dry_run, reasons = ("kubectl", "apply", *namespace, "--dry-run=server", "-f", file), UNUSED | OF_KIND.get(kind, {})
    return Written({file: to_yaml(documents, comments)}, submit, unused(job.site, reasons), _notes(job), dry_run)


def _notes(job: LaunchJob) -> tuple[str, ...]:
    place = job.site.workdir or "the image's working directory"
    notes = [f"pods read {job.run_file} in {place}: it has to be on a claim, a mount, or in the image"]
    notes += lost(job, job.site.workdir, "pods", kept_folders(job.site))
    if job.site.queue:
        notes.append("the job waits, suspended, until Kueue admits it")
    if job.site.time_limit:
        notes.append("at the time limit the pods save and the job ends; apply it again to go on")
    return tuple(notes)
