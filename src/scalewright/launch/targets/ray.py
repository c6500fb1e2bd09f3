"""`launch ray`: a driver for Ray Train (2.60), whose controller starts all ranks again after a failure.

    driver ─► TorchTrainer's controller ─► a worker a rank ─► `train run.yaml` (ray_worker.py)
                        ▲                                            │ a rank dies
                        ╰──── new workers: they resume from our last checkpoint ◄╯ max_restarts times

Ray places the workers; checkpoints are the run's own, in its out_dir on a file system that all nodes share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets.container import dns_label, environment, sizes, unused
from scalewright.spec.errors import UserError

MACHINES, NONE, MOUNTS = "Ray's cluster has the machines", "Ray has none", "Ray's nodes have their mounts"
UNUSED = {
    "hosts": MACHINES, "port": "ranks take a free one", "modules": "load them before `ray start`",
    "setup": "the environment of `ray start` is the workers'", "agent": "Ray starts every rank",
    "partition": MACHINES, "account": MACHINES, "qos": NONE, "reservation": NONE, "constraint": MACHINES,
    "exclude": MACHINES, "memory": "Ray's nodes share theirs among their workers", "gpu": "Ray calls every kind GPU",
    "options": "edit the driver", "container": "the image of Ray's nodes is the workers'", "mounts": MOUNTS,
    "namespace": "Ray's cluster has it", "queue": NONE, "claims": MOUNTS, "shared_memory": "Ray's nodes have theirs",
    "rdma": "Ray's nodes have theirs",
}  # fmt: skip
DRIVER = '''"""{name}: {sizes} under Ray Train. Written by `scalewright launch ray`.

On a node of the cluster:   python {file}
From elsewhere:             ray job submit --working-dir . -- python {file}
Asked to stop (a signal, or the file STOP in the run's folder) the ranks save, and this leaves with 75.
"""

import os
import sys

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from scalewright.launch.ray_driver import fit
from scalewright.launch.ray_worker import run_rank

FOLDER = {folder}  # shared by all nodes: what is relative in the run file is read and written there
ENVIRONMENT = {environment}

ray.init(address="auto", runtime_env={{"env_vars": ENVIRONMENT}})
trainer = TorchTrainer(
    run_rank,
    train_loop_config={{"folder": FOLDER, "arguments": {arguments}}},
    scaling_config=ScalingConfig(
        num_workers={world},
        use_gpu={use_gpu},
        resources_per_worker={resources},
        placement_strategy="PACK",
    ),
    torch_config=TorchConfig(backend="gloo"),  # the workers agree on a port; ranks have groups of their own
    run_config=RunConfig(
        name={label},
        storage_path=os.path.join(FOLDER, ".ray"),
        failure_config=FailureConfig(max_failures={max_restarts}),
    ),
)
sys.exit(fit(trainer, os.path.join(FOLDER, {out_dir})))
'''


def write(job: LaunchJob) -> Written:
    """The driver of a job. Raises UserError where no folder is named that all nodes share."""
    folder = job.site.workdir
    if not folder or not folder.startswith("/"):
        what = "Ray's workers need an absolute folder that all nodes share"
        raise UserError(what, "launch.workdir", "set it to the one that has the run file")
    label = dns_label(job.name)
    file = f"{label}.ray.py"
    resources = {"CPU": job.site.cpus_per_rank or 1, **({"GPU": 1} if job.device == "cuda" else {})}
    text = DRIVER.format(
        name=job.name.replace("\\", "/").replace('"', "'"), sizes=sizes(job), file=file,
        folder=_shown(folder), environment=_shown(environment(job)), world=job.world, use_gpu=job.device == "cuda",
        arguments=_shown([job.run_file, *job.overrides], 4), resources=_shown(resources, 8), label=_shown(label),
        out_dir=_shown(job.folder), max_restarts=job.site.max_restarts,
    )  # fmt: skip
    notes = [f"ranks work in {folder}, on every node"]
    if not job.site.max_restarts:
        notes.append("launch.max_restarts is 0: the first failure ends the job")
    submit = ("ray", "job", "submit", "--working-dir", ".", "--", "python", file)
    return Written({file: text}, submit, unused(job.site, UNUSED), tuple(notes))


def _shown(value: Mapping[str, str | int] | Sequence[str] | str, indent: int = 0) -> str:
    """Text and numbers as Python, over several lines where they don't fit one (Python reads JSON's forms)."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) + indent < 72:
        return text
    return json.dumps(value, ensure_ascii=False, indent=4).replace("\n", "\n" + " " * indent)
