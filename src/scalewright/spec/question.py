"""A run as it is asked about: the whole run, its machine, and what was filled in or not understood.

run.yaml, pretrain.sh, flags, a plan ──► Question ──► plan.request.from_question ──► predict, plan, diagnose
                                             └──────► emit: the same run in a trainer's words

A change (of devices, of the layout) gives a copy, so that nothing else of the run is lost on the way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from scalewright.spec.errors import UserError, shortened
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import Optimizer
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import DataSpec, PythonRef, RunSpec

OURS = "scalewright"
BATCH = ("micro_batch", "global_batch")
DATA = "DATA"  # stands for token shards that nobody has named yet


class Unread(NamedTuple):
    """A setting of another trainer's that has no word of ours, or none that was understood."""

    key: str  # of the trainer
    value: Any
    why: str

    def __str__(self) -> str:
        """The setting, within a line's length."""
        return shortened(f"{self.key} {self.value}")


def unread_lines(unread: Iterable[Unread]) -> list[str]:
    """A line for each that wasn't understood; more than three with one reason (`auto`) share theirs."""
    by_reason: dict[str, list[str]] = {}
    for item in unread:
        by_reason.setdefault(item.why, []).append(str(item))
    grouped = [([", ".join(items)] if len(items) > 3 else items, why) for why, items in by_reason.items()]
    return [f"not read  {item}: {why}" for items, why in grouped for item in items]


@dataclass(frozen=True)
class Question:
    """A run to price, to plan, to compare with what was measured, or to write in another trainer's words."""

    run: RunSpec
    cluster: ClusterSpec | None = None
    trainer: str | None = None  # whose step time, as the planner's table names it; null: the run's engine
    version: str | None = None  # of the trainer
    options: Mapping[str, str] = field(default_factory=dict)  # the trainer's switches
    length: int | None = None  # tokens of a sequence where the user's own data define them
    assumed: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()
    guessed: Mapping[str, str] = field(default_factory=dict)  # sizes that follow from how many devices there
    # are -> what is assumed while that isn't known; "" where nothing is
    optimizer: Optimizer | None = None  # of the run's own by import path, where it was measured
    source: str | None = None  # the file or command line that it was read from
    form: str | None = None  # the trainer whose words those are; null: a run file of ours

    @classmethod
    def of(
        cls, model: ModelSpec, seq_len: int, cluster: ClusterSpec | None = None, trainer: str | None = None
    ) -> Question:
        """The question of a model and a length alone: all else is a run's default."""
        run = RunSpec.parse({"model": model, "data": {"train": DATA, "seq_len": seq_len}})
        return cls(run, cluster, trainer)

    @cached_property
    def model(self) -> ModelSpec:
        """The network. Raises UserError for a module of the user's own, or an unknown name."""
        if isinstance(self.run.model, PythonRef):
            how = "give a model of this shape: scalewright plan MODEL --from FILE"
            raise UserError("a module of your own has no operators to price", self.source or "model", how)
        return load_model_spec(self.run.model)

    @property
    def states_layout(self) -> bool:
        """Whether the run has a layout of its own, and not the default."""
        return "layout" in self.run.model_fields_set

    @property
    def layout(self) -> Layout:
        """The run's own layout."""
        return self.run.layout

    @property
    def seq_len(self) -> int:
        """Tokens of a sequence."""
        return self.length or self.run.seq_len

    @property
    def framework(self) -> str:
        """Whose step time is asked for."""
        return self.trainer or self.run.engine

    @property
    def has_facts(self) -> bool:
        """Whether what the run has beside its layout is priced: other trainers are priced without."""
        return self.framework in (OURS, self.run.engine)

    def with_layout(self, layout: Layout) -> Question:
        """The same run in another layout."""
        return replace(self, run=self.run.model_copy(update={"layout": layout}))

    def with_length(self, seq_len: int) -> Question:
        """The same run with sequences of so many tokens."""
        if not isinstance(self.run.data, DataSpec):
            return replace(self, length=seq_len)
        data = self.run.data.model_copy(update={"seq_len": seq_len})
        return replace(self, run=self.run.model_copy(update={"data": data}), length=None)

    def resized(self, devices: int | None = None, global_batch: int | None = None, micro: int = 0) -> Question:
        """The same layout on other devices, or with another batch; raises UserError where it can't be.

        As the trainer would size it: a batch that its file states for each rank grows with the ranks, and a
        micro-batch that isn't stated is what is left of the batch for a rank.
        """
        keys, before = self.layout.dump(), self.layout
        if "micro_batch" not in before.model_fields_set:
            del keys["micro_batch"]  # stays left out
        keys["devices"] = devices or before.devices
        ranks = max(1, keys["devices"] // (before.tp * before.pp * before.cp))
        if "global_batch" in self.guessed:
            sequences = micro if micro and self.guessed.get("micro_batch") else before.micro_batch
            keys["global_batch"] = sequences * before.accumulation * ranks
        keys["global_batch"] = global_batch or keys["global_batch"]
        if "micro_batch" in self.guessed:
            keys["micro_batch"] = max(1, keys["global_batch"] // ranks)
        return self.with_layout(Layout.parse(keys, "layout"))

    def notes(self, given: Collection[str]) -> tuple[str, ...]:
        """What was assumed, but for sizes that are `given` after all."""
        known = {line for key, line in self.guessed.items() if key in given or "devices" in given}
        left = tuple(line for line in self.assumed if line not in known)
        open_batch = "devices" in given and all(map(self.guessed.get, BATCH))  # devices don't settle both sizes
        sizes = [f"{key} {getattr(self.layout, key)}" for key in BATCH if open_batch and key not in given]
        return (f"{', '.join(sizes)}: the file has no batch", *left) if sizes else left
