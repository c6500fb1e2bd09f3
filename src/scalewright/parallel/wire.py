"""The mean of a flat tensor over the ranks of an axis: begun now, taken later, in fp32 or fewer bytes.

    fp32              ── all-reduce ──►  / n

    bf16, fp8, int8   x + rest ── rounded ──►  all-to-all: chunk j of every rank goes to rank j
                        │                      mean of the n chunks, in fp32
                        └─ what rounding took  ── rounded ──►  all-gather: every rank has all chunks
                           is the next rest

Each rank sends 2 (n - 1) / n of the tensor, whatever n is and whatever it is rounded to. Numbers of 8 bits have a scale
for every BLOCK of them. Rounding is made good twice: what a rank's own numbers lost stays in its rest, and what the
mean of a chunk lost stays, n times, with the rank that made it (the errors of worker and server: Tang et al. 2021,
arXiv 2102.02888, algorithm 1). So every rank ends with the same bits, and over several means nothing is lost.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.model.torch_private import collectives
from scalewright.parallel.mesh import Mesh
from scalewright.spec.diloco import BLOCK, WireDtype

LARGEST = {"int8": 127.0, "fp8": 448.0}  # of a block: what its scale makes its largest number


class Mean:
    """One mean on its way. `advance` and `finish` are called at the same steps on every rank."""

    def __init__(self, values: Tensor, mesh: Mesh, axis: str, dtype: WireDtype, rest: Tensor | None = None) -> None:
        """Starts the mean of `values` (fp32 [N], overwritten), of as many on every rank. `rest`: fp32 [N], what earlier
        rounding took on this rank; it is read and replaced. None: fp32 needs none."""
        self.group, self.ranks = mesh.group(axis), mesh.size(axis)
        self.values, self.rest, self.dtype = values, rest, dtype
        self.index = mesh.index(axis)
        self._ended = self.group is None or not values.numel()
        self._chunks: Tensor | None = None  # packed, on their way
        self._whole: Tensor | None = None
        self._work: dist.Work | None = None
        if self._ended:
            return
        if dtype == "fp32":
            self._work = dist.all_reduce(values, group=self.group, async_op=True)
            return
        assert rest is not None
        padded = -(-len(values) // (self.ranks * BLOCK)) * self.ranks * BLOCK
        total = torch.zeros(padded, device=values.device)
        torch.add(values, rest, out=total[: len(values)])
        packed = pack(total.view(self.ranks, -1), dtype)
        total -= unpack(packed, dtype).view(-1)
        rest.copy_(total[: len(values)])
        self._chunks = torch.empty_like(packed)
        self._work = dist.all_to_all_single(self._chunks, packed, group=self.group, async_op=True)
        self._sent = packed  # alive until it has been sent

    @classmethod
    def taken(cls, mean: Tensor, mesh: Mesh) -> Mean:
        """A mean that an earlier process has taken already."""
        made = cls(mean[:0], mesh, "dp_replicate", "fp32")
        made.values = mean
        return made

    def advance(self) -> None:
        """Half of the way: averages this rank's chunk and sends it; waits for those of the others."""
        if self._ended or self._whole is not None or self._chunks is None:
            return
        self._wait()
        chunk = unpack(self._chunks, self.dtype).sum(dim=0).div_(self.ranks)
        packed = pack(chunk[None], self.dtype)
        lost = chunk - unpack(packed, self.dtype)[0]
        assert self.rest is not None
        mine = self.rest[self.index * len(chunk) : (self.index + 1) * len(chunk)]
        mine.add_(lost[: len(mine)], alpha=self.ranks)
        self._sent, self._chunks = packed, None
        self._whole = gathering(packed, self.ranks, self.group)

    def finish(self) -> Tensor:
        """The mean [N]; waits for it the first time."""
        if self._ended:
            return self.values
        self.advance()
        if self._whole is None:
            self._wait()
            self.values.div_(self.ranks)
        else:
            whole = arrived(self._whole)
            self.values.copy_(unpack(whole, self.dtype).view(-1)[: len(self.values)])
        self._ended, self._whole = True, None
        return self.values

    def _wait(self) -> None:
        assert self._work is not None
        self._work.wait()
        self._work = None


def gathering(tensor: Tensor, ranks: int, group: dist.ProcessGroup | None) -> Tensor:
    """Starts to gather every rank's tensor, one after the other along dimension 0; `arrived` waits for it."""
    assert group is not None
    started: Tensor = collectives.all_gather_into_tensor(tensor, ranks, group.group_name)
    return started


def arrived(started: Tensor) -> Tensor:
    """What `gathering` gathers."""
    gathered: Tensor = collectives.wait_tensor(started)
    return gathered


def pack(rows: Tensor, dtype: WireDtype) -> Tensor:
    """fp32 [rows, n] as bytes, uint8 [rows, bytes]; n is a multiple of BLOCK. Numbers, then fp32 scales."""
    if dtype == "bf16":
        return rows.to(torch.bfloat16).view(torch.uint8)
    blocks = rows.view(len(rows), -1, BLOCK)
    scales = blocks.abs().amax(dim=2) / LARGEST[dtype]  # [rows, blocks]
    scaled = blocks / torch.where(scales > 0, scales, 1.0)[..., None]
    numbers = scaled.round().to(torch.int8) if dtype == "int8" else scaled.to(torch.float8_e4m3fn)
    return torch.cat([numbers.flatten(1).view(torch.uint8), scales.view(torch.uint8)], dim=1)


def unpack(packed: Tensor, dtype: WireDtype) -> Tensor:
    """The numbers of `pack`, fp32 [rows, n]."""
    if dtype == "bf16":
        return packed.view(torch.bfloat16).float()
    count = packed.shape[1] // (BLOCK + 4) * BLOCK
    numbers = packed[:, :count].contiguous().view(torch.int8 if dtype == "int8" else torch.float8_e4m3fn)
    scales = packed[:, count:].contiguous().view(torch.float32)
    blocks = numbers.float().view(len(packed), -1, BLOCK)
    return (blocks * scales[..., None]).flatten(1)
