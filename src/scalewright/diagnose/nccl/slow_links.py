"""What slows links between nodes and within one: one rule a cause.

mlx5_0 ═══ IB/GDRDMA ═══ mlx5_0      as it should be: the adapter reads the GPU's memory
mlx5_0 ═══ IB ═══════════ mlx5_0     GPUDirect RDMA off: through the host's memory
docker0 ── Socket ────── docker0     TCP, over an interface that leads nowhere

GPU ═ NVLink ═ GPU                   P2P/IPC, P2P/CUMEM, P2P/direct pointer; over PCIe they are printed alike
GPU ─ memory ─ GPU                   SHM: P2P is off or forbidden
GPU ─ NIC ─── NIC ─ GPU              NET: SHM is off too, or containers share no memory
"""

from __future__ import annotations

from scalewright.diagnose.nccl.log import Log, names, printed, setting
from scalewright.diagnose.nccl.summary import Summary
from scalewright.diagnose.verdict import Verdict

LOCAL = ("docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "tailscale", "zt")
FEW_CHANNELS = 2  # NCCL takes 2 over a slow network; NVLink and several fast adapters give 8 to 32
BEYOND_NVLINK = ("PIX", "PXB", "PXN", "PHB", "NODE", "SYS")  # ways between GPUs that leave NVLink


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
    if disabled := setting(log, "NCCL_IB_DISABLE", "1"):
        return [disabled], "unset NCCL_IB_DISABLE", 0.95
    if chosen := setting(log, "NCCL_NET", "Socket", "socket"):
        return [chosen], "unset NCCL_NET", 0.95
    missing, failed = printed(log, "no InfiniBand device"), printed(log, "adapter can't be opened")
    if missing and (wanted := log.environment.get("NCCL_IB_HCA")):
        named = f"NCCL_IB_HCA names {names(wanted)}, and NET/IB found no device of that name"
        return [named, missing], "unset NCCL_IB_HCA, or name adapters that `ibv_devices` lists on every node", 0.95
    if missing or failed:
        how = "check that the nodes have adapters (`ibv_devinfo`) and that the container sees /dev/infiniband"
        absent = printed(log, "libnccl-net.so not found") or printed(log, "no NET plugin")
        if absent:
            how += "; for a cloud's own network (EFA and the like) install its NCCL plugin"
        return [reason for reason in (missing, failed, absent) if reason], how, 0.8
    return [], "run with NCCL_DEBUG_SUBSYS=INIT,NET,ENV to see why NET/IB isn't taken", 0.6


def _gdr(run: Summary) -> Verdict | None:
    links = {way: count for way, count in run.between.items() if way.kind == "NET" and way.name != "Socket"}
    without = sum(count for way, count in links.items() if not way.gdr)
    if not run.many_nodes or run.net == "Socket" or run.gdr is True or not (without or run.gdr is False):
        return None
    unmarked = f"{without:,} of {sum(links.values()):,} links between nodes lack the mark GDRDMA"
    why, fix, confidence = _why_no_gdr(run)
    return Verdict("GPUDirect RDMA is off between nodes", [unmarked] * bool(without) + why, fix, confidence)


def _why_no_gdr(run: Summary) -> tuple[list[str], str, float]:
    """The reason that a log gives for copies through the host, what to do, and how sure that is."""
    log = run.log
    if set_off := setting(log, "NCCL_NET_GDR_LEVEL", "LOC", "0") or setting(log, "NCCL_IB_CUDA_SUPPORT", "0"):
        return [set_off], f"unset {set_off.split()[0]}", 0.95
    if log.gdr_distance:
        far = f"{len(log.gdr_distance)} pairs of a GPU and an adapter are too far apart"
        fix = "use adapters behind the GPU's own PCIe switch (NCCL_IB_HCA); NCCL_NET_GDR_LEVEL=PHB allows more"
        return [f"{far} (distance {max(log.gdr_distance.values())})"], fix, 0.9
    if any(name.startswith("hfi1") for listed in log.adapters.values() for name, _ in listed.values()):
        fix = "Omni-Path offers it to its own libraries: use the OFI plugin with the provider opx or psm2"
        return ["the adapters are Omni-Path's (hfi1)"], fix, 0.7
    if run.net == "OFI" and log.provider in ("", "efa"):
        return [], "over EFA p4d, p5 and later have it; older plugins need FI_EFA_USE_DEVICE_RDMA=1", 0.7
    fix = "load nvidia-peermem (or use DMA-BUF: a 5.12 kernel and the open driver) on every node"
    off = sorted({f"{host} {adapter}" for (host, adapter), on in log.gdr_adapters.items() if not on})
    return [f"NCCL says that it is disabled for {names(off)}"] * bool(off), fix, 0.9 if off else 0.7


def _few_adapters(run: Summary) -> Verdict | None:
    adapters = run.log.adapters
    few = [host for host, used in run.used.items() if host in adapters and 2 * len(used) <= len(adapters[host])]
    if not few or not run.many_nodes or run.net == "Socket":
        return None
    used, listed = run.used[few[0]], adapters[few[0]]
    inside = [listed[number][0] for number in sorted(used) if number in listed]
    evidence = [f"{few[0]} has {len(listed)} adapters, and its links go over {len(used)}: {names(inside)}"]
    if len(few) > 1:
        evidence.append(f"so it is on {names(few)}")
    fix = (
        "give NCCL all of them (NCCL_IB_HCA), the machine's topology (NCCL_TOPO_FILE in a virtual machine), and more "
        "channels (NCCL_MIN_NCHANNELS)"
    )
    if len(used) == 1:
        return Verdict("one adapter used of several", evidence, fix, 0.7)
    return Verdict("few adapters used of several", evidence, fix, 0.5)


def _wrong_interface(run: Summary) -> Verdict | None:
    wrong = {
        host: inside[0]
        for listed in (run.log.sockets if run.net == "Socket" else {}, run.log.bootstrap)
        for host, inside in listed.items()
        if inside and (inside[0] == "lo" or inside[0].startswith(LOCAL))
    }
    if not wrong or run.nodes == 1:
        return None
    sure = 0.9 if run.many_nodes or run.log.messages.keys() & {"connection refused", "connection timed out"} else 0.5
    interface = next(iter(wrong.values()))
    line = f"{names(wrong)} {'uses' if len(wrong) == 1 else 'use'} {interface}, which other hosts can't reach"
    fix = (
        "set NCCL_SOCKET_IFNAME to the interface that the nodes share (`ip addr`), or exclude this one: "
        f"NCCL_SOCKET_IFNAME=^{interface},lo"
    )
    return Verdict("the wrong interface", [line], fix, sure)


BETWEEN = (_sockets, _gdr, _few_adapters, _wrong_interface)


def _network_within(run: Summary) -> Verdict | None:
    over = sum(count for way, count in run.within.items() if way.kind == "NET")
    if not over:
        return None
    evidence = [f"{over:,} of {sum(run.within.values()):,} links between GPUs of one host go over the network"]
    if disabled := setting(run.log, "NCCL_SHM_DISABLE", "1"):
        evidence.append(disabled)
    fix = "unset NCCL_SHM_DISABLE and NCCL_P2P_DISABLE; ranks in their own containers need --ipc=host and one /dev/shm"
    return Verdict("the network within a node", evidence, fix, 0.9)


def _shared_memory(run: Summary) -> Verdict | None:
    over = sum(count for way, count in run.within.items() if way.kind == "SHM")
    disabled = setting(run.log, "NCCL_P2P_DISABLE", "1") or setting(run.log, "NCCL_P2P_LEVEL", "LOC", "0")
    if not over and not disabled:
        return None
    line = f"{over:,} of {sum(run.within.values()):,} links within a node go through the host's memory"
    evidence = [line] if over else []
    fix, confidence = "see `nvidia-smi topo -p2p r`: virtualisation (ACS, IOMMU) and consumer GPUs forbid P2P", 0.7
    if disabled:
        evidence.append(disabled)
        fix, confidence = f"unset {disabled.split()[0]}", 0.95
    elif forbidden := printed(run.log, "P2P disabled between GPUs"):
        evidence.append(forbidden)
        confidence = 0.85
    cause = "shared memory instead of P2P within a node" if over else "P2P is disabled"
    return Verdict(cause, evidence, fix, confidence)


def _pcie(run: Summary) -> Verdict | None:
    far = [BEYOND_NVLINK.index(inside) for inside, _ in run.log.graphs if inside in BEYOND_NVLINK]
    if not far:
        return None
    line = f"NCCL's graphs connect GPUs over {BEYOND_NVLINK[max(far)]} where NVLink would read NVL"
    fix = (
        "check `nvidia-smi topo -m` and `nvidia-smi nvlink -s`: the machine has none, a bridge is down, or the job's "
        "GPUs aren't those that are linked"
    )
    return Verdict("PCIe instead of NVLink within a node", [line], fix, 0.8)


def _few_channels(run: Summary) -> Verdict | None:
    if run.channels is None or (run.net == "Socket" and run.many_nodes) or (run.ranks or 0) < 2:
        return None
    limit = setting(run.log, "NCCL_MAX_NCHANNELS") or setting(run.log, "NCCL_MAX_CTAS")
    if run.channels > FEW_CHANNELS and not (limit and run.channels <= 2 * FEW_CHANNELS):
        return None
    line = f"collectives run on {run.channels} channels, each a block of the GPU: few for fast links"
    if limit:
        return Verdict("few channels", [line, limit], "unset it", 0.85)
    return Verdict("few channels", [line], "try NCCL_MIN_NCHANNELS=8, and measure with nccl-tests", 0.4)


WITHIN = (_network_within, _shared_memory, _pcie, _few_channels)
