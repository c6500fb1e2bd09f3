"""Four ranks that save, as threads of one process, and a file system that ends them at the n-th thing they do to it.

    the saves of every rank, as they are    exchanges: a barrier instead of Gloo; writers beside: threads, not processes
    open, write, fsync, rename, unlink,     counted; at the n-th the process is killed (SIGKILL, in a fork of this one),
    mkdir, rmdir                            or one rank stops, and the others' exchanges fail as with a lost peer

A write that is ended leaves its first half. Weights and states are a small model's under ZeRO-3; their numbers follow
from name, step and take (a step may be saved again), so that what is read back is known.
"""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from scalewright.checkpoint import asynchronous
from scalewright.checkpoint import save as saving
from scalewright.checkpoint.read import CheckpointReader
from scalewright.checkpoint.verify import Retention
from scalewright.checkpoint.writer import _answer
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.errors import RunError
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import box, place

SPEC = ModelSpec.parse(
    {
        "vocab_size": 67, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "context": 64,
    }
)  # fmt: skip
WORLD = 4
PATIENCE_S = 240  # a busy machine is slow, and a rank that waits isn't lost for it
KINDS = ("exp_avg", "exp_avg_sq")
CPU = torch.device("cpu")


def whole(name: str, shape: tuple[int, ...], step: int, take: int = 0) -> Tensor:
    """A tensor's numbers at a step."""
    seed = sum((place + 1) * ord(letter) for place, letter in enumerate(name)) * 1000 + 100 * take + step
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def expected(step: int, take: int = 0) -> dict[str, Tensor]:
    """All that a checkpoint of this step holds."""
    names = {t.tensor.name: t.tensor.shape for t in place(SPEC, Layout.parse({"devices": 1}))}
    stored = {f"{prefix}{name}": shape for name, shape in names.items() for prefix in ("", *_prefixes())}
    return {name: whole(name, shape, step, take) for name, shape in stored.items()}


def _prefixes() -> list[str]:
    return [f"optimizer/{kind}/" for kind in KINDS]


def held(step: int, take: int, rank: int, world: int = WORLD) -> tuple[Weights, dict[str, dict[str, Tensor]], Mesh]:
    """A rank's weights and states, and where it stands."""
    layout = Layout.parse({"devices": world, "zero_stage": 3 if world > 1 else 0, "global_batch": world})
    mesh = Mesh(rank, make_grid(layout, SPEC.kv_heads), CPU, {})
    weights, states = [], {}
    for placement in place(SPEC, layout):
        part = box(placement, mesh.coords, mesh.grid.size_of)
        name, region = placement.tensor.name, tuple(slice(o, o + s) for o, s in zip(*part, strict=True))

        def of(name: str, shape: tuple[int, ...] = placement.tensor.shape, region: Any = region) -> Tensor:
            return whole(name, shape, step, take)[region].clone()

        master = nn.Parameter(of(name))
        weights.append(Weight(placement, master, master, part, 1))
        states[name] = {kind: of(f"{prefix}{name}") for kind, prefix in zip(KINDS, _prefixes(), strict=True)}
    return Weights(weights), states, mesh


class Dead(BaseException):
    """A rank that was ended."""


class Exchange:
    """`gather_json` and `from_rank_zero` of threads; the end of one ends the exchanges of all."""

    def __init__(self, world: int) -> None:
        self.barrier, self.values = threading.Barrier(world), [None] * world

    def gather(self, value: Any, mesh: Mesh) -> list[Any]:
        self.values[mesh.rank] = json.loads(json.dumps(value))
        self.barrier.wait(PATIENCE_S)
        values = list(self.values)
        self.barrier.wait(PATIENCE_S)
        return values

    def from_rank_zero(self, value: Any, mesh: Mesh) -> Any:
        return self.gather(value, mesh)[0]


