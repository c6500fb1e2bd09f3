"""What a kernel does, by its name: the first row of kinds.txt with a word of the kernel's own name.

    void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<...{lambda(float)#1}> >(int, ...)
         ───────────── own name ──────── ────────────── template arguments ───────────────────── parameters: not read
    void cutlass::device_kernel<flash::FlashAttnFwdSm90<...> >     GENERIC: its template arguments name it

What a template is made of names other things, too (`reduce` in a copy's iterator, `norm` in a sum's operator), so
that it is read only where the own name says nothing.
Communication is more than NCCL: RCCL, MSCCL and oneCCL carry other names; DeepEP's and NVSHMEM's kernels move tokens of
experts; symmetric memory, user buffers and custom all-reduces (vLLM, TensorRT-LLM) run in kernels of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import numpy as np

COMMUNICATION, OTHER = "communication", "other"
_ROWS = [
    (line[:16].strip(), line[16:].rstrip())
    for line in Path(__file__).with_name("kinds.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
_PATTERNS = [
    (kind, re.compile("|".join(pattern for _, pattern in rows), re.IGNORECASE))
    for kind, rows in groupby(_ROWS, key=lambda row: row[0])
]
KINDS = tuple(dict.fromkeys(kind for kind, _ in _PATTERNS))
# Of one name for two kinds: a softmax's logarithm is the loss's, by an argument alone.
LOG_SOFTMAX = re.compile(r"cunn_\w*SoftMax\w*<.*LogSoftMax|softmax_warp_\w+<[^<>]*?, \d+, true")
NOT_NAMES = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|_GLOBAL__N_+|\{?lambda\(?|(?:^|(?<= ))(?:void|static|__global__) |\.kd$"
    r"|std::enable_if<.*?>::type |_NV_ANON_\w+?__"
)
OWN = re.compile(r"^(_Z\w*?)I(?:NS|L[bij]|[fdhj]L|S\d?_)|^[^<(]*")
GENERIC = re.compile(
    r"(?:^|::|\d)(?:device_)?(?:global_?)?kernel[\d_]*$|kentry\w*$|launch_?bounds\w*$|kernel_entry\w*$", re.IGNORECASE
)


@lru_cache(1 << 16)
def kind_of(name: str) -> str:
    """The kind of a kernel."""
    plain = NOT_NAMES.sub("", name)
    match = OWN.match(plain)
    own = (match[1] or match[0]) if match else ""
    if LOG_SOFTMAX.search(plain):
        return "loss"
    if not GENERIC.search(own) and (kind := _first(own)) != OTHER:
        return kind
    return _first(plain[: 1 + plain.rfind(">")] or plain)


def _first(text: str) -> str:
    return next((kind for kind, pattern in _PATTERNS if pattern.search(text)), OTHER)


def kinds_of(names: Iterable[str]) -> np.ndarray:
    """The kind of each name; objects, one a name."""
    return np.array([kind_of(name) for name in names], dtype=object)


def communicates(names: Iterable[str]) -> np.ndarray:
    """Whether each name is a communication kernel's; bool, one a name."""
    return np.asarray(kinds_of(names) == COMMUNICATION, dtype=bool)
