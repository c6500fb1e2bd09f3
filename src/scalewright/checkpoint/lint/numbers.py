"""The weights themselves: numbers that aren't finite, and a tied head that was stored all the same.

    a number is NaN or infinite where all bits of its exponent are set:   bfloat16  0 11111111 0000000

Files are mapped and read 64 MB at a time, so that a large folder takes time and no memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from scalewright.checkpoint.lint.folder import Export, Stored, problem, warn
from scalewright.checkpoint.lint.weights import table
from scalewright.spec.common.untrusted import inside
from scalewright.spec.errors import Finding

EXPONENT: dict[str, tuple[type[np.unsignedinteger], int]] = {
    "F64": (np.uint64, 0x7FF << 52), "F32": (np.uint32, 0xFF << 23), "F16": (np.uint16, 0x1F << 10),
    "BF16": (np.uint16, 0xFF << 7),
}  # fmt: skip
CHUNK = 1 << 26  # bytes


def check(export: Export) -> Iterator[Finding]:
    """Findings about the numbers of whole files."""
    wrong = [tensor for tensor in export.stored if tensor.dtype in EXPONENT and not _finite(export, tensor)]
    if wrong:
        names = ", ".join(tensor.name for tensor in wrong[:3]) + (f" and {len(wrong) - 3} more" if wrong[3:] else "")
        how = "export an earlier save (`checkpoint ls` marks those that are finite)"
        yield problem(wrong[0].file, "finite", f"NaN or infinity in {names}", how)
    yield from _tied(export)


def _chunks(export: Export, tensor: Stored) -> Iterator[NDArray[np.uint8]]:
    mapped = np.memmap(inside(export.folder, tensor.file), dtype=np.uint8, mode="r")
    for start in range(tensor.start, tensor.stop, CHUNK):
        yield mapped[start : min(start + CHUNK, tensor.stop)]


def _finite(export: Export, tensor: Stored) -> bool:
    kind, bits = EXPONENT[tensor.dtype]
    mask = kind(bits)
    for chunk in _chunks(export, tensor):
        numbers = np.array(chunk).view(kind)  # a copy: a header may leave numbers at odd bytes
        if ((numbers & mask) == mask).any():
            return False
    return True


def _tied(export: Export) -> Iterator[Finding]:
    """A head beside the embedding that it is."""
    stored = {tensor.name: tensor for tensor in export.stored}
    head = next((stored[name] for name in ("lm_head.weight", "embed_out.weight") if name in stored), None)
    known = table(export)
    if head is None or known is None or not known[0].tie_word_embeddings:
        return
    place = known[1]["embed.weight"]
    embedding = next((stored[name] for name in (place.name, *place.other_names) if name in stored), None)
    if embedding is None:
        return
    same = embedding[2:4] == head[2:4] and all(
        np.array_equal(*pair) for pair in zip(_chunks(export, embedding), _chunks(export, head), strict=True)
    )
    what = f"{head.name} {'is stored twice' if same else 'differs from the embedding'}, and tie_word_embeddings is true"
    how = "leave it out" if same else "set tie_word_embeddings to false, or leave it out"
    yield (warn if same else problem)(head.file, "tied", what, how)
