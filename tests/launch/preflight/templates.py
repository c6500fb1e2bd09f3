"""Clean starts and jobs, of which no rule speaks; each failing fixture (cases.py) changes one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scalewright.launch.preflight.facts import Card, Facts, Folder, Interface, Machine, Node, ProcessPlace, Run, Space
from scalewright.spec.launch import LaunchSpec
from scalewright.spec.run import RunSpec

GIB = 1 << 30
NOW = 1.8e9
Change = Callable[[Facts], Facts]


def run(out_dir: str = "/shared/runs/small", **keys: Any) -> Run:
    """A run of a billion parameters whose save is 15 GB."""
    data = {
        "name": "small", "out_dir": out_dir, "model": "llama-3.2-1b", "data": "tokens",
        "layout": {"devices": 32, "zero_stage": 3}, "checkpoint": {"every": 500}, **keys,
    }  # fmt: skip
    return Run(RunSpec.parse(data), save_bytes=15 * 10**9, modified=NOW - 3600)


ETHERNET = {"lo": Interface(("127.0.0.1", "::1"), mtu=65536), "eth0": Interface(("10.0.0.1",))}
MACHINE = Machine(
    host="n1",
    interfaces=ETHERNET,
    host_addresses=("10.0.0.1",),
    meeting_addresses=("10.0.0.1",),
    port_taken=False,
    ephemeral_ports=(32768, 60999),
    kernel=(6, 8),
    peer_memory=False,
    overcommit=0,
    cores=96,
    shared_memory=Space(500 * GIB, 499 * GIB),
    temporary=Space(1000 * GIB, 900 * GIB),
    folder=Folder("/shared/runs", Space(10**15, 10**14), "lustre", Space(10**9, 10**8)),
    clock=NOW,
)


def nodes(count: int) -> tuple[Node, ...]:
    """Reports that agree."""
    versions = {
        "python": "3.12.4",
        "torch": "2.12.0+cu130",
        "scalewright": "1.0 3fa2b1",
        "nccl": "2.29.3",
        "driver": "580",
    }
    gpus = {"NVIDIA H100 80GB HBM3": 8}
    return tuple(
        Node(f"n{number + 1}", 8 * number, versions, gpus, 8, {"NCCL_DEBUG": "WARN"}, 9000, "ab12", NOW)
        for number in range(count)
    )


SLURM_H100 = Facts(  # torchrun in a task a node, 4 nodes of 8 GPUs over InfiniBand
    environ={
        "NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "ib0",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1", "OMP_NUM_THREADS": "8", "SLURM_JOB_NUM_NODES": "4",
        "SLURM_JOB_END_TIME": str(int(NOW) + 86400), "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    },
    place=ProcessPlace("torchrun", world=32, nodes=4, per_node=8, address="n1", port=23456, store_is_up=True),
    site=LaunchSpec(time_limit="24:00:00", interface="ib0"),
    run=run(),
    machine=replace(
        MACHINE,
        interfaces={**ETHERNET, "ib0": Interface(("10.1.0.1",), mtu=2044)},
        cards={"mlx5_0": Card(ports={1: "ACTIVE"}), "mlx5_1": Card(ports={1: "ACTIVE"})},
        limits={"open_files": 131072},
        peer_memory=True,
    ),
    nodes=nodes(4),
    gpus=True,
)  # fmt: skip
SRUN = replace(  # a task a rank: rank 0 holds the port itself, and srun binds cores and GPUs
    SLURM_H100,
    environ={**SLURM_H100.environ, "CUDA_VISIBLE_DEVICES": "0"},
    place=replace(SLURM_H100.place, starter="Slurm", store_is_up=False),
)
ONE_NODE = Facts(  # torchrun --standalone on 8 GPUs
    environ={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"},
    place=ProcessPlace("torchrun", world=8, per_node=8, address="127.0.0.1", port=45123, store_is_up=True),
    run=run("runs/small", layout={"devices": 8}),
    machine=replace(MACHINE, folder=Folder("/home/me", Space(10**13, 10**12), "ext4", Space(10**8, 10**7))),
    gpus=True,
)
LAPTOP = Facts(  # two local workers on the CPU
    environ={"PATH": "/usr/bin"},
    place=ProcessPlace(world=2, per_node=2),
    run=run("runs/small", layout={"devices": 2}, device="cpu"),
    machine=replace(
        MACHINE,
        host_addresses=("127.0.1.1",),
        limits={"open_files": 4096, "locked_memory": 8 << 20},
        cores=8,
        shared_memory=Space(8 * GIB, 8 * GIB),
        folder=Folder("/home/me", Space(500 * GIB, 100 * GIB), "btrfs"),
    ),
)
POD = Facts(  # a pod of a TrainJob, which starts its 8 ranks
    environ={"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "small-node-0-0.small", "NCCL_DEBUG": "WARN"},
    place=ProcessPlace(
        "Kubeflow Trainer 2", rank=8, world=16, nodes=2, per_node=8, address="small-node-0-0.small", port=29400
    ),
    site=LaunchSpec(kubernetes="trainjob", container="registry.site/train:1.4"),
    run=run("/data/runs/small", layout={"devices": 16}),
    machine=replace(
        MACHINE,
        host="small-node-0-1",
        shared_memory=Space(16 * GIB, 16 * GIB),
        folder=Folder("/data", Space(10**14, 10**13), "ceph"),
        limits={"processes": 32768},
    ),
    nodes=nodes(2),
    gpus=True,
)
EFA = replace(  # p5 nodes on AWS, the plugin for EFA beside NCCL
    SLURM_H100,
    environ={
        "FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0", "NCCL_SOCKET_IFNAME": "^docker,lo,veth",
        "GLOO_SOCKET_IFNAME": "eth0", "NCCL_DEBUG": "WARN",
    },
    machine=replace(
        MACHINE,
        cards={f"rdmap{number}s0": Card(efa=True, ports={1: "ACTIVE"}) for number in range(4)},
        limits={"open_files": 131072, "locked_memory": 8 << 20},
    ),
)  # fmt: skip
STARTS = {
    "slurm, torchrun": SLURM_H100, "slurm, srun": SRUN, "one node": ONE_NODE, "laptop": LAPTOP, "pod": POD,
    "efa": EFA,
}  # fmt: skip

SITE = LaunchSpec(interface="ib0", cpus_per_rank=8, time_limit="24:00:00", gpu="gpu:h100", env={"NCCL_DEBUG": "WARN"})
SLURM_JOB = Facts(
    environ={"NCCL_DEBUG": "WARN", "GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib0"},
    place=ProcessPlace(target="slurm", world=32, nodes=4, per_node=8),
    site=SITE,
    run=run("runs/small"),
    gpus=True,
)
MPI_JOB = replace(
    SLURM_JOB,
    place=ProcessPlace(target="mpi", world=16, nodes=2, per_node=8, address="a", port=29500),
    site=LaunchSpec(hosts=("a", "b")),
)
POD_JOB = replace(
    SLURM_JOB,
    environ={"NCCL_DEBUG": "WARN"},
    place=ProcessPlace(target="kubernetes", world=16, nodes=2, per_node=8, port=29500),
    site=LaunchSpec(container="registry.site/train:1.4", memory="512Gi", rdma="rdma/ib", claims={"work": "/data"}),
)
JOBS = {"slurm job": SLURM_JOB, "mpi job": MPI_JOB, "pods": POD_JOB}


def env(**variables: str) -> Change:
    """Variables of a start; in a job they stand in launch.env, too."""

    def change(facts: Facts) -> Facts:
        site = facts.site.replace(env={**facts.site.env, **variables}) if facts.place.target else facts.site
        return replace(facts, environ={**facts.environ, **variables}, site=site)

    return change


def machine(**facts_of_it: Any) -> Change:
    return lambda facts: replace(facts, machine=replace(facts.machine, **facts_of_it))


def place(**numbers: Any) -> Change:
    return lambda facts: replace(facts, place=replace(facts.place, **numbers))


def site(**keys: Any) -> Change:
    return lambda facts: replace(facts, site=facts.site.replace(**keys))


def limit(**limits: int) -> Change:
    return machine(limits=limits)


def spec(**keys: Any) -> Change:
    """Keys of the run."""

    def change(facts: Facts) -> Facts:
        assert facts.run is not None
        return replace(facts, run=replace(facts.run, spec=facts.run.spec.replace(**keys)))

    return change


def of_run(**known: Any) -> Change:
    """What is known of the run beside its keys."""
    return lambda facts: replace(facts, run=replace(facts.run, **known)) if facts.run else facts


def on_node(number: int, **reported: Any) -> Change:
    """One node reports something else."""

    def change(facts: Facts) -> Facts:
        changed = list(facts.nodes)
        changed[number] = replace(changed[number], **reported)
        return replace(facts, nodes=tuple(changed))

    return change


def version(number: int, **versions: str) -> Change:
    return lambda facts: on_node(number, versions={**facts.nodes[number].versions, **versions})(facts)


def both(*changes: Change) -> Change:
    def change(facts: Facts) -> Facts:
        for entry in changes:
            facts = entry(facts)
        return facts

    return change
