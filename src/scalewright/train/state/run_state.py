"""All of a run that outlives its process: what a save collects, and a resume brings back.

    *.safetensors   weights · optimizer states of a weight's shape · buffers of a user's module
    state.json      step, samples, tokens · optimizer: {kind: {weight: number}} · optimizer_groups
                    optimizer_ranks: numbers that differ between ranks, by rank (nearly always absent)
    rank/00000/compress/...   PowerSGD's error and Q, each rank's own, of the layout that wrote them
    with islands (train/diloco.py) the weights are the outer ones, and the optimizer's states island 0's:
    outer/*, island/<i>/*     momentum; each island's weights, states and rounding
    state.json                diloco: how many islands, what is under way · islands: each one's numbers, guard

A test compares everything here before a save and after a load (tests/train/state/test_run_state.py). A rank's error of
PowerSGD belongs to the samples that it saw and to the parts that it holds: on another layout it begins at zero, which
loses less than a step's gradient, once; the run's events tell of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from scalewright.checkpoint.asynchronous import AsyncSaver
from scalewright.checkpoint.format import BUFFER, COMPLEX, ISLAND, OPTIMIZER, OUTER
from scalewright.checkpoint.memory.tier import MemoryTier
from scalewright.checkpoint.read import CheckpointReader
from scalewright.checkpoint.save import Lines, draft, save
from scalewright.checkpoint.verify import Retention
from scalewright.checkpoint.write import Chunk, IslandTensors, chunks_of, whole_chunk
from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import fill
from scalewright.parallel.power_sgd import PowerSGD
from scalewright.parallel.weights import Weight
from scalewright.spec.compress import rank_of
from scalewright.spec.errors import UserError
from scalewright.spec.run import PythonRef, RunSpec
from scalewright.train.batches import DataPosition
from scalewright.train.diloco import Islands
from scalewright.train.network import Network, checkpoint_source
from scalewright.train.state.group_state import GroupState, own_values
from scalewright.train.state.optimizer_state import (
    Named,
    Numbers,
    check_first_states,
    check_states,
    gather_island_numbers,
    gather_numbers,
    read_states,
    write_states,
)


class RunState:
    """A rank's part of it; `save` and `restore` are called by all ranks together."""

    def __init__(
        self, run: RunSpec, network: Network, optimizer: Optimizer, mesh: Mesh, islands: Islands | None = None
    ) -> None:
        """Before the first update: what the optimizer's groups begin with is noted."""
        parallel = network.parallel
        self.run, self.mesh, self.optimizer, self.islands = run, mesh, optimizer, islands
        self.lines: Lines | None = None  # rank 0's: further files of a save
        self.weights, self.buffers, self.compression = parallel.weights, parallel.buffers, parallel.compression
        self.groups = GroupState(optimizer) if isinstance(run.optimizer, PythonRef) else None

    def check(self) -> None:
        """Raises UserError when the optimizer keeps something that a checkpoint can't hold."""
        check_states(self.optimizer, self.weights)
        if self.groups is not None:
            self.groups.check()

    def check_first(self) -> None:
        """Lets the first update end with `check`."""
        check_first_states(self.optimizer, self.check)

    def read_states(self) -> tuple[Named, Numbers]:
        """The optimizer's tensors and numbers, by weight."""
        return read_states(self.optimizer, self.weights)

    def save(
        self,
        place: DataPosition,
        run_id: str,
        more: dict[str, object],
        *,
        finite: bool = True,
        saver: AsyncSaver | None = None,
        memory: MemoryTier | None = None,
    ) -> str:
        """Writes a checkpoint, or lets `saver` begin one, or `memory` keep one; why that couldn't, else "". `more` are
        further keys of state.json, `finite` whether its step was. Raises RunError on every rank when one can't write,
        UserError for states that can't be saved."""
        (tensors, numbers), run, mesh, islands = self.read_states(), self.run, self.mesh, self.islands
        by_island: list[Numbers] = []
        if islands is None:
            numbers, by_rank = gather_numbers(numbers, self.weights, mesh)
        else:
            by_island, by_rank = gather_island_numbers(numbers, self.weights, mesh, islands.index, islands.count)
            numbers = by_island[0]
        counts = {"step": place.step, "samples": place.samples}
        about = {"seed": run.seed, "optimizer_name": optimizer_name(run), "optimizer": numbers}
        state = {**counts, "tokens": place.tokens, **about, **more}
        of_rank: dict[str, Tensor] = {}
        if self.compression is not None:
            of_rank = {f"{COMPRESS}/{name}": tensor for name, tensor in self.compression.state().items()}
            state[COMPRESS] = {"rank": rank_of(run.train.compress)}
        if by_rank:
            state["optimizer_ranks"] = by_rank
        if self.groups is not None:
            state["optimizer_groups"] = self.groups.read(mesh)
        of_islands = None
        if islands is not None:
            state["diloco"] = islands.state()
            guards = gather_json(more.get("guard", {}), mesh)
            owners = zip(by_island, mesh.grid.groups("island"), strict=True)
            state["islands"] = [{"optimizer": kept, "guard": guards[ranks[0]]} for kept, ranks in owners]
            of_islands = IslandTensors(islands.index, islands.outer(), islands.shared(), islands.own())
        drafted = draft(
            run.folder / "checkpoints",
            self.weights,
            tensors,
            mesh,
            **counts,
            run_id=run_id,
            model={} if isinstance(run.model, str) else run.model.dump(),
            layout=run.layout.dump(),
            state=state,
            buffers=self.buffers.named(),
            of_rank=of_rank,
            islands=of_islands,
            lines=self.lines,
            kept=Retention(run.checkpoint.keep, run.checkpoint.keep_every, run.checkpoint.keep_best),
            finite=finite,
        )
        if memory is not None:
            return memory.begin(drafted)
        why = saver.begin(drafted) if saver is not None else ""
        if saver is None or why:
            save(drafted, mesh)
        return why

    def whole(self, place: DataPosition, more: dict[str, object]) -> tuple[list[Chunk], dict[str, object]]:
        """All that this rank has, and no other is asked for: boxes, and keys of a state.json whose numbers are those of
        its own weights. For a rank that stands at the same place of another replica; PowerSGD's error isn't in it."""
        (tensors, numbers), islands = self.read_states(), self.islands
        about = {"seed": self.run.seed, "optimizer_name": optimizer_name(self.run), "optimizer": numbers}
        state = {"step": place.step, "samples": place.samples, "tokens": place.tokens, **about, **more}
        if self.groups is not None:
            state["optimizer_groups"] = self.groups.changed()
        if complexes := [name for name, tensor in self.buffers.named().items() if tensor.is_complex()]:
            state[COMPLEX] = complexes
        of_islands = None
        if islands is not None:
            own = {"optimizer": numbers, "guard": more.get("guard", {})}
            state |= {"diloco": islands.state(), "islands": [own] * islands.count}
            of_islands = IslandTensors(0, islands.outer(), islands.shared(), islands.own())
        chunks = chunks_of(self.weights, tensors, None, of_islands)
        return chunks + [whole_chunk(BUFFER + name, t) for name, t in self.buffers.named().items()], state

    def restore(self, reader: CheckpointReader) -> tuple[DataPosition, list[str]]:
        """Brings everything back, whatever layout wrote it; where the run stands, and notes for the user. With other
        islands than wrote it, all go on from the outer weights, with island 0's optimizer states. Raises UserError when
        the checkpoint lacks a part of the run, or can't be had on this layout."""
        fill(self.weights, checkpoint_source(reader))
        notes = self._restore_buffers(reader)
        state = reader.state
        saved = self._own_part(state)
        mine = f"{ISLAND}{self.islands.index}/" if saved is not None and self.islands is not None else ""
        states = f"{mine}{OPTIMIZER}" if mine and self.mesh.index("dp_replicate") else OPTIMIZER
        numbers = state.get("optimizer", {}) if saved is None else saved["optimizer"]
        if by_rank := state.get("optimizer_ranks"):
            of_rank = own_values(by_rank, self.mesh, next(iter(by_rank[0])), str(reader.folder))
            numbers = {kind: {**by_name, **of_rank.get(kind, {})} for kind, by_name in numbers.items()}
        self.optimizer.state.clear()  # a run that goes back has some
        write_states(self.optimizer, self.weights, reader.optimizer_states(), _parts(reader, states), numbers)
        if self.groups is not None:
            self.groups.write(state.get("optimizer_groups", {}), self.mesh)
        if self.compression is not None:
            notes += restore_compression(self.compression, reader, self.run, self.mesh, int(state["step"]))
        place = DataPosition(int(state["step"]), int(state["samples"]), int(state["tokens"]))
        if self.islands is not None:
            of_island = _parts(reader, mine) if mine else None
            self.islands.restore(state.get("diloco", {}), _parts(reader, OUTER), of_island)
            self.islands.step = place.step
        return place, notes

    def guard_state(self, state: Mapping[str, Any]) -> dict[str, object]:
        """The guard's part of a checkpoint's state: that of this rank's island, where each has its own."""
        saved = self._own_part(state)
        return dict(state.get("guard", {}) if saved is None else saved.get("guard", {}))

    def changed_islands(self, state: Mapping[str, Any]) -> tuple[int, int] | None:
        """(islands that saved it, islands now) where the two differ; 0: a run without."""
        before = int(state.get("diloco", {}).get("islands", 0))
        now = self.islands.count if self.islands is not None else 0
        return None if before == now else (before, now)

    def _own_part(self, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """What this rank's island saved; None without islands, or with another number of them."""
        if self.islands is None or self.changed_islands(state) is not None:
            return None
        return dict(state["islands"][self.islands.index])

    def _restore_buffers(self, reader: CheckpointReader) -> list[str]:
        if not (missing := self.buffers.load(reader.read_buffer)):
            return []
        if reader.buffers():
            how = "build the module that it was saved from, or register the buffer with persistent=False"
            raise UserError(f"the checkpoint has no buffer '{missing[0]}'", str(reader.folder), how)
        anew = f"{', '.join(missing[:3])} {'begins' if len(missing) == 1 else 'begin'} anew"
        return [f"the checkpoint is of a release that saved no buffers: {anew}"]


def optimizer_name(run: RunSpec) -> str:
    """The optimizer's name, which a checkpoint keeps beside its state."""
    return run.optimizer.python if isinstance(run.optimizer, PythonRef) else run.optimizer.name


def _parts(reader: CheckpointReader, prefix: str) -> Callable[[str, Weight], Tensor | None]:
    """Reads the boxes of weights in tensors that are saved as prefix, kind and weight."""

    def read(kind: str, weight: Weight) -> Tensor | None:
        name = f"{prefix}{kind}/{weight.name}"
        return reader.read(name, weight.box, weight.placement.tensor.shape) if reader.has(name) else None

    return read


# Keys of a layout that decide which parts and samples a rank has
_DECIDE = ("devices", "tp", "sp", "pp", "virtual_stages", "schedule", "stage_layers", "cp", "ep", "etp", "dp_replicate",
           "zero_stage")  # fmt: skip
COMPRESS = "compress"  # in state.json: the rank of the factors


def restore_compression(
    compression: PowerSGD, reader: CheckpointReader, run: RunSpec, mesh: Mesh, steps: int
) -> list[str]:
    """Brings error and Q back, or begins without; `steps` that the run has behind it. Notes for the user."""
    compression.begin_anew(steps)
    if (saved := reader.state.get(COMPRESS)) is None:
        return ["the checkpoint has no error of powersgd: it begins at zero"] if steps else []
    if saved != {"rank": rank_of(run.train.compress)}:
        return [f"powersgd's rank was {saved['rank']} in the checkpoint: its error begins at zero"]
    now = run.layout.dump()
    changed = [f"layout.{key}" for key in _DECIDE if reader.manifest.layout.get(key) != now[key]]
    if changed:
        keys = ", ".join(changed)
        return [f"powersgd's error is of another layout ({keys} changed): it begins at zero"]
    for name, tensor in compression.state().items():
        if (stored := reader.read_of_rank(f"{COMPRESS}/{name}", mesh.rank)) is not None:
            tensor.copy_(stored)
    return []
