"""A failing fixture for every rule, and the same one mended: changes of the clean starts of templates.py."""

from __future__ import annotations

from dataclasses import dataclass, replace

from launch.preflight.templates import (
    EFA,
    LAPTOP,
    MPI_JOB,
    NOW,
    ONE_NODE,
    POD,
    POD_JOB,
    SLURM_H100,
    SLURM_JOB,
    SRUN,
    Change,
    both,
    env,
    limit,
    machine,
    of_run,
    on_node,
    place,
    site,
    spec,
    version,
)
from scalewright.launch.preflight.facts import Card, Facts, Folder, Interface, Space
from scalewright.launch.preflight.rule import Moment

GIB = 1 << 30
START: tuple[Moment, ...] = ("meeting", "node", "nodes")


@dataclass(frozen=True)
class Case:
    """A start or job, a change that one rule speaks of, and another one of which it doesn't."""

    rule: str
    clean: Facts
    broken: Change
    mended: Change
    words: str  # of the message

    @property
    def moments(self) -> tuple[Moment, ...]:
        return ("submit",) if self.clean.place.target else START


def nothing(facts: Facts) -> Facts:
    return facts


FOLDER = SLURM_H100.machine.folder or Folder("")
TWO_CARDS = {"mlx5_0": Card(ports={1: "ACTIVE"}), "mlx5_1": Card(ports={1: "DOWN"})}
OFF = {"lo": Interface(("127.0.0.1",)), "ib0": Interface(("10.1.0.1",), up=False)}
MORE = {**(SLURM_H100.machine.interfaces or {}), "docker0": Interface(("172.17.0.1",))}

