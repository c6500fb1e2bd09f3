"""What slows a run's communication: one rule, one function, silent where the log doesn't show its cause.

    between nodes   sockets instead of InfiniBand · GPUDirect RDMA off · few adapters · the wrong interface
    within a node   the network or shared memory instead of P2P · PCIe instead of NVLink
    anywhere        few channels · differences between hosts (differences.py) · errors (problems.py)

NCCL chooses on its own, and says why only in passing: a rule looks for the reason among the variables and
messages, and its confidence falls where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scalewright.diagnose.nccl.differences import DIFFERENCES
from scalewright.diagnose.nccl.log import Log, Message
from scalewright.diagnose.nccl.problems import CAUSE, SYMPTOM
from scalewright.diagnose.nccl.summary import Summary
from scalewright.diagnose.nccl.verdict import Verdict, names

FEW_CHANNELS = 2  # NCCL takes 2 over a slow network; NVLink and several fast adapters give 8 to 32
LOCAL = ("docker", "lo", "br-", "veth", "virbr", "cni", "flannel", "cali", "tailscale", "zt")
BEYOND_NVLINK = ("PIX", "PXB", "PXN", "PHB", "NODE", "SYS")  # ways between GPUs that leave NVLink


def verdicts(run: Summary) -> list[Verdict]:
    """All causes: errors first, then what slows, the surest first."""
    slow = [verdict for rule in RULES if (verdict := rule(run)) is not None]
    return [*_errors(run.log), *sorted(slow, key=lambda verdict: -verdict.confidence)]


def _errors(log: Log) -> list[Verdict]:
    """Warnings of the table; those that only say that something failed where nothing tells what."""
    causes = [message for message in log.messages.values() if message.problem.gravity == CAUSE]
    known = [message for message in causes if message.problem.any_of]
    symptoms = [message for message in log.messages.values() if message.problem.gravity == SYMPTOM]
    chosen = known + [message for message in causes if message not in known] + ([] if known else symptoms)
    return [_error(message) for message in chosen]


def _error(message: Message) -> Verdict:
    evidence = [f"{message.file}, line {message.line}: {message.text}"]
    if message.count > 1 or message.hosts:
        times = "once" if message.count == 1 else f"{message.count:,} times"
        evidence.append(
            f"printed {times}" + (f", by {names(sorted(message.hosts))}" if message.hosts else "")
        )
    if message.peers:
        evidence.append(f"the other end: {names(sorted(message.peers))}")
    fix = (
        message.problem.fix
        or "NCCL's own words: its documentation's chapter on troubleshooting has most of them"
    )
    return Verdict(message.problem.name, evidence, fix,
                   0.9 if message.problem.gravity == CAUSE and message.problem.any_of else 0.5)  # fmt: skip


def _sockets(run: Summary) -> Verdict | None:
    over = sum(count for way, count in run.between.items() if way.name == "Socket")
    if not run.many_nodes or not (over or run.net == "Socket"):
        return None
    evidence = ["the network between nodes is Socket: TCP, with copies through the host's memory"]
    if over:
        evidence.append(f"{over:,} of {sum(run.between.values()):,} links between nodes go over NET/Socket")
    why, fix, confidence = _why_sockets(run.log)
    return Verdict("sockets instead of InfiniBand or RoCE", evidence + why, fix, confidence)


def _why_sockets(log: Log) -> tuple[list[str], str, float]:
    """The reason that a log gives for sockets, what to do, and how sure that is."""
    if disabled := _set(log, "NCCL_IB_DISABLE", "1"):
        return [disabled], "unset NCCL_IB_DISABLE", 0.95
    if chosen := _set(log, "NCCL_NET", "Socket", "socket"):
        return [chosen], "unset NCCL_NET", 0.95
    missing = _message(log, "no InfiniBand device")
    wanted = [*log.environment.get("NCCL_IB_HCA", ())]
    if missing and wanted:
        named = f"NCCL_IB_HCA names {names(wanted)}, and NET/IB found no device of that name"
        return (
            [named, missing],
            "unset NCCL_IB_HCA, or name adapters that `ibv_devices` lists on every node",
            0.95,
        )
    failed = _message(log, "adapter can't be opened")
    if missing or failed:
        how = "check that the nodes have adapters (`ibv_devinfo`) and that the container sees /dev/infiniband"
        why = [some for some in (missing, failed) if some]
        absent = _message(log, "libnccl-net.so not found") or _message(log, "no NET plugin")
        if absent:
            why.append(absent)
            how += "; for a cloud's own network (EFA and the like) install its NCCL plugin"
        return why, how, 0.8
    return [], "run with NCCL_DEBUG_SUBSYS=INIT,NET,ENV to see why NET/IB isn't taken", 0.6


def _gdr(run: Summary) -> Verdict | None:
    links = {way: count for way, count in run.between.items() if way.kind == "NET" and way.name != "Socket"}
    without = sum(count for way, count in links.items() if not way.gdr)
    if not run.many_nodes or run.net == "Socket" or run.gdr is True or not (without or run.gdr is False):
        return None
    log, evidence = run.log, []
    if without:
        evidence.append(f"{without:,} of {sum(links.values()):,} links between nodes lack the mark GDRDMA")
    fix, confidence = (
        "load nvidia-peermem (or use DMA-BUF: a 5.12 kernel and the open driver) on every node",
        0.7,
    )
    if any(name.startswith("hfi1") for listed in log.adapters.values() for name, _ in listed.values()):
        evidence.append("the adapters are Omni-Path's (hfi1)")
        fix = (
            "Omni-Path offers it to its own libraries only: use the OFI plugin with the provider opx or psm2"
        )
    if run.net == "OFI":
        fix = "over EFA only p4d, p5 and later have it, and older plugins need FI_EFA_USE_DEVICE_RDMA=1"
    off = sorted({f"{host} {adapter}" for (host, adapter), on in log.gdr_adapters.items() if not on})
    if off:
        evidence.append(f"NCCL says that it is disabled for {names(off)}")
        confidence = 0.9
    if set_off := _set(log, "NCCL_NET_GDR_LEVEL", "LOC", "0") or _set(log, "NCCL_IB_CUDA_SUPPORT", "0"):
        evidence.append(set_off)
        fix, confidence = "unset it", 0.95
    elif log.gdr_distance:
        evidence.append(
            f"{len(log.gdr_distance)} pairs of a GPU and an adapter are too far apart (distance "
            f"{max(log.gdr_distance.values())})"
        )
        fix = (
            "use adapters behind the GPU's own PCIe switch (NCCL_IB_HCA); NCCL_NET_GDR_LEVEL=PHB allows more"
        )
        confidence = 0.9
    return Verdict("GPUDirect RDMA is off between nodes", evidence, fix, confidence)


def _shared_memory(run: Summary) -> Verdict | None:
    whole = sum(run.within.values())
    over = sum(count for way, count in run.within.items() if way.kind == "SHM")
    disabled = _set(run.log, "NCCL_P2P_DISABLE", "1") or _set(run.log, "NCCL_P2P_LEVEL", "LOC", "0")
    if not over and not disabled:
        return None
    evidence = [f"{over:,} of {whole:,} links within a node go through the host's memory"] if over else []
    fix, confidence = (
        "see `nvidia-smi topo -p2p r`: virtualisation (ACS, IOMMU) and consumer GPUs forbid P2P",
        0.7,
    )
    if disabled:
        evidence.append(disabled)
        fix, confidence = f"unset {disabled.split()[0]}", 0.95
    elif forbidden := _message(run.log, "P2P disabled between GPUs"):
        evidence.append(forbidden)
        confidence = 0.85
    return Verdict("shared memory instead of P2P within a node" if over else "P2P is disabled",
                   evidence, fix, confidence)  # fmt: skip


def _network_within(run: Summary) -> Verdict | None:
    over = sum(count for way, count in run.within.items() if way.kind == "NET")
    if not over:
        return None
    evidence = [
        f"{over:,} of {sum(run.within.values()):,} links between GPUs of one host go over the network"
    ]
    disabled = _set(run.log, "NCCL_SHM_DISABLE", "1")
    return Verdict(
        "the network within a node", evidence + [disabled] * bool(disabled),
        "unset NCCL_SHM_DISABLE and NCCL_P2P_DISABLE; ranks in their own containers need --ipc=host and "
        "one /dev/shm", 0.9,
    )  # fmt: skip


def _pcie(run: Summary) -> Verdict | None:
    far = {inside: count for (inside, _), count in run.log.graphs.items() if inside in BEYOND_NVLINK}
    if not far:
        return None
    way = max(far, key=lambda inside: (BEYOND_NVLINK.index(inside), inside))
    return Verdict(
        "PCIe instead of NVLink within a node",
        [f"NCCL's graphs connect GPUs over {way} where NVLink would read NVL"],
        "check `nvidia-smi topo -m` and `nvidia-smi nvlink -s`: the machine has none, a bridge is down, or "
        "the job's GPUs aren't those that are linked", 0.8,
    )  # fmt: skip


def _few_adapters(run: Summary) -> Verdict | None:
    log = run.log
    few = {
        host: (used, log.adapters[host])
        for host, used in run.used.items()
        if host in log.adapters and run.net != "Socket" and 2 * len(used) <= len(log.adapters[host])
    }
    if not few or not run.many_nodes:
        return None
    host, (used, listed) = next(iter(few.items()))
    inside = [listed[number][0] for number in sorted(used) if number in listed]
    evidence = [f"{host} has {len(listed)} adapters, and its links go over {len(used)}: {names(inside)}"]
    if len(few) > 1:
        evidence.append(f"so it is on {names(list(few))}")
    alone = len(used) == 1
    return Verdict(
        f"{'one adapter' if alone else 'few adapters'} used of several", evidence,
        "give NCCL all of them (NCCL_IB_HCA), the machine's topology (NCCL_TOPO_FILE in a virtual machine), "
        "and more channels (NCCL_MIN_NCHANNELS)", 0.7 if alone else 0.5,
    )  # fmt: skip


def _few_channels(run: Summary) -> Verdict | None:
    if run.channels is None or (run.net == "Socket" and run.many_nodes) or (run.ranks or 0) < 2:
        return None
    limit = _set(run.log, "NCCL_MAX_NCHANNELS") or _set(run.log, "NCCL_MAX_CTAS")
    if run.channels > FEW_CHANNELS and not (limit and run.channels <= 2 * FEW_CHANNELS):
        return None
    return Verdict(
        "few channels",
        [f"collectives run on {run.channels} channels, each a block of the GPU: few for fast links",
         *([limit] if limit else [])],
        "unset it" if limit else "try NCCL_MIN_NCHANNELS=8, and measure with nccl-tests",
        0.85 if limit else 0.4,
    )  # fmt: skip


def _wrong_interface(run: Summary) -> Verdict | None:
    wrong = {
        host: inside[0]
        for listed in (run.log.sockets if run.net == "Socket" else {}, run.log.bootstrap)
        for host, inside in listed.items()
        if inside and _is_local(inside[0])
    }
    if not wrong or run.nodes == 1:
        return None
    sure = (
        0.9
        if run.many_nodes or run.log.messages.keys() & {"connection refused", "connection timed out"}
        else 0.5
    )
    interface = next(iter(wrong.values()))
    use = "uses" if len(wrong) == 1 else "use"
    return Verdict(
        "the wrong interface",
        [f"{names(list(wrong))} {use} {interface}, which other hosts can't reach"],
        "set NCCL_SOCKET_IFNAME to the interface that the nodes share (`ip addr`), or exclude this one: "
        f"NCCL_SOCKET_IFNAME=^{interface},lo", sure,
    )  # fmt: skip


def _is_local(interface: str) -> bool:
    return interface == "lo" or any(interface.startswith(word) for word in LOCAL if word != "lo")


def _set(log: Log, name: str, *values: str) -> str:
    """`NCCL_IB_DISABLE is set to 1` where a variable has one of the values (or any, if none is given)."""
    here = [value for value in log.environment.get(name, ()) if not values or value in values]
    if not here:
        return ""
    hosts = sorted(set().union(*(log.environment[name][value] for value in here)))
    return f"{name} is set to {names(here)}" + (f" on {names(hosts)}" if hosts else "")


def _message(log: Log, name: str) -> str:
    message = log.messages.get(name)
    return f"line {message.line} of {message.file}: {message.text}" if message else ""


RULES: Sequence[Callable[[Summary], Verdict | None]] = (
    _sockets, _gdr, _network_within, _shared_memory, _pcie, _few_adapters, _few_channels, _wrong_interface,
    *DIFFERENCES,
)  # fmt: skip
