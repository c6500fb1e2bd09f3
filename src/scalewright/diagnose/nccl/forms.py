"""What the INFO lines say: a table of forms, from NCCL 2.7 to 2.28, RCCL's and the OFI plugin's.

    "24 coll channels, 32 p2p channels"  ──► first word "" ──► channels(channels=24, p2p=32)

A form is found by its line's first word (the letters before anything else; "" for a line that begins with a
number), so that most lines cost a look into a dictionary. Where versions differ, the form has both.

Links (`Channel 00 : 0[0] -> 1[1] via P2P/IPC`) are most of a log, and have a file of their own: links.py.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# A repetition that another follows is bounded: a stranger's line must not cost the square of its length.
FIRST = re.compile(r"[A-Za-z]*")
COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AllToAll", "")


class Form(NamedTuple):
    """A kind of line: the first words of those that may be it, and where its fields stand."""

    kind: str
    words: tuple[str, ...]
    pattern: re.Pattern[str]


def _form(kind: str, words: str | tuple[str, ...], pattern: str) -> Form:
    return Form(kind, (words,) if isinstance(words, str) else words, re.compile(pattern))


FORMS = (
    _form("ring", "Channel", r"Channel (?P<channel>\d+)/(?P<of>\d+) : *(?P<ranks>[\d ]+)$"),
    _form("trees", "Trees", r"Trees .*\[(?P<last>\d+)\]"),
    _form("channels", "",
          r"(?P<channels>\d+) coll channels, (?:(?P<collnet>\d+) collnet channels, )?"
          r"(?:(?P<nvls>\d+) nvls channels, )?(?P<p2p>\d+) p2p channels"),
    _form("channels", "comm",  # RCCL's since 2.27
          r"comm:[\w:, ]{1,90}? coll channels:(?P<channels>\d+) collnet channels:\d+, "
          r"nvls channels:(?P<nvls>\d+)"),
    _form("rings_connected", "Connected", r"Connected all rings, use ring PXN (?P<pxn>\d) GDR (?P<gdr>\d)"),
    _form("nvls", "Connected", r"Connected NVLS tree"),
    # A communicator's line: `rest` are pairs of a name and a value, and what was begun or done.
    _form("comm", ("comm", "ncclCommInitRank", "ncclCommInitAll", "ncclCommInitRankConfig", "ncclCommSplit",
                   "ncclCommInitRankScalable", "ncclCommInitRankDev", "ncclCommShrink"),
          r"(?:\w+ )?comm (?P<pointer>0x\w+) rank (?P<rank>\d+) n[rR]anks (?P<ranks>\d+) (?P<rest>.*)$"),
    _form("version", ("NCCL", "RCCL"), r"(?P<library>[NR]CCL) version\s*:?\s*(?P<version>[\w.+\-]+)"),
    _form("environment", ("NCCL", "RCCL"),
          r"(?P<name>[NR]CCL_\w+) set (?:by environment )?to (?P<value>.*)$"),
    _form("bootstrap", "Bootstrap", r"Bootstrap ?: Using (?P<interfaces>.+)$"),
    _form("network", "Using", r"Using network (?P<network>.+)$"),
    _form("adapters", "NET", r"NET/IB\w* ?: Using (?P<adapters>[^;]*)"),
    _form("sockets", "NET", r"NET/Socket ?: Using (?P<interfaces>.+)$"),
    _form("plugin", "NET", r"NET/OFI (?:Initializing|Using) (?P<plugin>aws-ofi-[nr]ccl) v?(?P<version>\S+)"),
    _form("provider", "NET",
          r"NET/OFI Selected [Pp]rovider is (?P<provider>[\w;\-]+)(?:.*found (?P<adapters>\d+) nics)?"),
    _form("gdr_of_gpu", "NET",
          r"NET/[^:]+: GPU Direct RDMA (?P<state>[ED]\w+) for GPU \w+ / HCA (?P<adapter>\w+) "
          r"\(distance (?P<distance>\d+) (?P<sign>[<>=]+) (?P<most>\d+)\)"),
    _form("gdr_of_adapter", "NET",
          r"NET/[^:]+: GPU Direct RDMA (?:\((?P<how>\w+)\) )?(?P<state>[EeDd]\w+) for HCA \d+[ :]*'?"
          r"(?P<adapter>[^']*)"),
    # A graph of NCCL_DEBUG_SUBSYS=GRAPH: the longest way between two GPUs, and from a GPU to its adapter.
    _form("graph", "Pattern",
          r"Pattern (?P<pattern>\d+), .*n?Channels (?P<channels>\d+), \w+ (?P<bandwidth>[\d.]+)/[\d.]+, "
          r"type (?P<inside>\w+)/(?P<to_adapter>\w+)"),
    _form("tuning", COLLECTIVES,
          r"(?:(?P<collective>\w+): )?\d+ Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+)"),
)  # fmt: skip

BY_WORD: dict[str, tuple[Form, ...]] = {
    word: tuple(form for form in FORMS if word in form.words)
    for word in {word for form in FORMS for word in form.words}
}
# Numbers that NCCL until 2.26 prints instead of names.
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")

PAIR = re.compile(r"\b(\w{1,40}) (\w{1,40})")
INTERFACE = re.compile(r"(?:\[\d+\])?([^:\s\[\]<>]{1,40}):[^\s<>]{1,90}<\d+>")
ADAPTER = re.compile(r"\[(\d+)\] ?([^:\s\[\]]+):(?:\w+:)?\d+/(\w+)")
EXPORT = re.compile(r"(?:^|\bexport |\s)([NR]CCL_[A-Z0-9_]+)=([^\s'\";]+)")
VERSION_WITHIN = re.compile(r"(?P<library>[NR]CCL) version\s*:?\s*(?P<version>\d[\w.+\-]*)")
OLD_CODE = 10  # major versions from which a number was decoded wrongly


def match(text: str) -> tuple[str, dict[str, str | None]] | None:
    """The kind and the fields of a line's text; None for a line that no form fits."""
    first = FIRST.match(text)
    for form in BY_WORD.get(first[0] if first else "", ()):
        if fields := form.pattern.match(text):
            return form.kind, fields.groupdict()
    return None


