"""What slows links within a node, and the number of channels.

GPU ═ NVLink ═ GPU         P2P/IPC, P2P/CUMEM, P2P/direct pointer; over PCIe they are printed alike
GPU ─ memory ─ GPU         SHM: P2P is off or forbidden
GPU ─ NIC ─── NIC ─ GPU    NET: SHM is off too, or containers share no memory
"""

from __future__ import annotations

from scalewright.diagnose.nccl.evidence import printed, setting
from scalewright.diagnose.nccl.summary import Summary
from scalewright.diagnose.verdict import Verdict

FEW_CHANNELS = 2  # NCCL takes 2 over a slow network; NVLink and several fast adapters give 8 to 32
BEYOND_NVLINK = ("PIX", "PXB", "PXN", "PHB", "NODE", "SYS")  # ways between GPUs that leave NVLink


def _network_within(run: Summary) -> Verdict | None:
    over = sum(count for way, count in run.within.items() if way.kind == "NET")
    if not over:
        return None
    evidence = [
        f"{over:,} of {sum(run.within.values()):,} links between GPUs of one host go over the network"
    ]
    disabled = setting(run.log, "NCCL_SHM_DISABLE", "1")
    return Verdict(
        "the network within a node", evidence + [disabled] * bool(disabled),
        "unset NCCL_SHM_DISABLE and NCCL_P2P_DISABLE; ranks in their own containers need --ipc=host and "
        "one /dev/shm", 0.9,
    )  # fmt: skip


def _shared_memory(run: Summary) -> Verdict | None:
    whole = sum(run.within.values())
    over = sum(count for way, count in run.within.items() if way.kind == "SHM")
    disabled = setting(run.log, "NCCL_P2P_DISABLE", "1") or setting(run.log, "NCCL_P2P_LEVEL", "LOC", "0")
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
    elif forbidden := printed(run.log, "P2P disabled between GPUs"):
        evidence.append(forbidden)
        confidence = 0.85
    return Verdict(
        "shared memory instead of P2P within a node" if over else "P2P is disabled", evidence, fix, confidence
    )


def _pcie(run: Summary) -> Verdict | None:
    far = {inside: count for (inside, _), count in run.log.graphs.items() if inside in BEYOND_NVLINK}
    if not far:
        return None
    way = max(far, key=lambda inside: (BEYOND_NVLINK.index(inside), inside))
    return Verdict(
        "PCIe instead of NVLink within a node",
        [f"NCCL's graphs connect GPUs over {way} where NVLink would read NVL"],
        "check `nvidia-smi topo -m` and `nvidia-smi nvlink -s`: the machine has none, a bridge is down, or "
        "the job's GPUs aren't those that are linked",
        0.8,
    )


def _few_channels(run: Summary) -> Verdict | None:
    if run.channels is None or (run.net == "Socket" and run.many_nodes) or (run.ranks or 0) < 2:
        return None
    limit = setting(run.log, "NCCL_MAX_NCHANNELS") or setting(run.log, "NCCL_MAX_CTAS")
    if run.channels > FEW_CHANNELS and not (limit and run.channels <= 2 * FEW_CHANNELS):
        return None
    return Verdict(
        "few channels",
        [f"collectives run on {run.channels} channels, each a block of the GPU: few for fast links",
         *([limit] if limit else [])],
        "unset it" if limit else "try NCCL_MIN_NCHANNELS=8, and measure with nccl-tests",
        0.85 if limit else 0.4,
    )  # fmt: skip


WITHIN = (_network_within, _shared_memory, _pcie, _few_channels)
