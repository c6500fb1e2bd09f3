"""One model over several processes: the first schedules, draws and answers; all of them compute.

    rank 0   engine ──("forward", tokens, pieces, wanted)──► ranks 1.. ──┐
                └──► its heads, units and words ◄── sums, in every layer ┴──► the logits' parts, gathered

The cuts are the trainer's own (parallel/tensor.py): a rank reads its part of each tensor, of any checkpoint, whatever
layout wrote it. The cache is cut by KV heads, its blocks have the same numbers everywhere. Two ranks' sums have the
same bits in either order, so that two serve as exactly as one; with more, Gloo's order depends on a sum's size.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import multiprocessing.connection
import signal
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.checkpoint.store.bring import bring
from scalewright.model.decoder import Decoder
from scalewright.model.huggingface import torch_dtype
from scalewright.model.init import on_meta, to_empty
from scalewright.model.load import TensorReader, is_checkpoint, torch_device
from scalewright.parallel.mesh import Mesh, join_world, make_mesh
from scalewright.parallel.tensor import apply_tensor, cut_parameters
from scalewright.serve.compute import Compute
from scalewright.serve.load import Loaded, check_model, load_for_generation
from scalewright.serve.pages import Piece
from scalewright.spec.common.own_imports import own_imports
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import box, place
from scalewright.spec.presets import load_model_spec

GONE_S = 5.0  # for the system to tell that a process has ended
FOREVER = timedelta(days=3650)  # a server may have nothing to do for long


def check_tp(source: str, tp: int) -> None:
    """Raises UserError for a model that can't be cut so, before any process is started."""
    path = bring(source)
    check_model(path)
    keys = CheckpointReader(find_checkpoint(path), verify_files=False).manifest.model if is_checkpoint(path) else None
    if keys is not None and "python" in keys:
        raise UserError("a module of your own isn't cut over processes", "--tp", "leave it out")
    spec = load_model_spec(path) if keys is None else ModelSpec.parse(keys, source)
    if spec.num_attention_heads % tp:
        sizes = [n for n in range(1, spec.num_attention_heads + 1) if spec.num_attention_heads % n == 0]
        raise UserError(f"{spec.num_attention_heads} heads aren't cut over {tp} ranks", "--tp", f"use one of {sizes}")


@torch.no_grad()
def build_part(tp: int, rank: int, meshes: list[Mesh], reader: TensorReader, dtype: str, device: str) -> Decoder:
    """This rank's part of a reader's model, without prediction modules; the mesh that it is cut over joins `meshes`."""
    spec, layout = reader.spec.replace(mtp_layers=0), Layout(devices=tp, tp=tp, sp=False)
    mesh = make_mesh(make_grid(layout, spec.kv_heads), rank, torch_device(device))
    meshes.append(mesh)
    placements = place(spec, layout)
    with on_meta():
        module = Decoder(spec).to(torch_dtype(dtype))
    cut_parameters(module, placements, mesh)
    apply_tensor(module, layout, mesh)
    to_empty(module, mesh.device)
    placement_of = {p.tensor.name: p for p in placements} | {
        p.tensor.tied_to: p for p in placements if p.tensor.tied_to
    }
    for name, parameter in module.named_parameters():
        starts, sizes = box(placement_of[name], mesh.coords, mesh.grid.size_of)
        parameter.zero_()  # padding
        part = reader.read(name)[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]
        parameter[tuple(slice(0, size) for size in sizes)] = part.to(parameter.dtype)
    return module.eval()


class PartCompute(Compute):
    """A rank's share: its logits [n, V/tp] are gathered to all words'."""

    def __init__(self, model: Decoder, blocks: int, mesh: Mesh) -> None:
        super().__init__(model, blocks)
        self._mesh, self._ranks = mesh, mesh.size("tp")
        self.multiple = math.lcm(self.multiple, self._ranks)
        self.invariant = self.invariant and self._ranks <= 2 and model.spec.moe is None

    def _logits(self, hidden: Tensor, wanted: Sequence[int]) -> Tensor:
        part = super()._logits(hidden, wanted)
        if not wanted:
            return part
        parts = [torch.empty_like(part) for _ in range(self._ranks)]
        dist.all_gather(parts, part.contiguous(), group=self._mesh.group("tp"))
        return torch.cat(parts, dim=-1)[:, : self.model.spec.vocab_size]


