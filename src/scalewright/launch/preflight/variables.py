"""Variables that were left from debugging, have no effect, or undo what the run asks for.

NCCL's manual parts its variables in two: those that fit it to a system may stay in scripts, and those of its
section on debugging may make runs slow, crash or hang, and are to be removed when a problem is solved.
"""

from __future__ import annotations

from scalewright.launch.preflight.facts import Facts
from scalewright.launch.preflight.rule import RuleFailure, Subject
from scalewright.spec.common.formatting import counted

SUBJECT = Subject("variables")
NCCL = "NCCL user guide, Environment Variables"
TORCH_NCCL = "PyTorch docs, ProcessGroupNCCL Environment Variables"

OLD = ("NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING")
RENAMED = {name: f"TORCH_{name}" for name in OLD}
UNREAD = {  # names that scripts set and no library reads -> what does it
    **dict.fromkeys(("NCCL_TIMEOUT", "NCCL_SOCKET_TIMEOUT"), "train.timeouts holds the seconds that ranks wait"),
    **dict.fromkeys(("NCCL_IFNAME", "NCCL_SOCKET_IFACE", "NCCL_SOCKET_INTERFACE"), "the name is NCCL_SOCKET_IFNAME"),
    "NCCL_IB_HCAS": "the name is NCCL_IB_HCA",
    "NCCL_DEBUG_LEVEL": "the name is NCCL_DEBUG",
    **dict.fromkeys(("GLOO_IFNAME", "GLOO_INTERFACE"), "the name is GLOO_SOCKET_IFNAME"),
}
OF_A_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK")
WORKSPACES = (":4096:8", ":16:8")
SHARES_ITS_VIEW = ("torchrun", "none", "local")  # its ranks see the same GPUs as it does
SHARDED = 3


@SUBJECT.rule("nccl-debug", "warn", "`NCCL_DEBUG` is `INFO` or `TRACE`", f"{NCCL}: NCCL_DEBUG", needs=("GPUs",))
def nccl_debug(facts: Facts) -> RuleFailure | None:
    level = facts.environ.get("NCCL_DEBUG", "")
    if level.upper() not in ("INFO", "TRACE"):
        return None
    what = f"NCCL_DEBUG={level} is for debugging: every rank writes hundreds of lines"
    return RuleFailure(what, facts.where, facts.set("NCCL_DEBUG=WARN"))


@SUBJECT.rule("nccl-debug-file", "warn", "ranks write NCCL's log into one file", f"{NCCL}: NCCL_DEBUG_FILE",
              needs=("GPUs", "several ranks"))  # fmt: skip
def nccl_debug_file(facts: Facts) -> RuleFailure | None:
    name = facts.environ.get("NCCL_DEBUG_FILE", "")
    missing = [key for key, many in (("%p", facts.place.per_node), ("%h", facts.place.nodes)) if many > 1]
    missing = [key for key in missing if key not in name]
    if not name or not missing:
        return None
    what = f"NCCL_DEBUG_FILE={name} has no {' and no '.join(missing)}: ranks write over each other's lines"
    return RuleFailure(what, facts.where, "name it such as nccl-%h-%p.log (host and process)")


@SUBJECT.rule("nccl-p2p-off", "warn", "copies between GPUs of a node are switched off", f"{NCCL}: NCCL_P2P_DISABLE",
              needs=("GPUs", "several ranks a node"))  # fmt: skip
def nccl_p2p_off(facts: Facts) -> RuleFailure | None:
    if facts.on("NCCL_P2P_DISABLE"):
        name = "NCCL_P2P_DISABLE"
    elif facts.environ.get("NCCL_P2P_LEVEL", "").upper() in ("LOC", "0"):
        name = "NCCL_P2P_LEVEL"
    else:
        return None
    what = f"{name}={facts.environ[name]} keeps GPUs of a node from using NVLink or PCIe directly"
    return RuleFailure(what, facts.where, facts.unset(name))


SUBJECT.setting("nccl-shm-off", "shared memory between ranks of a node is switched off", f"{NCCL}: NCCL_SHM_DISABLE",
                "NCCL_SHM_DISABLE=1 sends over the network what GPUs without a direct way pass through memory",
                needs=("GPUs", "several ranks a node"))  # fmt: skip


