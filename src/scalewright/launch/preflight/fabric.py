"""InfiniBand, AWS's EFA, and GPUDirect: networks that NCCL leaves, in silence, for a slower one.

A node that has them and doesn't use them trains all the same, several times slower.
"""

from __future__ import annotations

from scalewright.launch.preflight.facts import Facts
from scalewright.launch.preflight.rule import RuleFailure, Subject

SUBJECT = Subject("fabric")
NCCL = "NCCL user guide, Environment Variables"
TROUBLE = "NCCL user guide, Troubleshooting: GPU Direct"
ACROSS = ("GPUs", "several nodes", "InfiniBand")
DMA_BUF = (5, 12)  # the first kernel by which cards reach a GPU's memory without nvidia_peermem


@SUBJECT.rule("ib-unused", "warn", "InfiniBand is there, and switched off", f"{NCCL}: NCCL_IB_DISABLE, NCCL_NET",
              needs=ACROSS)  # fmt: skip
def ib_unused(facts: Facts) -> RuleFailure | None:
    if facts.on("NCCL_IB_DISABLE"):
        name = "NCCL_IB_DISABLE"
    elif facts.environ.get("NCCL_NET", "").lower() == "socket":
        name = "NCCL_NET"
    else:
        return None
    what = f"{name}={facts.environ[name]} sends everything between nodes over TCP, beside idle InfiniBand"
    return RuleFailure(what, facts.where, facts.unset(name))


@SUBJECT.rule("ib-card-missing", "warn", "`NCCL_IB_HCA` names no card here", f"{NCCL}: NCCL_IB_HCA", at=("node",),
              needs=ACROSS)  # fmt: skip
def ib_card_missing(facts: Facts) -> RuleFailure | None:
    value = facts.environ.get("NCCL_IB_HCA", "")
    if not value or value.startswith("^"):
        return None
    exact = value.startswith("=")
    names = [name.partition(":")[0] for name in value.lstrip("=").split(",") if name]
    cards = facts.machine.cards
    if any(name in cards if exact else any(c.startswith(name) for c in cards) for name in names):
        return None
    what = f"NCCL_IB_HCA={value} fits none of {', '.join(sorted(cards))}: NCCL takes TCP"
    return RuleFailure(what, facts.where, "name those that ibstat lists, or unset NCCL_IB_HCA")


@SUBJECT.rule("ib-port-down", "warn", "a card that `NCCL_IB_HCA` names isn't active",
              "NVIDIA docs, InfiniBand: port states (ibstat)", at=("node",), needs=ACROSS)  # fmt: skip
def ib_port_down(facts: Facts) -> RuleFailure | None:
    value, cards = facts.environ.get("NCCL_IB_HCA", ""), facts.machine.cards
    names = [name.partition(":")[0] for name in value.lstrip("=").split(",") if name]
    if not names or value.startswith("^"):
        return None
    chosen = [name for name in cards if name in names or (value[0] != "=" and name.startswith(tuple(names)))]
    down = [name for name in chosen if cards[name].ports and not cards[name].active]
    if not down:
        return None
    what = f"{len(down)} of {len(chosen)} cards of NCCL_IB_HCA aren't active: {', '.join(sorted(down)[:4])}"
    return RuleFailure(what, "InfiniBand", "look at ibstat: cable, subnet manager; or name the others alone")


@SUBJECT.rule("ib-timeout-range", "warn", "`NCCL_IB_TIMEOUT` doesn't fit into the card's field",
              "ibv_modify_qp(3): timeout, five bits", needs=("GPUs", "several nodes"))  # fmt: skip
def ib_timeout_range(facts: Facts) -> RuleFailure | None:
    value = facts.environ.get("NCCL_IB_TIMEOUT", "")
    if not value.isdigit() or int(value) < 32:
        return None
    what = f"NCCL_IB_TIMEOUT={value} is no number of seconds: it is an exponent, of 31 at most"
    return RuleFailure(what, facts.where, facts.set("NCCL_IB_TIMEOUT=22") + " (17 s), or leave it at its default")


@SUBJECT.rule("gpudirect-off", "warn", "GPUDirect is switched off", f"{NCCL}: NCCL_NET_GDR_LEVEL",
              needs=("GPUs", "several nodes"))  # fmt: skip
def gpudirect_off(facts: Facts) -> RuleFailure | None:
    if facts.environ.get("NCCL_NET_GDR_LEVEL", "").upper() not in ("LOC", "0"):
        return None
    value = facts.environ["NCCL_NET_GDR_LEVEL"]
    what = f"NCCL_NET_GDR_LEVEL={value} sends through host memory what a card could read from a GPU"
    return RuleFailure(what, facts.where, facts.unset("NCCL_NET_GDR_LEVEL"))


@SUBJECT.rule("gpudirect-missing", "warn", "no way from a card to a GPU's memory", TROUBLE, at=("node",), needs=ACROSS)
def gpudirect_missing(facts: Facts) -> RuleFailure | None:
    kernel = facts.machine.kernel
    if facts.machine.peer_memory is not False or kernel is None or kernel >= DMA_BUF:
        return None
    what = f"nvidia_peermem isn't loaded, and Linux {kernel[0]}.{kernel[1]} has no DMA-BUF for GPUs"
    return RuleFailure(what, "kernel", "modprobe nvidia-peermem")


@SUBJECT.rule("efa-provider", "warn", "`FI_PROVIDER` isn't `efa` where there is EFA",
              "AWS docs, EFA: get started with NCCL; libfabric(7): FI_PROVIDER",
              needs=("GPUs", "several nodes", "EFA"))  # fmt: skip
def efa_provider(facts: Facts) -> RuleFailure | None:
    value = facts.environ.get("FI_PROVIDER", "efa")
    if "efa" in value.split(","):
        return None
    what = f"FI_PROVIDER={value} keeps libfabric from EFA"
    return RuleFailure(what, facts.where, facts.set("FI_PROVIDER=efa"))


@SUBJECT.rule("efa-without-plugin", "warn", "EFA, and NCCL set to another network",
              "aws-ofi-nccl README: NCCL_NET_PLUGIN; NCCL_NET", needs=("GPUs", "several nodes", "EFA"))  # fmt: skip
def efa_without_plugin(facts: Facts) -> RuleFailure | None:
    net, plugin = facts.environ.get("NCCL_NET", ""), facts.environ.get("NCCL_NET_PLUGIN", "")
    name = "NCCL_NET" if net.lower() in ("socket", "ib") else "NCCL_NET_PLUGIN" if plugin == "none" else ""
    if not name:
        return None
    what = f"{name}={facts.environ[name]} keeps NCCL from the plugin by which it uses EFA"
    return RuleFailure(what, facts.where, facts.unset(name))
