"""The lines about links: who sends to whom, and what the words behind `via` mean.

    2.7    Channel 00 : 0[1a000] -> 1[1c000] via P2P/IPC               bus ids in brackets
    2.12   Channel 00/0 : 0[1a000] -> 1[1c000] via P2P/IPC/read        and a connection's number
    2.18   Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM                   devices in brackets
    RCCL   Channel 00/0 : 0[c1000] -> 1[c6000] via P2P/IPC comm 0x55f0 nRanks 08

    P2P/IPC/read                 from GPU to GPU, over NVLink or PCIe: the line doesn't tell which
    P2P/direct pointer, P2P/CUMEM, P2P/indirect/3[3]
    SHM/direct/direct            through memory of the host; `direct shared memory` until 2.11
    NET/IB/1/GDRDMA              network IB, adapter 1, the adapter reads the GPU's memory itself
    NET/IB/1(3)/GDRDMA/Shared    through rank 3's GPU (PXN)
    NET/AWS Libfabric/0          the OFI plugin
    COLLNET/SHARP/0              reduced in the switch

All but the channel's number is the same for each of 2 to 32 channels: `repeated` is that part, and a reader
counts it before it takes it apart.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

NETWORKS = (  # a network's name as printed begins with, and what people call it
    ("AWS Libfabric", "OFI"), ("Libfabric", "OFI"), ("OFI", "OFI"), ("Socket", "Socket"), ("IB", "IB"),
    ("FasTrak", "FasTrak"), ("gIB", "gIB"), ("UCX", "UCX"), ("SHARP", "SHARP"),
)  # fmt: skip
STARTS = ("Channel ", "Ring ", "Coll")
LINK = re.compile(
    r"(\d{1,9})(?:\[\w+\])?(?: -> (\d{1,9})\[\w+\])? (?:\[(send|receive)\] )?"
    r"via (.+?)(?: comm 0x\w+ nRanks \d+)?$"
)
DEVICE = re.compile(r"(\d+)(?:\(\d+\))?$")


class Via(NamedTuple):
    """`kind`: P2P, SHM, NET, COLLNET or NVLS; `name`: what people call it; `adapter`: -1 if there is none."""

    kind: str
    name: str
    adapter: int = -1
    gdr: bool = False


class Ends(NamedTuple):
    """The ranks of a link (the receiver is -1 where the switch is), who prints it, and over what it goes.

    `way` is `send` or `receive` over a network; empty within a node, where the sender prints it.
    """

    sender: int
    receiver: int
    way: str
    via: str


def repeated(text: str) -> str:
    """What a link's line says behind its channel; empty for a line about anything else."""
    return text.partition(" : ")[2] if " via " in text and text.startswith(STARTS) else ""


def ends(text: str) -> Ends | None:
    """The part that `repeated` gives, taken apart; None where it has another form."""
    match = LINK.match(text)
    if match is None:
        return None
    sender, receiver, way, over = match.groups()
    return Ends(int(sender), int(receiver or -1), way or "", over)


def network(name: str) -> str:
    """`AWS Libfabric` is OFI, `IBext_v8` IB; a name that isn't known stays."""
    return next((short for start, short in NETWORKS if name.startswith(start)), name)


@lru_cache(maxsize=4096)
def via(text: str) -> Via:
    """The words behind `via`; those of an unknown form are kept as the name."""
    text = text.strip()
    kind, _, rest = text.partition("/")
    if kind in ("NET", "COLLNET"):
        name, *parts = rest.split("/")
        device = DEVICE.match(parts[0]) if parts else None
        return Via(kind, network(name), int(device[1][:6]) if device else -1,
                   any(part.startswith("GDRDMA") for part in parts))  # fmt: skip
    if "shared memory" in text:
        return Via("SHM", text)
    return Via(kind, text)
