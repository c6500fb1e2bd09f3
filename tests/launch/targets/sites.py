"""Jobs for the tests of targets: a small one, and one that sets every key that containers take."""

from __future__ import annotations

from typing import Any

from scalewright.launch.job import LaunchJob
from scalewright.spec.launch import LaunchSpec


def job(nodes: int = 2, per_node: int = 8, **site: Any) -> LaunchJob:
    """A job of a plain site; `site` are its keys."""
    keys = {"container": "registry.example/team/scalewright:1"} | site
    return LaunchJob("My Run", nodes, per_node, LaunchSpec(**keys), "run.yaml", ("layout.tp=8",))


def full_job(**site: Any) -> LaunchJob:
    """A job whose site sets what Kubernetes and clouds have words for."""
    keys: dict[str, Any] = {
        "workdir": "/data/run",
        "claims": {"data": "/data"},
        "mounts": ("/lustre:/lustre",),
        "env": {"HF_HOME": "/data/hf"},
        "setup": ("source /opt/venv/bin/activate",),
        "interface": "eth0",
        "cpus_per_rank": 8,
        "memory": "512G",
        "time_limit": "1-00:00:00",
        "max_restarts": 3,
    }
    return job(4, 8, **(keys | site))


def slurm_job(**site: Any) -> LaunchJob:
    """A job whose site sets what Slurm has words for."""
    keys: dict[str, Any] = {
        "container": None,
        "workdir": "/lustre/run",
        "modules": ("cuda/12.8",),
        "setup": ("source venv/bin/activate",),
        "env": {"HF_HOME": "/lustre/hf"},
        "interface": "ib0",
        "cpus_per_rank": 12,
        "memory": "900G",
        "gpu": "gpu:h100",
        "time_limit": "1-00:00:00",
        "save_before_s": 300,
        "partition": "gpu",
        "account": "abc123",
        "qos": "long",
        "constraint": "nvlink",
        "exclude": "n[7-8]",
    }
    return job(4, 8, **(keys | site))


def hosts_job(**site: Any) -> LaunchJob:
    """A job on hosts that are named."""
    keys: dict[str, Any] = {
        "container": None,
        "hosts": ("node-a", "node-b"),
        "interface": "eth1",
        "port": 29511,
        "setup": ("source venv/bin/activate",),
    }
    return job(2, 8, **(keys | site))


def local_job(**site: Any) -> LaunchJob:
    """A job on the machine that writes it."""
    keys: dict[str, Any] = {
        "container": None,
        "env": {"HF_HOME": "/lustre/hf"},
        "setup": ("source venv/bin/activate",),
        "cpus_per_rank": 4,
    }
    return job(1, 2, **(keys | site))


FOR_KUBERNETES = {
    "namespace": "team-a",
    "queue": "training",
    "rdma": "rdma/ib",
    "constraint": "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3",
}
