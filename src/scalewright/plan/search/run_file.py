"""A plan's layout as a `run.yaml` that `train` takes.

    plan --> model, cluster, layout, data (one marked line when no folder is given), optimizer, diloco

Only keys that differ from run.yaml's defaults are written; those that a plan doesn't decide (learning rate,
steps) keep their defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scalewright.spec.base import to_yaml
from scalewright.spec.hardware.cluster import LOCAL, ClusterSpec, cluster_names, load_cluster
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import ADAMW
from scalewright.spec.presets import is_preset, load_model_spec
from scalewright.spec.text.words import commented

if TYPE_CHECKING:
    from scalewright.plan.search.choices import Choice, Plan

FILL = "FILL-IN: a folder of token shards, as `scalewright prepare` writes it"
PLACEHOLDER = "DATA_FOLDER"


def run_file(plan: Plan, data: str | None = None) -> str | None:
    """The YAML of a run with the best layout that `train` runs; None where it runs none of the plan's."""
    choice = plan.trainable
    if choice is None:
        return None
    head = {"version": 1, "name": _name(plan), "model": _model(plan.model), "cluster": _cluster(plan.cluster)}
    layout = {"layout": choice.layout.written()}
    record = plan.template.optimizer
    folder = PLACEHOLDER if data is None else data
    rest: dict[str, Any] = {} if record is ADAMW else {"optimizer": {"name": record.written}}
    if plan.template.diloco is not None:
        rest["diloco"] = plan.template.diloco.written()
    source = to_yaml({"data": {"train": folder, "seq_len": plan.seq_len}, **rest})
    if data is None:
        source = source.replace(PLACEHOLDER, f"{PLACEHOLDER}  # {FILL}")
    return _comment(plan, choice) + to_yaml(head) + to_yaml(layout) + source


def _comment(plan: Plan, choice: Choice) -> str:
    """The file's first line: a comment with the devices and the prediction."""
    prediction = choice.prediction
    figures = f"{prediction.step_time_s:.4g} s a step, {prediction.peak_gib:.1f} GiB on the worst rank"
    return commented(f"Planned for {plan.devices} devices of {plan.cluster.name}: {figures} predicted.")


def _name(plan: Plan) -> str:
    return f"{plan.model.name}-{plan.devices}".replace("/", "-").replace(" ", "-")


def _model(model: ModelSpec) -> str | dict[str, Any]:
    """The preset's name if the model equals a preset, else its keys."""
    preset = is_preset(model.name) and load_model_spec(model.name) == model
    return model.name if preset else model.written()


def _cluster(cluster: ClusterSpec) -> str | dict[str, Any]:
    """The cluster's name if it equals a known cluster, else all its keys."""
    if cluster.name == LOCAL:
        return LOCAL
    known = cluster.name in cluster_names() and load_cluster(cluster.name) == cluster
    return cluster.name if known else cluster.dump()