@SUBJECT.rule("nccl-forced", "warn", "an algorithm or protocol of NCCL is forced", f"{NCCL}: NCCL_ALGO, NCCL_PROTO",
              needs=("GPUs", "several ranks"))  # fmt: skip
def nccl_forced(facts: Facts) -> RuleFailure | None:
    names = [name for name in ("NCCL_ALGO", "NCCL_PROTO") if facts.environ.get(name)]
    if not names or (facts.environ.get("NCCL_PROTO", "").lower() == "simple" and "NCCL_ALGO" not in names):
        return None  # older plugins for EFA needed Simple
    shown = " ".join(f"{name}={facts.environ[name]}" for name in names)
    what = f"{shown} takes NCCL's choice of what is fastest for each size away"
    return RuleFailure(what, facts.where, facts.unset(" ".join(names)))


SUBJECT.setting("torch-distributed-debug", "`TORCH_DISTRIBUTED_DEBUG` is `DETAIL`",
                "PyTorch docs, torch.distributed: Debugging",
                "TORCH_DISTRIBUTED_DEBUG=DETAIL makes ranks compare every collective before they do it",
                needs=("several ranks",))  # fmt: skip
SUBJECT.setting("cuda-launch-blocking", "kernels are launched one by one",
                "CUDA programming guide, CUDA Environment Variables: CUDA_LAUNCH_BLOCKING",
                "CUDA_LAUNCH_BLOCKING=1 waits for every kernel: nothing overlaps", needs=("GPUs",))  # fmt: skip
SUBJECT.setting("cuda-cache-off", "torch's cache of GPU memory is switched off",
                "PyTorch docs, CUDA Environment Variables: PYTORCH_NO_CUDA_MEMORY_CACHING",
                "PYTORCH_NO_CUDA_MEMORY_CACHING=1 asks the driver for every tensor, and waits for the GPU",
                needs=("GPUs",))  # fmt: skip
SUBJECT.setting("nccl-blocking-wait", "ranks block in every collective", f"{TORCH_NCCL}: TORCH_NCCL_BLOCKING_WAIT",
                "TORCH_NCCL_BLOCKING_WAIT=1 makes the host wait for every collective: nothing overlaps",
                needs=("GPUs", "several ranks"), how=": hangs are seen without it")  # fmt: skip
SUBJECT.setting("nccl-errors-ignored", "errors of NCCL don't end a rank",
                f"{TORCH_NCCL}: TORCH_NCCL_ASYNC_ERROR_HANDLING",
                "TORCH_NCCL_ASYNC_ERROR_HANDLING=0: a rank whose peer is gone waits for ever",
                needs=("GPUs", "several ranks"))  # fmt: skip


@SUBJECT.rule("old-name", "warn", "a variable's older name", TORCH_NCCL, needs=("GPUs",))
def old_name(facts: Facts) -> RuleFailure | None:
    old = [name for name in RENAMED if facts.environ.get(name)]
    if not old:
        return None
    what = f"{old[0]} is an older name, which torch warns of and will drop"
    return RuleFailure(what, facts.where, f"write {RENAMED[old[0]]}, or {facts.unset(old[0])}")


@SUBJECT.rule("no-such-variable", "warn", "a variable that no library reads",
              f"{NCCL}; torch.distributed: Choosing the network interface")  # fmt: skip
def no_such_variable(facts: Facts) -> RuleFailure | None:
    unread = [name for name in UNREAD if facts.environ.get(name)]
    if not unread:
        return None
    return RuleFailure(f"{unread[0]} has no effect: no library reads it", facts.where, UNREAD[unread[0]])


@SUBJECT.rule("one-connection", "warn", "`CUDA_DEVICE_MAX_CONNECTIONS=1` with sharded weights",
              "Megatron-LM, Megatron-FSDP user guide: Recommended Configurations", needs=("GPUs", "a run"))  # fmt: skip
def one_connection(facts: Facts) -> RuleFailure | None:
    layout = facts.run.spec.layout if facts.run else None
    if layout is None or layout.zero_stage != SHARDED or layout.tp > 1:
        return None
    if facts.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1":
        return None
    what = "CUDA_DEVICE_MAX_CONNECTIONS=1 puts gathers of weights into one queue with the kernels"
    return RuleFailure(what, facts.where, facts.unset("CUDA_DEVICE_MAX_CONNECTIONS"))