VARIABLES = [
    Case("nccl-debug", SLURM_H100, env(NCCL_DEBUG="INFO"), env(NCCL_DEBUG="WARN"), "NCCL_DEBUG=INFO"),
    Case("nccl-debug", SLURM_JOB, env(NCCL_DEBUG="trace"), env(NCCL_DEBUG="VERSION"), "(launch.env)"),
    Case("nccl-debug-file", SLURM_H100, env(NCCL_DEBUG_FILE="nccl.log"), env(NCCL_DEBUG_FILE="n-%h-%p.log"),
         "no %p and no %h"),
    Case("nccl-p2p-off", ONE_NODE, env(NCCL_P2P_DISABLE="1"), env(NCCL_P2P_DISABLE="0"), "NVLink"),
    Case("nccl-p2p-off", ONE_NODE, env(NCCL_P2P_LEVEL="LOC"), env(NCCL_P2P_LEVEL="NVL"),
         "NCCL_P2P_LEVEL=LOC"),
    Case("nccl-shm-off", ONE_NODE, env(NCCL_SHM_DISABLE="1"), env(NCCL_SHM_DISABLE="0"), "unset NCCL_SHM"),
    Case("nccl-forced", SLURM_H100, env(NCCL_ALGO="Ring"), env(NCCL_PROTO="Simple"), "NCCL_ALGO=Ring"),
    Case("torch-distributed-debug", SLURM_H100, env(TORCH_DISTRIBUTED_DEBUG="DETAIL"),
         env(TORCH_DISTRIBUTED_DEBUG="OFF"), "compare every collective"),
    Case("cuda-launch-blocking", ONE_NODE, env(CUDA_LAUNCH_BLOCKING="1"), env(CUDA_LAUNCH_BLOCKING="0"),
         "nothing overlaps"),
    Case("cuda-cache-off", ONE_NODE, env(PYTORCH_NO_CUDA_MEMORY_CACHING="1"), nothing, "every tensor"),
    Case("nccl-blocking-wait", SLURM_H100, env(TORCH_NCCL_BLOCKING_WAIT="1"),
         env(TORCH_NCCL_BLOCKING_WAIT="0"),
         "nothing overlaps"),
    Case("nccl-errors-ignored", SLURM_H100, env(TORCH_NCCL_ASYNC_ERROR_HANDLING="0"),
         env(TORCH_NCCL_ASYNC_ERROR_HANDLING="3"), "waits for ever"),
    Case("old-name", SLURM_H100, env(NCCL_ASYNC_ERROR_HANDLING="1"), nothing, "TORCH_NCCL_ASYNC_ERROR"),
    Case("no-such-variable", LAPTOP, env(NCCL_TIMEOUT="3600"), nothing, "train.timeouts"),
    Case("no-such-variable", SLURM_JOB, env(GLOO_IFNAME="ib0"), nothing, "GLOO_SOCKET_IFNAME"),
    Case("one-connection", SLURM_H100, env(CUDA_DEVICE_MAX_CONNECTIONS="1"),
         both(env(CUDA_DEVICE_MAX_CONNECTIONS="1"), spec(layout={"devices": 32, "tp": 8})), "one queue"),
    Case("compile-debug", ONE_NODE, env(TORCH_COMPILE_DEBUG="1"), env(TORCH_COMPILE_DEBUG="0"), "a folder"),
    Case("python-debug", LAPTOP, env(PYTHONDEVMODE="1"), env(PYTHONDEVMODE=""), "PYTHONDEVMODE=1"),
    Case("python-debug", LAPTOP, env(PYTHONMALLOC="malloc_debug"), env(PYTHONMALLOC="malloc"),
         "malloc_debug"),
    Case("cublas-workspace", ONE_NODE, both(env(CUBLAS_WORKSPACE_CONFIG=":0:0"), spec(deterministic=True)),
         both(env(CUBLAS_WORKSPACE_CONFIG=":16:8"), spec(deterministic=True)), ":4096:8 or :16:8"),
    Case("tf32-overridden", ONE_NODE,
         both(env(NVIDIA_TF32_OVERRIDE="0"), spec(layout={"devices": 8, "precision": "tf32"})),
         env(NVIDIA_TF32_OVERRIDE="0"), "layout.precision"),
    Case("visible-gpus", ONE_NODE, env(CUDA_VISIBLE_DEVICES="0"), env(CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7"),
         "shows 1 GPU to 8 ranks"),
    Case("visible-gpus", SRUN, env(CUDA_VISIBLE_DEVICES="0,1"), env(CUDA_VISIBLE_DEVICES="3"), "2 GPUs"),
    Case("visible-gpus", POD, env(CUDA_VISIBLE_DEVICES="-1"), nothing, "shows 0 GPUs"),
    Case("rank-in-site", SLURM_JOB, env(RANK="0", WORLD_SIZE="32"), env(MASTER_PORT="29500"),
         "leave RANK and WORLD_SIZE out"),
]  # fmt: skip
NETWORK = [
    Case("meeting-on-loopback", SLURM_H100, place(address="127.0.0.1"), place(address="10.0.0.1"),
         "4 nodes are to meet at 127.0.0.1"),
    Case("meeting-on-loopback", MPI_JOB, place(address="localhost"), nothing, "first node's name"),
    Case("meeting-leads-here", POD, machine(meeting_addresses=("127.0.1.1",)),
         both(place(rank=0), machine(meeting_addresses=("127.0.1.1",))), "/etc/hosts"),
    Case("port-number", SRUN, place(port=70000), place(port=1024), "70000 is no port"),
    Case("port-number", MPI_JOB, place(port=80), place(port=29500), "kept for root"),
    Case("port-taken", SRUN, machine(port_taken=True), place(rank=8), "MASTER_PORT"),
    Case("port-of-connections", SRUN, place(port=40000), place(port=29500), "32768 to 60999"),
    Case("port-of-connections", SLURM_JOB, place(port=50000), place(port=None), "(launch.port)"),
    Case("gloo-pattern", EFA, env(GLOO_SOCKET_IFNAME="^docker,lo"), env(GLOO_SOCKET_IFNAME="eth0"),
         "no '^' before"),
    Case("gloo-pattern", SLURM_JOB, env(GLOO_SOCKET_IFNAME="=ib0"), env(GLOO_SOCKET_IFNAME="ib0"), "no '='"),
    Case("gloo-interface", LAPTOP, env(GLOO_SOCKET_IFNAME="eth"), env(GLOO_SOCKET_IFNAME="lo"),
         "use one of eth0, lo"),
    Case("nccl-interface", SLURM_H100, env(NCCL_SOCKET_IFNAME="=ib"), env(NCCL_SOCKET_IFNAME="ib"),
         "no such interface"),
    Case("interface-down", SLURM_H100, machine(interfaces=OFF), nothing, "ip link set ib0 up"),
    Case("interface-loopback", SLURM_H100, env(GLOO_SOCKET_IFNAME="lo"), env(GLOO_SOCKET_IFNAME="eth0"),
         "no other node can be reached"),
    Case("interface-loopback", replace(SLURM_JOB, site=SLURM_JOB.site.replace(interface=None)),
         env(NCCL_SOCKET_IFNAME="lo"), nothing, "launch.interface"),
    Case("interface-of-containers", SLURM_H100,
         both(machine(interfaces=MORE), env(NCCL_SOCKET_IFNAME="docker0")),
         both(machine(interfaces=MORE), env(NCCL_SOCKET_IFNAME="^docker")), "docker0"),
    Case("host-on-loopback", POD, machine(host_addresses=("127.0.1.1",)),
         both(machine(host_addresses=("127.0.1.1",)), env(GLOO_SOCKET_IFNAME="eth0")), "leads to 127.0.1.1"),
    Case("host-on-loopback", POD, machine(host_addresses=()), machine(host_addresses=None), "no address"),
    Case("two-interfaces", SLURM_JOB, env(GLOO_SOCKET_IFNAME="eth0"), env(GLOO_SOCKET_IFNAME="ib0"),
         "not launch.interface ib0"),
    Case("host-twice", MPI_JOB, site(hosts=["a", "a"]), site(hosts=["a", "b"]), "a stands twice"),
    Case("host-twice", MPI_JOB, site(hosts=["a", "localhost"]), nothing, "localhost is another machine"),
    Case("hosts-and-nodes", MPI_JOB, site(hosts=["a"]), site(hosts=[]), "1 host for 2 nodes"),
]  # fmt: skip
FABRIC = [
    Case("ib-unused", SLURM_H100, env(NCCL_IB_DISABLE="1"), env(NCCL_IB_DISABLE="0"), "idle InfiniBand"),
    Case("ib-unused", SLURM_H100, env(NCCL_NET="Socket"), env(NCCL_NET="IB"), "NCCL_NET=Socket"),
    Case("ib-card-missing", SLURM_H100, env(NCCL_IB_HCA="mlx4"), env(NCCL_IB_HCA="mlx5"), "mlx5_0, mlx5_1"),
    Case("ib-port-down", SLURM_H100, machine(cards=TWO_CARDS),
         both(machine(cards=TWO_CARDS), env(NCCL_IB_HCA="=mlx5_0:1")), "1 of 2 cards of NCCL_IB_HCA"),
    Case("ib-timeout-range", SLURM_H100, env(NCCL_IB_TIMEOUT="100"), env(NCCL_IB_TIMEOUT="22"), "exponent"),
    Case("gpudirect-off", SLURM_H100, env(NCCL_NET_GDR_LEVEL="LOC"), env(NCCL_NET_GDR_LEVEL="SYS"),
         "host memory"),
    Case("gpudirect-missing", SLURM_H100, machine(peer_memory=False, kernel=(5, 4)),
         machine(peer_memory=False, kernel=(5, 15)), "modprobe"),
    Case("efa-provider", EFA, env(FI_PROVIDER="tcp"), env(FI_PROVIDER="efa"), "FI_PROVIDER=tcp"),
    Case("efa-without-plugin", EFA, env(NCCL_NET="Socket"), env(NCCL_NET="AWS Libfabric"), "the plugin"),
]  # fmt: skip
LIMITS = [
    Case("open-files", SLURM_H100, limit(open_files=1024), limit(open_files=4096), "at most 1024"),
    Case("locked-memory", SLURM_H100, limit(locked_memory=64 << 10),
         both(limit(locked_memory=64 << 10), machine(locks_freely=True)), "64 KiB"),
    Case("processes", POD, limit(processes=512), limit(processes=4096), "pids.max"),
    Case("file-size", LAPTOP, limit(file_size=GIB), limit(file_size=100 * GIB), "1.00 GiB"),
    Case("address-space", ONE_NODE, limit(address_space=64 * GIB), limit(), "64 GiB of addresses"),
    Case("strict-overcommit", ONE_NODE, machine(overcommit=2), machine(overcommit=1), "overcommit_memory=0"),
    Case("shared-memory", POD, machine(shared_memory=Space(64 << 20, 64 << 20)),
         machine(shared_memory=Space(8 * GIB, 8 * GIB)), "64 MiB"),
    Case("shared-memory-full", ONE_NODE, machine(shared_memory=Space(8 * GIB, 9 << 20)),
         machine(shared_memory=Space(8 * GIB, GIB)), "9 MiB left"),
    Case("few-cores", SLURM_H100, both(machine(cores=1), env(OMP_NUM_THREADS="1")),
         both(machine(cores=8), env(OMP_NUM_THREADS="1")), "8 ranks share 1 core"),
    Case("threads-over-cores", SLURM_H100, env(OMP_NUM_THREADS="96"), env(OMP_NUM_THREADS="12"),
         "OMP_NUM_THREADS=12"),
]  # fmt: skip
STORAGE = [
    Case("no-room-to-save", LAPTOP, machine(folder=Folder("/home/me", Space(50 * GIB, 10 * GIB))),
         both(machine(folder=Folder("/home/me", Space(50 * GIB, 10 * GIB))), of_run(save_bytes=GIB)),
         "a checkpoint has 14.0"),
    Case("little-room", LAPTOP, machine(folder=Folder("/home/me", Space(50 * GIB, 20 * GIB))),
         both(machine(folder=Folder("/home/me", Space(50 * GIB, 20 * GIB))), spec(checkpoint={"every": 0})),
         "3 checkpoints have 41.9"),
    Case("few-inodes", SLURM_H100, machine(folder=replace(FOLDER, inodes=Space(10**6, 1000))),
         machine(folder=replace(FOLDER, inodes=None)), "1000 files"),
    Case("folder-unwritable", ONE_NODE, machine(folder=Folder("/opt", Space(10**12, 10**12), writable=False)),
         nothing, "/opt can't be written"),
    Case("folder-is-lost", POD, machine(folder=Folder("/lustre", Space(10**12, 10**12), "overlay")),
         machine(folder=Folder("/lustre", Space(10**12, 10**12), "xfs")), "the container's own (overlay)"),
    Case("folder-of-a-node", SLURM_JOB, spec(out_dir="/tmp/small"), spec(out_dir="/lustre/small"),
         "every node has its own"),
    Case("folder-of-a-node", POD_JOB, spec(out_dir="/tmp/small"),
         both(spec(out_dir="/tmp/small"), site(claims={"work": "/tmp"})), "/tmp/small"),
    Case("temporary-full", ONE_NODE, machine(temporary=Space(10 * GIB, 9 << 20)),
         both(machine(temporary=Space(10 * GIB, 9 << 20)), env(TORCHINDUCTOR_CACHE_DIR="/big")),
         "9 MiB left"),
    Case("cache-on-network", SLURM_H100, machine(caches={"TRITON_CACHE_DIR": "nfs4"}),
         machine(caches={"TRITON_CACHE_DIR": "xfs"}), "TRITON_CACHE_DIR is on nfs4"),
]  # fmt: skip
LIMITED = site(time_limit="24:00:00", save_before_s=120)
TIMING = [
    Case("no-time-to-save", SLURM_H100, of_run(last_save_s=200.0),
         both(of_run(last_save_s=200.0), site(save_before_s=300)), "the last save took 200 s"),
    Case("no-time-to-save", SLURM_JOB, of_run(save_bytes=10**13),
         both(of_run(save_bytes=10**13), of_run(last_save_s=60.0)), "even at 5 GB/s a node"),
    Case("no-time-to-save", POD_JOB, of_run(last_save_s=500.0), of_run(last_save_s=90.0), "set it to 750"),
    Case("killed-at-the-limit", SLURM_JOB, site(save_before_s=0), LIMITED, "launch.save_before_s: 0"),
    Case("save-over-timeout", SLURM_H100, both(of_run(last_save_s=2000.0), site(save_before_s=4000)),
         both(of_run(last_save_s=1500.0), site(save_before_s=4000)), "set it to 4020"),
    Case("steady-under-retries", SLURM_H100, spec(train={"timeouts": {"steady_s": 20}}),
         both(spec(train={"timeouts": {"steady_s": 20}}), env(NCCL_IB_TIMEOUT="18")), "for 30 s"),
    Case("start-at-scale", SLURM_H100,
         both(place(world=4096, nodes=512), spec(train={"timeouts": {"start_s": 300}}),),
         place(world=4096, nodes=512), "4,096 ranks have 300 s"),
    Case("job-ends-soon", SLURM_H100, env(SLURM_JOB_END_TIME=str(int(NOW) + 100)),
         env(SLURM_JOB_END_TIME=str(int(NOW) + 1000)), "ends in 100 s"),
    Case("clock-behind", LAPTOP, of_run(modified=NOW + 600), of_run(modified=NOW + 60), "600 s from now"),
]  # fmt: skip
JOBS = [
    Case("tasks-in-options", SLURM_JOB, site(options=["--ntasks-per-node=8"]),
         site(options=["--mail-type=END"]),
         "--ntasks-per-node=8"),
    Case("tasks-in-options", SLURM_JOB, site(options=["-N 2"]), nothing, "-N=2"),
    Case("gpu-a-task", SLURM_JOB, site(options=["--gpus-per-task=1"]), site(options=["--gpus-per-task=8"]),
         "launch.agent=rank"),
    Case("gpus-and-ranks", SLURM_JOB, site(options=["--gres=gpu:h100:4"]),
         site(options=["--gres=gpu:h100:8"]),
         "for 8 ranks"),
    Case("one-core-a-task", SLURM_JOB, site(cpus_per_rank=None),
         both(site(cpus_per_rank=None, options=["--exclusive"])), "launch.cpus_per_rank"),
    Case("outside-srun", replace(ONE_NODE, place=replace(ONE_NODE.place, starter="none")),
         env(SLURM_JOB_NUM_NODES="4"), env(SLURM_JOB_NUM_NODES="1"), "Slurm gave 4 nodes"),
    Case("never-resumes", SLURM_JOB, spec(resume="never"), spec(resume="auto"), "begins at step 0"),
    Case("restarts-without-saves", MPI_JOB, both(site(max_restarts=3), spec(checkpoint={"every": 0})),
         site(max_restarts=3), "set checkpoint.every"),
    Case("nothing-saved", SLURM_JOB, spec(checkpoint={"every": 0}), spec(checkpoint={"every": 9}),
         "takes all of it along"),
    Case("image-without-version", POD_JOB, site(container="registry.site:5000/train"),
         site(container="registry.site:5000/train:1.4"), "has no version"),
    Case("image-without-version", POD_JOB, site(container="train:latest"), site(container="train@sha256:ab"),
         "train:latest"),
    Case("small-pod-memory", POD_JOB, site(shared_memory="64Mi"), site(shared_memory="8Gi"), "64Mi"),
    Case("pod-memory-is-shared", POD_JOB, site(memory="16Gi"), site(memory="64Gi"), "/dev/shm of 16Gi"),
]  # fmt: skip
NODES = [
    Case("torch-differs", SLURM_H100, version(2, torch="2.11.0"), nothing, "torch is 2.11.0 on n3, and 2.12.0"),
    Case("scalewright-differs", SLURM_H100, version(1, scalewright="1.0 77ac01"), nothing, "77ac01 on n2"),
    Case("nccl-differs", SLURM_H100, version(3, nccl="2.27.5"), nothing, "nccl is 2.27.5 on n4"),
    Case("python-differs", SLURM_H100, version(3, python="3.11.2"), nothing, "n1, n2, n3"),
    Case("driver-differs", SLURM_H100, version(0, driver="570"), nothing, "launch.exclude"),
    Case("gpus-differ", SLURM_H100, on_node(1, gpus={"NVIDIA A100-SXM4-80GB": 8}), nothing, "8 x NVIDIA A100"),
    Case("cards-differ", SLURM_H100, on_node(3, cards=7), nothing, "7 active on n4, and 8 active on n1"),
    Case("run-differs", SLURM_H100, on_node(1, run="ff00"), on_node(1, run=""), "same run file"),
    Case("variables-differ", SLURM_H100, on_node(2, variables={}), nothing, "NCCL_DEBUG is unset on n3"),
    Case("mtu-differs", SLURM_H100, on_node(2, mtu=1500), on_node(2, mtu=None), "1500 on n3"),
    Case("clocks-differ", SLURM_H100, on_node(2, clock=NOW - 40), on_node(2, clock=NOW + 0.5), "n3 is -40 s"),
    Case("folder-not-shared", SLURM_H100, on_node(2, sees_folder=False), nothing, "n3 doesn't see what n1"),
]
CASES = [*VARIABLES, *NETWORK, *FABRIC, *LIMITS, *STORAGE, *TIMING, *JOBS, *NODES]
