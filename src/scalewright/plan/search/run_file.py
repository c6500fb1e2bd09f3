"""A plan's layout as a `run.yaml` that `train` takes: the run that was asked about, in that layout.

    plan --> model, cluster, layout, data (one marked line when no folder is named), the rest of the run

Only keys that differ from run.yaml's defaults are written; those that neither a plan nor its question decides
(learning rate, steps) keep their defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scalewright.plan.releases import without
from scalewright.spec.base import to_yaml
from scalewright.spec.common.formatting import commented
from scalewright.spec.compress import Compress, applicable
from scalewright.spec.hardware.cluster import LOCAL, ClusterSpec, cluster_names, load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import is_preset, load_model_spec
from scalewright.spec.question import DATA, Question
from scalewright.spec.run import DataSpec, RunSpec

if TYPE_CHECKING:
    from scalewright.plan.predict import Prediction
    from scalewright.plan.search.choices import Plan

FILL = "FILL-IN: a folder of token shards, as `scalewright prepare` writes it"
PLACEHOLDER = "DATA_FOLDER"


def run_file(plan: Plan, data: str | None = None) -> str | None:
    """The YAML of a run with the best layout that `train` runs; None where it runs none of the plan's."""
    choice = plan.trainable
    return None if choice is None else layout_file(plan.question, choice.prediction, choice.layout, data)


def layout_file(question: Question, prediction: Prediction, layout: Layout, data: str | None = None) -> str:
    """The YAML of a run in one layout, its predicted cost in the first line."""
    request, cluster = prediction.request, question.cluster
    figures = f"{prediction.step_time_s:.4g} s a step, {prediction.peak_gib:.1f} GiB on the worst rank"
    machine = cluster.name if cluster else request.chip.name
    first_line = commented(f"Planned for {layout.devices} devices of {machine}: {figures} predicted.")
    text = to_yaml(planned(question, layout, request.compress, data))
    return first_line + text.replace(f"train: {DATA}\n", f"train: {PLACEHOLDER}  # {FILL}\n")


def planned(question: Question, layout: Layout, compressed: Compress, data: str | None = None) -> dict[str, object]:
    """A run in one layout, as keys of a run file; `compressed`: as it was priced; `data`: a folder of token shards."""
    run = question.run
    keys = {**run.written(), "version": 1, "model": _model(question), "layout": layout.written()}
    if "name" not in run.model_fields_set:
        keys["name"] = f"{question.model.name}-{layout.devices}".replace("/", "-").replace(" ", "-")
    if question.cluster is not None:
        keys["cluster"] = _cluster(question.cluster)
    if data is not None:
        valid = {"valid": data} if (Path(data).expanduser() / "valid").is_dir() else {}
        rest = keys["data"] if isinstance(run.data, DataSpec) else {"seq_len": question.seq_len}
        keys["data"] = {"train": data, **without(rest, ("train",)), **valid}
    if question.framework != run.engine:
        keys = without(keys, ("engine", "engine_options"))
    compress = applicable(compressed, layout, islands=run.diloco is not None)
    if compress == "none" and "train" in keys:  # as it was priced
        keys["train"] = without(keys["train"], ("compress",))
    keys = keys if keys.get("train", True) else without(keys, ("train",))
    return {key: keys[key] for key in RunSpec.model_fields if key in keys}


def _model(question: Question) -> str | dict[str, object]:
    """The name that the run has; the preset's if the model equals a preset, else its keys."""
    if isinstance(question.run.model, str):
        return question.run.model
    model = question.model
    preset = is_preset(model.name) and load_model_spec(model.name) == model
    return model.name if preset else model.written()


def _cluster(cluster: ClusterSpec) -> str | dict[str, object]:
    """The cluster's name if it equals a known cluster, else all its keys."""
    if cluster.name == LOCAL:
        return LOCAL
    known = cluster.name in cluster_names() and load_cluster(cluster.name) == cluster
    return cluster.name if known else cluster.dump()
