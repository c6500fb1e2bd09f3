"""Writes the expected files again, from what the targets write now."""

from __future__ import annotations

from pathlib import Path

from tests.launch.targets.sites import FOR_KUBERNETES, full_job, hosts_job, local_job, slurm_job

from scalewright.launch.targets import find_target

GPU = {"skypilot": "H100", "dstack": "H100", "runpod": "NVIDIA H100 80GB HBM3"}


def main() -> None:
    """One file per kind of Kubernetes object, per cloud, per script, and Ray's driver."""
    folder = Path(__file__).parent
    jobs = {
        f"{kind}.yaml": ("kubernetes", full_job(kubernetes=kind, **FOR_KUBERNETES))
        for kind in ("jobset", "trainjob", "pytorchjob")
    }
    jobs["skypilot.yaml"] = ("skypilot", full_job(gpu=GPU["skypilot"]))
    jobs["dstack.yml"] = ("dstack", full_job(gpu=GPU["dstack"]))
    jobs["runpod.json"] = ("runpod", full_job(gpu=GPU["runpod"], mounts=()))
    jobs["ray_driver.txt"] = ("ray", full_job())
    jobs["slurm.txt"] = ("slurm", slurm_job())
    jobs["slurm_rank.txt"] = ("slurm", slurm_job(agent="rank", container="train.sif"))
    jobs |= {f"{target}.txt": (target, hosts_job()) for target in ("torchrun", "mpi", "ssh")}
    jobs["local.txt"] = ("local", local_job())
    for name, (target, job) in jobs.items():
        text = next(iter(find_target(target)(job).files.values()))
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
