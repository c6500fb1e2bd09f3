"""What the INFO lines say: the table in patterns.yaml, from NCCL 2.7 to 2.28, RCCL's and the OFI plugin's.

    "24 coll channels, 32 p2p channels"  ──► first word "" ──► channels(channels=24, p2p=32)

A form is found by its line's first word (the letters before anything else; "" for a line that begins with a number), so
that most lines cost a look into a dictionary. Where versions differ, the form has both. Most lines of a log are links:
who sends to whom, and the words behind `via`.

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

All but the channel's number is the same for each of 2 to 32 channels: `repeated` is that part, and a reader counts it
before it takes it apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from scalewright.spec.base import read_yaml

FIRST = re.compile(r"[A-Za-z]*")
NETWORKS = (  # a network's name as printed begins with, and what people call it
    ("AWS Libfabric", "OFI"), ("Libfabric", "OFI"), ("OFI", "OFI"), ("Socket", "Socket"), ("IB", "IB"),
    ("FasTrak", "FasTrak"), ("gIB", "gIB"), ("UCX", "UCX"), ("SHARP", "SHARP"),
)  # fmt: skip
STARTS = ("Channel ", "Ring ", "Coll")
LINK = re.compile(
    r"(\d{1,9})(?:\[\w+\])?(?: -> (\d{1,9})\[\w+\])? (?:\[(send|receive)\] )?via (.+?)(?: comm 0x\w+ nRanks \d+)?$"
)
DEVICE = re.compile(r"(\d+)(?:\(\d+\))?$")


Fields = dict[str, str]


class Form(NamedTuple):
    """A kind of line: the first words of those that may be it, and where its fields stand."""

    kind: str
    words: Sequence[str]
    pattern: re.Pattern[str]


FORMS = tuple(
    Form(row["kind"], row["words"], re.compile(row["pattern"]))
    for row in read_yaml(Path(__file__).with_name("patterns.yaml"))
)
BY_WORD: dict[str, tuple[Form, ...]] = {
    word: tuple(form for form in FORMS if word in form.words)
    for word in {word for form in FORMS for word in form.words}
}
# Numbers that NCCL until 2.26 prints instead of names.
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")

PAIR = re.compile(r"\b(\w{1,40}) (\w{1,40})")  # `cudaDev 1 busId b000 - Init COMPLETE`
# `[0]ib0:10.0.0.1<0> [1]ib1:10.0.1.1<0>`, `[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]`, and what a shell set before the run:
# `export NCCL_DEBUG=info`, `+ NCCL_IB_DISABLE=1`.
INTERFACE = re.compile(r"(?:\[\d+\])?([^:\s\[\]<>]{1,40}):[^\s<>]{1,90}<\d+>")
ADAPTER = re.compile(r"\[(\d+)\] ?([^:\s\[\]]+):(?:\w+:)?\d+/(\w+)")
EXPORT = re.compile(r"(?:^|\bexport |\s)([NR]CCL_[A-Z0-9_]+)=([^\s'\";]+)")
VERSION_WITHIN = re.compile(r"(?P<library>[NR]CCL) version\s*:?\s*(?P<version>\d[\w.+\-]*)")
OLD_CODE = 10  # major versions from which a number was decoded wrongly


def match(text: str) -> tuple[str, Fields] | None:
    """The kind and the fields of a line's text, empty where it lacks one; None for a line that no form fits."""
    first = FIRST.match(text)
    for form in BY_WORD.get(first[0] if first else "", ()):
        if fields := form.pattern.match(text):
            return form.kind, fields.groupdict("")
    return None


def plain_version(text: str) -> str:
    """A version's digits as NVIDIA writes them; PyTorch before 1.13 prints 2.10.3 as 21.0.3.

    >>> plain_version("2.7.8+cuda10.2"), plain_version("21.0.3")
    ('2.7.8+cuda10.2', '2.10.3')
    """
    parts = text.split(".")
    if len(parts) == 3 and all(part.isdecimal() and len(part) < 3 for part in parts) and int(parts[0]) >= OLD_CODE:
        code = int(parts[0]) * 1000 + int(parts[1]) * 100 + int(parts[2])
        return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"
    return text


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
        adapter, gdr = int(device[1][:6]) if device else -1, any(part.startswith("GDRDMA") for part in parts)
        return Via(kind, network(name), adapter, gdr)
    return Via("SHM" if "shared memory" in text else kind, text)
