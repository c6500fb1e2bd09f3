"""Allocations in a trace recorded with `profile_memory=True`: instants named `[memory]`, as columns.

    ts        when            Bytes            allocated, or freed where negative
    Addr      of what         Total Allocated  on the device, after it; Total Reserved: taken from the driver
    tid       which thread    Device Type, Id  0: the host; PyTorch 1.8 to 1.10: no totals, no addresses

Most traces have none, so that they are taken from the text by themselves and cost the other events nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

import msgspec
import numpy as np

MARK = b'"[memory]"'
# Bounded, so that a text made for it doesn't take the square of its length.
INSTANT = re.compile(rb'\{[^{}]{0,600}"\[memory\]"[^{}]{0,600}(?:\{[^{}]{0,600}\}[^{}]{0,600})?\}')
HOST = 0  # a device's type
MISSING = -1
LARGEST = 1 << 53  # nothing larger is a time in microseconds, an address or a size
Word = int | float | str | None


@dataclass(frozen=True)
class MemoryEvents:
    """Columns int64 of the same length, in the order of the file; `start` in ns, `lane` as in the trace.

    `size`: bytes, negative for a free. `total`, `reserved`, `address`: MISSING where they weren't recorded.
    """

    start: np.ndarray
    lane: np.ndarray
    device_type: np.ndarray
    device: np.ndarray
    size: np.ndarray
    total: np.ndarray
    reserved: np.ndarray
    address: np.ndarray


class _Args(msgspec.Struct, gc=False):
    size: int = msgspec.field(default=0, name="Bytes")
    total: int = msgspec.field(default=MISSING, name="Total Allocated")
    reserved: int = msgspec.field(default=MISSING, name="Total Reserved")
    address: int = msgspec.field(default=MISSING, name="Addr")
    device_type: int = msgspec.field(default=HOST, name="Device Type")
    device: int = msgspec.field(default=0, name="Device Id")


class _Instant(msgspec.Struct, gc=False):
    name: str
    args: _Args
    ts: Decimal = Decimal(0)
    pid: Word = None
    tid: Word = None


DECODER = msgspec.json.Decoder(_Instant)


def read_memory(text: bytes, lane: Callable[[Word, Word], int]) -> Iterator[tuple[int, ...]]:
    """The rows of `MemoryEvents` in a text of events; `lane` numbers a process and thread."""
    for match in INSTANT.finditer(text) if MARK in text else ():
        try:
            event = DECODER.decode(match[0])
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # not of this form: another event with the word in it
        args = event.args
        words = (args.device_type, args.device, args.size, args.total, args.reserved, args.address)
        if event.ts.is_finite() and abs(event.ts) <= LARGEST and all(abs(word) <= 1 << 62 for word in words):
            yield int(event.ts * 1000), lane(event.pid, event.tid), *words