class Beside:
    """The writer process of a rank, as a thread of its rank's name."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.answers: list[dict[str, Any]] = []

    def start(self) -> None:
        pass

    def begin(self, job: dict[str, Any], memory: Sequence[int]) -> None:
        handles = [os.dup(handle) for handle in memory]

        def work() -> None:
            with suppress(Dead):
                self.answers.append(_answer(job, handles))

        self.thread = threading.Thread(target=work, name=threading.current_thread().name)
        self.thread.start()

    def poll(self, wait_s: float = 0.0) -> dict[str, Any] | None:
        assert self.thread is not None
        self.thread.join(wait_s)
        if self.thread.is_alive():
            return None
        return self.answers[0] if self.answers else {"problem": "the writer of the save has gone"}

    def kill(self) -> None:
        if self.thread is not None:
            self.thread.join()


def save(root: Path, step: int, world: int = WORLD, keep: int = 2, take: int = 0, *, beside: bool = False) -> None:
    """All ranks save a step together, at once or `beside` training; raises the first error of any."""
    exchange, errors = Exchange(world), []
    parts = [held(step, take, rank, world) for rank in range(world)]

    def work(rank: int) -> None:
        weights, states, mesh = parts[rank]
        numbers = {"step": step, "samples": step}
        state = {**numbers, "tokens": step, "optimizer": {}}
        try:
            kept, about = Retention(keep), {"run_id": str(take), "model": SPEC.dump(), "layout": {}}
            draft = saving.draft(root, weights, states, mesh, **numbers, **about, state=state, kept=kept)
            save_beside(draft, mesh) if beside else saving.save(draft, mesh)
        except BaseException as error:  # of this rank; the others lose their peer
            errors.append(error)
            exchange.barrier.abort()

    beside_it = {"from_rank_zero": exchange.from_rank_zero, "Background": Beside}
    with (
        mock.patch.object(saving, "gather_json", exchange.gather),
        mock.patch.multiple(asynchronous, gather_json=exchange.gather, **beside_it),
    ):
        threads = [threading.Thread(target=work, args=(rank,), name=f"rank {rank}") for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def save_beside(draft: saving.Draft, mesh: Mesh) -> None:
    """A save that is written beside training, and waited for."""
    saver = asynchronous.AsyncSaver(mesh, apart=True, limit_s=PATIENCE_S)
    try:
        if problem := saver.begin(draft):
            raise RunError(problem)
        saver.settle()
    finally:
        saver.close()
    (end,) = saver.news()
    if end.problem:  # or its commit was ended
        raise RunError(end.problem)


def assert_holds(folder: Path, step: int) -> int:
    """A checkpoint holds the tensors of its step, bit for bit; which take it is."""
    reader = CheckpointReader(folder)
    take = int(reader.manifest.run_id)
    wanted = expected(step, take)
    assert reader.manifest.step == reader.state["step"] == step
    assert set(reader.manifest.tensors) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(reader.read(name), tensor), name
    return take


class Disk:
    """Counts what threads named `rank N` do to files, and ends them at the n-th; `rank`: only this one's count, and
    only it ends. 0: never."""

    def __init__(self, end_at: int = 0, rank: int | None = None) -> None:
        self.end_at, self.rank, self.count = end_at, rank, 0
        self.done: list[str] = []
        self.lock = threading.Lock()

    def ends(self, what: str) -> bool:
        """Counts one operation; whether it is the one to end at. Raises Dead for a rank that has ended."""
        name = threading.current_thread().name.replace("commit", "rank 0")
        if not name.startswith("rank ") or (self.rank is not None and name != f"rank {self.rank}"):
            return False
        with self.lock:
            if self.end_at and self.count >= self.end_at:
                raise Dead
            self.count += 1
            self.done.append(what)
            return self.count == self.end_at

    def end(self) -> None:
        """The end: of the process, or of a rank."""
        if self.rank is None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise Dead

    def before(self, what: str, do: Callable[..., Any]) -> Callable[..., Any]:
        """An operation that isn't done when it is the one."""

        def counted(*args: Any, **keywords: Any) -> Any:
            if self.ends(what):
                self.end()
            return do(*args, **keywords)

        return counted

    @contextmanager
    def counts(self) -> Iterator[Disk]:
        """While it lasts, all that is opened to be written, and what `os` does."""
        disk, usual = self, open

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                if disk.ends("write"):
                    super().write(bytes(data)[: len(data) // 2])
                    disk.end()
                return super().write(data)

        def opened(path: Any, mode: str = "r", buffering: int = -1, *args: Any, **keywords: Any) -> Any:
            if not set(mode) & set("wxa"):
                return usual(path, mode, buffering, *args, **keywords)
            if disk.ends("open"):
                disk.end()
            raw = File(path, mode.replace("b", ""))
            if buffering == 0:
                return raw
            binary = io.BufferedWriter(raw)
            return binary if "b" in mode else io.TextIOWrapper(binary, *args, **keywords)

        names = ("fsync", "replace", "rename", "unlink", "mkdir", "rmdir")
        with (
            mock.patch("builtins.open", opened),
            mock.patch.multiple(os, **{name: self.before(name, getattr(os, name)) for name in names}),
            mock.patch("threading.excepthook"),  # a commit's that ended
        ):
            yield self


def saved_until(root: Path, disk: Disk, step: int, keep: int, beside: bool) -> None:
    """A second take of a save on such a disk; where the whole process is to end it is a fork of this one."""

    def go() -> None:
        with suppress(Dead, threading.BrokenBarrierError, RunError), disk.counts():
            save(root, step, keep=keep, take=1, beside=beside)

    if disk.rank is not None or not disk.end_at:
        go()
    elif child := os.fork():
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"the save ended by itself, before operation {disk.end_at} ({status})"
    else:
        torch.set_num_threads(1)  # makes torch's pool anew: several threads that do so at once find none
        try:
            go()
        finally:
            os._exit(0)
