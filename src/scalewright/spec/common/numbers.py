"""Numbers as people write them: `8k`, `15T`, `80 GiB`, `25 Gbit/s`.

count     8k = 8,000     7B = 7e9          15T = 15e12     4e6      tokens, parameters, steps
length    8k = 8,192     128K = 131,072                             of a sequence: contexts are named so
bytes     80GB = 80e9    80GiB = 80 · 2^30                          of memory
a rate    900 GB/s       25 Gbit/s, 25gbps = 25e9 / 8               bytes a second
"""

from __future__ import annotations

import re

POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "b": 3, "t": 4, "p": 5}
# Commas part thousands. One that doesn't is a decimal comma to whoever wrote it, and no number here.
NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?(?:[eE][+-]?\d+)?")
BYTES = re.compile(r"([kKMmGgTtPp]?)(i?)(B|[Bb]ytes|b|[Bb]its?|bps)?(/s|ps)?")
LENGTHS = ("seq_len", "context", "sliding_window", "max_length")  # a thousand tokens of these is 1,024


def number_of(text: str, name: str) -> float | None:
    """The number that a text with a unit, a suffix or an exponent is; None for others, and for plain digits.

    `name`: of the key or flag that takes it, which tells whether it counts bytes, or tokens of a sequence.
    """
    match = NUMBER.match(text.strip())
    if match is None:
        return None
    number, unit = float(match[0].replace("_", "").replace(",", "")), text.strip()[match.end() :].strip()
    if "bytes" in name:
        size = BYTES.fullmatch(unit)
        if not unit or size is None:
            return number if not unit and "e" in text.lower() else None
        bits = (size[3] or "B")[0] == "b" and "per_s" in name  # 80gb of memory are bytes
        return number * float((1024 if size[2] else 1000) ** POWERS[size[1].lower()]) / (8 if bits else 1)
    if unit.lower() not in POWERS or unit == "m":  # that would be a thousandth
        return None
    if not unit:
        return number if re.search("[eE_,]", match[0]) else None
    thousand = 1024 if name in LENGTHS and unit in "kK" else 1000
    return number * float(thousand ** POWERS[unit.lower()])