class FirstCompute(PartCompute):
    """Rank 0's: what it computes, it has all others compute."""

    def __init__(self, model: Decoder, blocks: int, mesh: Mesh, group: Any, workers: list[Any], folder: Any) -> None:
        super().__init__(model, blocks, mesh)
        self._group, self._workers = group, workers
        self._folder = folder  # where they met, which goes with this

    def forward(self, tokens: Sequence[int], pieces: Sequence[Piece], wanted: Sequence[int]) -> Tensor:
        """As `Compute.forward`, on all ranks."""
        with self._all_there():
            self._tell("forward", tokens, pieces, wanted)
            return super().forward(tokens, pieces, wanted)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """As `Compute.copy`, on all ranks."""
        with self._all_there():
            self._tell("copy", sources, targets)
            super().copy(sources, targets)

    def close(self) -> None:
        """Ends the other ranks."""
        if self._workers:
            self._tell("close")
            for worker in self._workers:
                worker.join(timeout=30)
            self._workers = []
            dist.destroy_process_group()
            self._folder.cleanup()

    @contextlib.contextmanager
    def _all_there(self) -> Iterator[None]:
        """Raises RunError, which names the rank, where a collective fails because one has ended."""
        try:
            yield
        except RuntimeError:
            self.check(GONE_S)
            raise

    def check(self, patience: float = 0.0) -> None:
        """Raises RunError, which names it, where a rank has ended, or does within so many seconds."""
        gone = multiprocessing.connection.wait([worker.sentinel for worker in self._workers], patience)
        for rank, worker in enumerate(self._workers, 1):
            if worker.sentinel in gone:
                worker.join()
                raise RunError(f"rank {rank} of --tp (process {worker.pid}) {_ended(worker.exitcode)}") from None

    def _tell(self, *call: Any) -> None:
        dist.broadcast_object_list([call], src=0, group=self._group)


def _ended(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def spread(
    source: str, tp: int, blocks_of: Any, device: str, dtype: str, trust_code: bool, verify: bool
) -> tuple[Loaded, Compute, int]:
    """Starts the other ranks; (the model with rank 0's part, what computes, blocks of the cache).

    `blocks_of(spec, KV heads of a rank)`: the blocks that fit. Raises UserError.
    """
    check_tp(source, tp)
    folder = tempfile.TemporaryDirectory(prefix="scalewright-serve-", ignore_cleanup_errors=True)
    rendezvous = (Path(folder.name) / "ranks").as_uri()
    spawn = multiprocessing.get_context("spawn")
    arguments = (tp, rendezvous, source, device, dtype, trust_code, verify)
    workers = [spawn.Process(target=_work, args=(rank, *arguments), daemon=True) for rank in range(1, tp)]
    with own_imports():
        for worker in workers:
            worker.start()
    loaded, mesh, group = _join(0, *arguments)
    assert isinstance(loaded.model, Decoder)
    heads = max(1, loaded.model.spec.kv_heads // tp)
    blocks: int = blocks_of(loaded.model.spec, heads)
    dist.broadcast_object_list([blocks], src=0, group=group)
    return loaded, FirstCompute(loaded.model, blocks, mesh, group, workers, folder), blocks


def _join(
    rank: int, tp: int, rendezvous: str, source: str, device: str, dtype: str, trust_code: bool, verify: bool
) -> tuple[Loaded, Mesh, Any]:
    """Meets the others, and loads this rank's part; (it, the mesh, the group of messages)."""
    join_world(rank, tp, rendezvous, torch_device(device))
    group = dist.new_group(list(range(tp)), timeout=FOREVER, backend="gloo")
    meshes = list[Mesh]()
    loaded = load_for_generation(source, device, dtype, trust_code, verify, partial(build_part, tp, rank, meshes))
    return loaded, meshes[0], group


def _work(rank: int, *arguments: Any) -> None:
    """A rank other than 0: does what it is told, until the first leaves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: rank 0 drains first
    with contextlib.suppress(UserError):  # rank 0 has met it, too
        _serve(*_join(rank, *arguments))


def _serve(loaded: Loaded, mesh: Mesh, group: Any) -> None:
    """Computes what rank 0 computes."""
    assert isinstance(loaded.model, Decoder)
    message: list[Any] = [None]
    dist.broadcast_object_list(message, src=0, group=group)
    compute = PartCompute(loaded.model, message[0], mesh)
    while True:
        try:
            dist.broadcast_object_list(message, src=0, group=group)
        except RuntimeError:  # rank 0 is gone
            return
        name, *call = message[0]
        if name == "close":
            dist.destroy_process_group()
            return
        with contextlib.suppress(RuntimeError):  # another rank is gone: rank 0 tells of it
            getattr(compute, name)(*call)
