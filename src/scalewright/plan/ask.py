"""A search as users ask for it, and the whole answer: the keys of `plan --json`.

Question --search--> Plan: best, pareto, why_not      (plan/search/search.py)
    the answer of `predict` for each best layout      (plan/answer.py)
    why a given layout isn't chosen                   (plan/search/why_not.py)
    the same search on other device counts            (plan/search/scaling.py)
    the run file of the best layout that `train` runs (plan/search/run_file.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.plan import defaults
from scalewright.plan.answer import answer
from scalewright.plan.frameworks import OURS
from scalewright.plan.search.counts import nearby
from scalewright.plan.search.finder import Stop, Tell
from scalewright.plan.search.run_file import run_file
from scalewright.plan.search.scaling import scaling
from scalewright.plan.search.search import Choice, Plan, search
from scalewright.plan.search.why_not import why_not as explain_loss
from scalewright.plan.switches import check_names
from scalewright.plan.whole_run import WholeRun
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.text.files import check_replaceable, write_signed


@dataclass(frozen=True)
class Question:
    """The run to plan, and `keys`: further arguments of `search` (plan/search/search.py)."""

    model: ModelSpec
    cluster: ClusterSpec
    devices: int
    global_batch: int
    seq_len: int
    counts: tuple[int, ...]
    keys: Mapping[str, Any]
    assumed: tuple[str, ...]

    @classmethod
    def of(
        cls,
        model: str | Mapping[str, Any] | ModelSpec,
        cluster: ClusterSpec,
        sizes: Mapping[str, Any],
        seq_len: int | None,
        counts: Sequence[int] | None,
        *,
        framework: str | None,
        version: str | None,
        optimizer: str | None = None,
        diloco: Mapping[str, Any] | None = None,
        **keys: Any,
    ) -> Question:
        """Checks the arguments and fills in defaults. Raises UserError."""
        spec = load_model_spec(model)
        length, notes = defaults.resolve_length(spec, seq_len)
        counts = tuple(defaults.check_whole("devices", count) for count in counts or ())
        given = defaults.resolve_sizes(sizes, cluster, length)
        devices = given.get("devices") or max(counts, default=None) or cluster.devices
        if devices is None:
            raise UserError("devices is missing", "plan", "give --devices, or --nodes")
        if "global_batch" not in given:
            how = "give --global-batch in sequences, or --global-batch-tokens"
            raise UserError("global_batch is missing", "plan", how)
        if "devices" not in given:
            notes.append(f"devices {devices}")
        _, trainer_notes = defaults.resolve_trainer(framework, version)
        record, optimizer_notes = defaults.resolve_optimizer(optimizer, framework)
        check_names(keys.get("options"))
        keys |= {"framework": framework or OURS, "version": version, "optimizer": record}
        keys["diloco"] = defaults.resolve_diloco(diloco, framework)
        assumed = (*notes, *trainer_notes, *optimizer_notes, *cluster.assumed)
        return cls(spec, cluster, devices, given["global_batch"], length, counts, keys, assumed)

    def search(self, tell: Tell | None = None, stop: Stop | None = None) -> Plan:
        """The best layouts. Raises UserError when there is none."""
        return search(
            self.model, self.cluster, devices=self.devices, seq_len=self.seq_len,
            global_batch=self.global_batch, tell=tell, stop=stop, **self.keys,
        )  # fmt: skip

    def answer(
        self,
        run: WholeRun | None = None,
        why_not: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        data: str | None = None,
        explain: bool = True,
        tell: Tell | None = None,
        stop: Stop | None = None,
        force: bool = False,
    ) -> dict[str, Any]:
        """The keys of `plan --json`; writes the run file where `out` is given. Raises UserError."""
        if out is not None:
            check_replaceable(Path(out), force)
        run = run or WholeRun(price=self.keys["price"])
        run.check(priced=self.keys["objective"] != "time")
        run = run.priced_at(self.cluster.price_per_device_hour)
        plan = self.search(tell, stop)
        keys = plan.dump()
        keys["assumed"] = [*self.assumed, *keys["assumed"]]
        keys["assumed"] += run.assumed(self.devices)
        if self.keys.get("precision", "auto") == "auto":
            keys["assumed"].append(f"precision {plan.template.precision} (auto)")
        keys["best"] = [self._choice(choice, run, explain) for choice in plan.best]
        keys["pareto"] = [self._choice(choice, run, False) for choice in plan.pareto]
        keys["beyond"] = [
            self._choice(layout.choice, run, False) | {"needs": layout.needs, "gain_pct": layout.gain_pct}
            for layout in plan.beyond
        ]
        keys["best"][0]["simpler_than"] = plan.simpler_than()
        keys["nearby"] = nearby(plan) if explain and plan.complete else []
        keys["best_trainable"] = self._choice(plan.trainable, run, False) if plan.trainable else None
        if why_not is not None:
            keys["asked"] = explain_loss(plan, why_not)
        if self.counts and plan.complete:
            keys["scaling"] = self._scaling(stop)
        keys["run_yaml"] = run_file(plan, data)
        if out is not None:
            keys |= _write(keys["run_yaml"], plan, Path(out), data, force)
        return keys

    def _choice(self, choice: Choice, run: WholeRun, explain: bool) -> dict[str, Any]:
        """The answer of `predict` for a layout, and whether `train` runs it."""
        keys = answer(choice.prediction, run=run, explain=explain, assumed=self.assumed)
        return keys | {
            "trainable": choice.trainable,
            "untrainable": choice.untrainable,
            "objective_value": choice.value,
        }

    def _scaling(self, stop: Stop | None) -> dict[str, Any]:
        keys = {**self.keys, "seq_len": self.seq_len, "global_batch": self.global_batch, "stop": stop}
        return scaling(self.model, self.cluster, self.counts, **keys)


def _write(text: str | None, plan: Plan, path: Path, data: str | None, force: bool) -> dict[str, Any]:
    """Writes the run file; returns its path, or why `train` runs no layout of the plan."""
    if text is None:
        return {"run_file": None, "run_file_untrainable": plan.best[0].untrainable}
    write_signed(path, text, force)
    return {"run_file": str(path), "run_file_untrainable": None, "run_file_to_fill": data is None}