SUBJECT.setting("compile-debug", "`torch.compile` writes what it does to files",
                "PyTorch docs, torch.compiler: Troubleshooting",
                "TORCH_COMPILE_DEBUG=1: every rank writes a folder for each graph that it compiles")  # fmt: skip


@SUBJECT.rule("python-debug", "warn", "Python checks its own memory",
              "Python docs, Command line and environment: PYTHONDEVMODE, PYTHONMALLOC")  # fmt: skip
def python_debug(facts: Facts) -> RuleFailure | None:
    debug = facts.environ.get("PYTHONMALLOC", "").endswith("debug")
    name = "PYTHONMALLOC" if debug else "PYTHONDEVMODE" if facts.on("PYTHONDEVMODE") else ""
    if not name:
        return None
    what = f"{name}={facts.environ[name]} checks every allocation of Python: all of it is slower"
    return RuleFailure(what, facts.where, facts.unset(name))


@SUBJECT.rule("cublas-workspace", "problem", "a workspace of cuBLAS that isn't deterministic",
              "PyTorch docs, torch.use_deterministic_algorithms", needs=("GPUs", "a run"))  # fmt: skip
def cublas_workspace(facts: Facts) -> RuleFailure | None:
    value = facts.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if not (facts.run and facts.run.spec.deterministic) or not value or value in WORKSPACES:
        return None
    what = f"CUBLAS_WORKSPACE_CONFIG={value}, with which a deterministic run fails at its first product"
    how = f"use {' or '.join(WORKSPACES)}, or {facts.unset('CUBLAS_WORKSPACE_CONFIG')}"
    return RuleFailure(what, facts.where, how)


@SUBJECT.rule("tf32-overridden", "warn", "`NVIDIA_TF32_OVERRIDE=0` in a run in TF32",
              "cuBLAS docs, Environment Variables: NVIDIA_TF32_OVERRIDE", needs=("GPUs", "a run"))  # fmt: skip
def tf32_overridden(facts: Facts) -> RuleFailure | None:
    if facts.run is None or facts.run.spec.layout.precision != "tf32":
        return None
    if facts.environ.get("NVIDIA_TF32_OVERRIDE") != "0":
        return None
    what = "NVIDIA_TF32_OVERRIDE=0 makes the libraries compute in fp32, whatever layout.precision says"
    return RuleFailure(what, facts.where, facts.unset("NVIDIA_TF32_OVERRIDE"))


@SUBJECT.rule("visible-gpus", "problem", "`CUDA_VISIBLE_DEVICES` shows a node's ranks too few GPUs",
              "CUDA programming guide, CUDA Environment Variables: CUDA_VISIBLE_DEVICES", needs=("GPUs",))  # fmt: skip
def visible_gpus(facts: Facts) -> RuleFailure | None:
    value = facts.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    names = [name for name in value.split(",") if name.strip() not in ("", "-1")]
    starter, ranks = facts.place.starter, facts.place.per_node
    own_each = len(names) == 1 and starter not in SHARES_ITS_VIEW  # srun --gpus-per-task=1
    if len(names) >= ranks or own_each:
        return None
    shown = f"{counted(len(names), 'GPUs')} to {counted(ranks, 'ranks')} of a node"
    what = f"CUDA_VISIBLE_DEVICES={value} shows {shown}"
    return RuleFailure(what, facts.where, facts.unset("CUDA_VISIBLE_DEVICES") + ", or start as many ranks")


@SUBJECT.rule("rank-in-site", "problem", "`launch.env` gives all ranks one rank",
              "torchrun docs: Environment Variables", at=("submit",))  # fmt: skip
def rank_in_site(facts: Facts) -> RuleFailure | None:
    names = [name for name in OF_A_RANK if name in facts.site.env]
    if not names:
        return None
    what = f"{names[0]}={facts.site.env[names[0]]} would be every rank's"
    return RuleFailure(what, "launch.env", f"leave {' and '.join(names)} out: the starter sets them")
