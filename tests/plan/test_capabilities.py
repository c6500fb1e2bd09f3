"""A plan for a trainer holds only what that trainer has; what it lacks is named beside what it would gain."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright import api
from scalewright.plan.capabilities import FILE, find_capabilities, forbidden
from scalewright.plan.explain import what_if
from scalewright.plan.frameworks import framework_names
from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES
from scalewright.plan.search.search import Plan, search
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec
from scalewright.spec.trains import why_not_trained

LLAMA, H100 = load_model_spec("llama-3.1-70b"), load_cluster("dgx-h100")
KINDS = {"gpu", "tpu", "npu", "cpu", "mps"}
TPU = "it runs on gpu, cpu, mps alone, not on a tpu: plan with --framework maxtext"
WORDS = {
    "schedule": SCHEDULES, "offload": OFFLOADS, "cp_kind": CP_KINDS, "zero_stage": (0, 1, 2, 3),
    "recompute": ("none", "selective", "full", "every", "budget"), "sp": (True, False),
}  # fmt: skip


def plan(framework: str, **changes: object) -> Plan:
    asked = {"devices": 64, "seq_len": 8192, "global_batch": 512, **changes}
    return search(LLAMA, H100, framework=framework, margin=0.02, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "nanotron", "deepspeed"])
def test_only_what_the_trainer_has_is_listed(framework: str) -> None:
    found = plan(framework)
    trainer = find_capabilities(framework)
    for choice in [*found.best, *found.pareto]:
        assert trainer.missing(choice.keys) == []
        assert choice.keys["schedule"] not in ("zb-h1", "dualpipe") or choice.keys["pp"] == 1
    assert all(one.needs and one.gain_pct > 0 for one in found.beyond)
    assert all(trainer.missing(one.choice.keys) == one.needs for one in found.beyond)
    now = found.best[0].prediction
    assert not any("dualpipe" in row["change"] for row in what_if(now))


def test_without_a_framework_what_train_runs_is_listed() -> None:
    found = plan("scalewright")
    assert all(choice.trainable for choice in found.best)
    assert found.trainable is found.best[0]
    assert found.beyond
    assert found.dump()["beyond"][0]["needs"]


def test_ours_is_what_train_says() -> None:
    """The file and the trainer's own checks, value by value."""
    ours = find_capabilities("scalewright")
    base = {"devices": 64, "global_batch": 512, "zero_stage": 1}
    for kind in SCHEDULES:
        layout = Layout.parse({**base, "pp": 4, "schedule": kind})
        assert (why_not_trained(LLAMA, layout, 8192) is None) == ours.allows("schedule", kind), kind
    for size in (1, 2):
        layout = Layout.parse({**base, "cp": size})
        assert (why_not_trained(LLAMA, layout, 8192) is None) == ours.allows("cp", size)
    for offload in OFFLOADS:
        layout = Layout.parse({**base, "zero_stage": 3, "offload": offload})
        assert (why_not_trained(LLAMA, layout, 8192) is None) == ours.allows("offload", offload)


def test_train_runs_nothing_on_a_tpu() -> None:
    """There is no torch-xla in it: such a plan is priced, marked, and makes no run file."""
    tpus = {"cluster": "tpu-v5p", "devices": 8, "seq_len": 2048, "global_batch": 32, "top": 1}
    found = api.plan("llama-3.2-1b", **tpus)
    assert [one["untrainable"] for one in found["best"]] == [TPU]
    assert (found["best_trainable"], found["run_yaml"], found["beyond"]) == (None, None, [])
    assert api.predict("llama-3.2-1b", "tpu-v5p", devices=8, seq_len=2048)["lacks"] == [TPU]
    other = api.predict("llama-3.2-1b", "tpu-v5p", devices=8, seq_len=2048, framework="torchtitan")
    assert other["lacks"] == ["tpu support"]
    with pytest.raises(UserError, match=r"torchtitan doesn't run on tpu-v5p.*use --framework maxtext"):
        api.plan("llama-3.2-1b", **tpus, framework="torchtitan")
    assert api.plan("llama-3.2-1b", **tpus, framework="maxtext")["best"][0]["lacks"] == []


def test_megatron_of_2021_has_what_it_had() -> None:
    """No sequence parallelism, no selective recomputation, no distributed optimizer: they are of 2022."""
    trainer = find_capabilities("megatron-2021")
    then = {"tp": 8, "pp": 8, "schedule": "interleaved", "sp": False, "zero_stage": 0, "recompute": "full"}
    assert trainer.missing(then) == []
    later = {**then, "sp": True, "zero_stage": 1, "recompute": "selective"}
    assert trainer.missing(later) == ["zero_stage 1", "sp True", "recompute selective"]
    assert find_capabilities("megatron-2023").missing(later) == []


def test_what_is_asked_for_and_lacking() -> None:
    with pytest.raises(
        UserError, match=r"megatron has no schedule dualpipe.*use schedule 1f1b or interleaved"
    ):
        plan("megatron", fixed={"schedule": "dualpipe"})
    found = plan("scalewright", fixed={"cp": 2}, top=1)  # ours lists what is asked for, and marks it
    assert found.best[0].layout.cp == 2
    assert not found.best[0].trainable


def test_the_file_is_sound() -> None:
    entries = read_yaml(FILE)
    assert set(entries) <= {*framework_names()}
    for name in entries:
        trainer = find_capabilities(name)
        assert trainer.known
        assert trainer.source
        for axis, values in trainer.axes.items():
            assert values, (name, axis)
            assert set(values) <= set(WORDS.get(axis, values)), (name, axis)
        assert set(trainer.devices) <= KINDS, name
    assert not find_capabilities("internevo").known


def test_rules_forbid_only_what_they_name_together() -> None:
    rules = [{"zero_stage": [2, 3], "pp": ">1"}]
    columns = {"zero_stage": np.array([1, 2, 3, 2]), "pp": np.array([4, 4, 2, 1])}
    assert forbidden(rules, columns, 4).tolist() == [False, True, True, False]
    assert not forbidden(rules, {"pp": np.array([4])}, 1).any()