def pairs(rest: str) -> dict[str, str]:
    """`cudaDev 1 busId b000 - Init COMPLETE` as {"cudaDev": "1", "busId": "b000", "Init": "COMPLETE"}."""
    return dict(PAIR.findall(rest))


def interfaces(text: str) -> list[str]:
    """`[0]ib0:10.0.0.1<0> [1]ib1:10.0.1.1<0>` as their names."""
    return INTERFACE.findall(text)


def adapters(text: str) -> dict[int, tuple[str, str]]:
    """`[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]` as {0: ("mlx5_0", "IB"), 1: ("mlx5_1", "RoCE")}."""
    return {int(number): (name, link) for number, name, link in ADAPTER.findall(text)}


def exports(text: str) -> list[tuple[str, str]]:
    """Variables that a shell set before the run: `export NCCL_DEBUG=info`, `+ NCCL_IB_DISABLE=1`."""
    return EXPORT.findall(text) if "export" in text or text.startswith("+") else []


def plain_version(text: str) -> str:
    """A version's digits as NVIDIA writes them; PyTorch before 1.13 prints 2.10.3 as 21.0.3.

    >>> plain_version("2.7.8+cuda10.2"), plain_version("21.0.3")
    ('2.7.8+cuda10.2', '2.10.3')
    """
    parts = text.split(".")
    if (
        len(parts) == 3
        and all(part.isdecimal() and len(part) < 3 for part in parts)
        and int(parts[0]) >= OLD_CODE
    ):
        code = int(parts[0]) * 1000 + int(parts[1]) * 100 + int(parts[2])
        return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"
    return text
