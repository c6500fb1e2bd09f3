"""The run that an entry's number is about, and what it would be with other sizes.

run.quantity("micro_batches")    raises Missing where this run or its cluster has none
run.assuming({"pp": 4})          the same run with at least so many stages, and a note of it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.question import Question

if TYPE_CHECKING:
    from typing_extensions import Self

    from scalewright.plan.predict import Prediction
    from scalewright.spec.hardware.devices import DeviceSpec
    from scalewright.spec.tensors import Count

WITHOUT = ("moe", "mla")  # parts of a model that it may not have


class Missing(LookupError):
    """A quantity that this run doesn't have."""


@dataclass(frozen=True)
class AskedRun:
    """A run, its cluster, and what it is called."""

    question: Question
    name: str
    folder: Path | None = None  # of a run that was
    notes: tuple[str, ...] = ()

    def quantity(self, name: str) -> Any:
        """A quantity by its name. Raises Missing."""
        if name.startswith("_") or not hasattr(type(self), name):
            raise AttributeError(f"no quantity {name}")
        if (value := getattr(self, name)) is None:
            raise Missing(name)
        return value

    def assuming(self, keys: Mapping[str, Any]) -> Self:
        """The run with at least these sizes, and with a named model where its own lacks the part."""
        subject = self
        for key, value in keys.items():
            if key in WITHOUT:
                subject = subject._with_model(key, value)
            else:
                subject = subject._with_size(key, value)
        return subject

    def _with_model(self, part: str, name: str) -> Self:
        if getattr(self.model, part) is not None:
            return self
        run = self.question.run.model_copy(update={"model": load_model_spec(name)})
        return replace(self, question=replace(self.question, run=run), notes=(*self.notes, f"the model were {name}"))

    def _with_size(self, key: str, value: Any) -> Self:
        layout = self.layout
        if key == "pp":  # a stage has a layer at least
            value = min(value, self.model.num_hidden_layers)
        if key == "dp":  # another replica
            key, value = "devices", value * layout.tp * layout.pp * layout.cp
        if (getattr(layout, key) >= value) if isinstance(value, int) else (getattr(layout, key) != "none"):
            return self
        sizes = {**layout.dump(), key: value}
        for devices in (layout.devices, layout.devices * value if isinstance(value, int) else layout.devices):
            dp = max(1, devices // (sizes["tp"] * sizes["pp"] * sizes["cp"]))
            batch = max(1, layout.global_batch // (layout.micro_batch * dp)) * layout.micro_batch * dp
            try:
                changed = Layout.parse({**sizes, "devices": devices, "global_batch": batch})
            except UserError:
                continue
            words = f"{key} were {value}" + (f" on {devices} devices" if devices > layout.devices else "")
            return replace(self, question=self.question.with_layout(changed), notes=(*self.notes, words))
        raise Missing(key)

    @property
    def model(self) -> ModelSpec:
        """Its network."""
        return self.question.model

    @property
    def layout(self) -> Layout:
        """How it is divided."""
        return self.question.layout

    @cached_property
    def cluster(self) -> ClusterSpec:
        """Where it runs; this machine where nothing is said, which is timed."""
        from scalewright.machine.local import find_cluster

        return self.question.cluster or find_cluster(self.question.run.cluster, self.layout.devices)

    @property
    def asked(self) -> Question:
        """The run with its cluster, as the planner takes it."""
        return replace(self.question, cluster=self.cluster)

    @property
    def device(self) -> DeviceSpec:
        """One of its devices."""
        return self.cluster.device

    @cached_property
    def prediction(self) -> Prediction:
        """The run as the planner prices it."""
        from scalewright.plan.predict import price

        return price(self.asked)

    @cached_property
    def sizes(self) -> Count:
        """Its parameters, counted."""
        from scalewright.spec.tensors import count

        return count(self.model)
