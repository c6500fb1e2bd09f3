"""Slurm's short forms of lists.

n[1-3,07],gpu-a[01-02]-ib     n1 n2 n3 n07 gpu-a01-ib gpu-a02-ib     hosts
a[1-2]b[3-4]                  a1b3 a1b4 a2b3 a2b4
2(x3),1                       2 2 2 1                                tasks of each node

The order is that of `scontrol show hostnames`: the last brackets go fastest, and of those before them the
first. A name may go on after its last brackets, which Slurm 22.05 doesn't take.
"""

from __future__ import annotations

import re
from itertools import product, zip_longest

from scalewright.spec.errors import UserError

_NAME = re.compile(r"(?:[^,\[\]\s]|\[[0-9,\-]+\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
MOST = 65536  # of a range, as Slurm has it (MAX_RANGE in hostlist.h)


def expand_hosts(text: str) -> list[str]:
    """The hosts that a list names, in its order; raises UserError for one that isn't in Slurm's form."""
    names = _NAME.findall(text)
    if ",".join(names) != text.strip():
        raise UserError(f"'{text}' is no list of nodes", "environment", "write it as n[1-3],m07")
    hosts: list[str] = []
    for name in names:
        pieces = _BRACKETS.split(name)  # literal, numbers, literal, ...
        numbers = [_numbers(piece, text) for piece in pieces[1::2]]
        before, last = numbers[:-1], numbers[-1] if numbers else [""]
        for chosen in product(*reversed(before)):  # the first ones fastest
            given = [*reversed(chosen)]
            hosts += [_join(pieces[::2], [*given, number]) for number in last]
    return hosts


def _join(words: list[str], numbers: list[str]) -> str:
    """A name from what stands around its brackets and the numbers in them."""
    return "".join(word + number for word, number in zip_longest(words, numbers, fillvalue=""))


def _numbers(text: str, whole: str) -> list[str]:
    """1-3,07 as 1 2 3 07: a range's numbers are as wide as its first one."""
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            what = f"'{part}' in '{whole}' is no range of nodes"
            raise UserError(what, "environment", "write it as n[1-3]")
        first, last = match[1], match[2] or match[1]
        if not int(first) <= int(last) < int(first) + MOST:
            what = f"'{part}' in '{whole}' is no range of nodes"
            raise UserError(what, "environment", f"write the smaller number first, and {MOST} at most")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def expand_counts(text: str) -> list[int]:
    """The numbers of a list such as 2(x3),1; raises UserError for one that isn't in Slurm's form."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise UserError(f"'{text}' is no list of tasks by node", "environment", "write it as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
