"""Checkpoints of a run under DeepSpeed's engine, in this tool's own format.

    save       weights and moments, whole and one by one, to every rank's boxes -> the same files as ever
    restore    each tensor of a checkpoint, whichever engine and layout wrote it -> DeepSpeed's partitions

So `convert`, `generate`, `evaluate` and the other engine read what a DeepSpeed run saved. DeepSpeed's own
folder of partitions isn't written: nothing here would read it.
"""

from __future__ import annotations

import torch

from scalewright.checkpoint.format import OPTIMIZER
from scalewright.checkpoint.read import CheckpointReader
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import fill
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec
from scalewright.train.batches import DataPosition
from scalewright.train.deepspeed.weights import STEP, DeepSpeedWeights, own_part, whole
from scalewright.train.network import Network, checkpoint_source
from scalewright.train.state.optimizer_state import Named, Numbers
from scalewright.train.state.plain_values import decode, encode
from scalewright.train.state.run_state import RunState


class DeepSpeedState(RunState):
    """A rank's part of it."""

    def __init__(self, run: RunSpec, network: Network, mesh: Mesh, weights: DeepSpeedWeights) -> None:
        super().__init__(run, network, weights.partitions.optimizer, mesh)
        self.held, self.partitions = weights, weights.partitions

    def check(self) -> None:
        """Nothing to find: the optimizers that DeepSpeed is given are torch's."""

    def check_first(self) -> None:
        """Nothing to find."""

    def save(self, place: DataPosition, run_id: str, more: dict[str, object], *, finite: bool = True) -> None:
        """Writes a checkpoint, as RunState does."""
        self.held.collect()
        try:
            super().save(place, run_id, more, finite=finite)
        finally:
            self.held.release()

    def read_states(self) -> tuple[Named, Numbers]:
        """This rank's boxes of all moments, and Adam's step; nothing before the first update."""
        tensors: Named = {}
        numbers: Numbers = {}
        if not self.partitions.updated:
            return tensors, numbers
        self.partitions.link_states()
        for weight in self.held.trained():
            for kind in self.partitions.kinds:
                moment = own_part(self.partitions.get_state(weight, kind), weight)
                tensors.setdefault(weight.name, {})[kind] = moment
            if self.partitions.counts:
                step = torch.tensor(self.partitions.step())
                numbers.setdefault(STEP, {})[weight.name] = encode(step)
        return tensors, numbers

    @torch.no_grad()
    def restore(self, reader: CheckpointReader) -> tuple[DataPosition, list[str]]:
        """Brings everything back, as RunState does; raises UserError for steps that differ by weight."""
        fill(self.weights, checkpoint_source(reader))
        notes = self._restore_buffers(reader)
        state = reader.state
        steps = {float(decode(value)) for value in state.get("optimizer", {}).get(STEP, {}).values()}
        if len(steps) > 1 or state.get("optimizer_ranks"):
            problem = "weights were updated different numbers of times, and DeepSpeed counts once for many"
            raise UserError(problem, str(reader.folder), "resume with engine: scalewright")
        if reader.optimizer_states():
            self.partitions.make_states(steps.pop() if steps else 0.0)
        for weight in self.held.trained():
            for kind in self.partitions.kinds:
                name = f"{OPTIMIZER}{kind}/{weight.name}"
                if reader.has(name):
                    moment = reader.read(name, whole(weight), weight.placement.tensor.shape)
                    self.partitions.set_state(weight, kind, moment.to(weight.compute.device))
        return DataPosition(int(state["step"]), int(state["samples"]), int(state["tokens"])), notes
