"""A plan for a trainer uses only features that it has; layouts beyond it are listed with their gain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plan.searches import search
from scalewright import api
from scalewright.plan.explain import what_if
from scalewright.plan.fitting.runs import MEASURED, read_table
from scalewright.plan.frameworks import find_framework, forbidden, framework_names, of_framework
from scalewright.plan.predict import together
from scalewright.plan.releases import table
from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES
from scalewright.plan.search.search import Plan
from scalewright.spec.base import read_yaml
from scalewright.spec.capabilities import FILE, find_capabilities
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec
from scalewright.spec.trains import why_not_trained

LLAMA, H100 = load_model_spec("llama-3.1-70b"), load_cluster("dgx-h100")
CUTS = {"virtual_stages", "stage_layers"}  # of a pipeline, which the table doesn't list
KINDS = {"gpu", "tpu", "npu", "cpu", "mps"}
TPU = "it runs on gpu, cpu, mps alone, not on a tpu: plan with --framework maxtext or levanter"
WORDS = {
    "schedule": SCHEDULES, "offload": OFFLOADS, "cp_kind": CP_KINDS, "zero_stage": (0, 1, 2, 3),
    "recompute": ("none", "selective", "full", "every", "budget"), "sp": (True, False),
}  # fmt: skip


def plan(framework: str, **changes: object) -> Plan:
    keys = {"devices": 64, "seq_len": 8192, "global_batch": 512, **changes}
    return search(LLAMA, H100, framework=framework, margin=0.02, **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "nanotron", "deepspeed"])
def test_only_what_the_trainer_has_is_listed(framework: str) -> None:
    result = plan(framework)
    trainer = find_capabilities(framework)
    for choice in [*result.best, *result.pareto]:
        assert trainer.missing(choice.keys) == []
        assert choice.keys["schedule"] not in ("zb-h1", "dualpipe") or choice.keys["pp"] == 1
    assert all(beyond.needs and beyond.gain_pct > 0 for beyond in result.beyond)
    assert all(trainer.missing(beyond.choice.keys) == beyond.needs for beyond in result.beyond)
    assert not any("dualpipe" in row["change"] for row in together([what_if(result.best[0].prediction)])[0])


@pytest.mark.slow
def test_without_a_framework_what_train_runs_is_listed() -> None:
    result = plan("scalewright")
    assert all(choice.trainable for choice in result.best)
    assert result.trainable is result.best[0]
    assert result.beyond
    assert result.beyond[0].needs


def test_our_capabilities_are_those_of_train() -> None:
    """capabilities.yaml against the trainer's own checks, value by value."""
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
    """`train` has no torch-xla: such a plan is priced and marked, and has no run file."""
    tpus = {"cluster": "tpu-v5p", "devices": 8, "seq_len": 2048, "global_batch": 32, "top": 1}
    result = api.plan("llama-3.2-1b", **tpus)
    assert [layout["untrainable"] for layout in result["best"]] == [TPU]
    assert (result["best_trainable"], result["run_yaml"], result["beyond"]) == (None, None, [])
    assert api.predict("llama-3.2-1b", "tpu-v5p", devices=8, seq_len=2048)["lacks"] == [TPU]
    other = api.predict("llama-3.2-1b", "tpu-v5p", devices=8, seq_len=2048, framework="torchtitan")
    assert other["lacks"] == ["tpu support"]
    with pytest.raises(UserError, match=r"torchtitan doesn't run on tpu-v5p.*use --framework maxtext"):
        api.plan("llama-3.2-1b", **tpus, framework="torchtitan")
    assert api.plan("llama-3.2-1b", **tpus, framework="maxtext")["best"][0]["lacks"] == []


def test_megatron_of_2021_has_what_it_had() -> None:
    """No sequence parallelism, no selective recomputation, no distributed optimizer: they are of 2022."""
    trainer = find_capabilities("megatron-2021")
    layout = {"tp": 8, "pp": 8, "schedule": "interleaved", "sp": False, "zero_stage": 0, "recompute": "full"}
    assert trainer.missing(layout) == []
    later = {**layout, "sp": True, "zero_stage": 1, "recompute": "selective"}
    assert trainer.missing(later) == ["zero_stage 1", "sp True", "recompute selective"]
    assert find_capabilities("megatron-2023").missing(later) == []


@pytest.mark.parametrize(
    ("release", "every"),
    [
        ("0.1", True),
        ("0.2", True),
        ("v0.2.1", True),
        ("0.2.0rc1", True),
        ("0.3", False),
        ("0.3.1", False),
        (None, False),
    ],
)
def test_torchtitan_recomputed_every_second_layer_before_0_3(release, every):
    """selective_ac_option, of March 2024 (#125) to February 2026 (#2357)."""
    trainer = of_framework(find_framework("torchtitan", release))
    assert trainer.allows("recompute", {"every": 2}) == every
    assert trainer.allows("cp_kind", "ring") == every
    assert trainer.allows("recompute", "full")
    assert not trainer.allows("schedule", "zb-h1")
    assert not of_framework(find_framework("megatron", release)).allows("recompute", {"every": 2})


@pytest.mark.parametrize(
    ("name", "why"),
    [("nanotron", "cuts stages by its own costs"), ("gpt-neox", "by kinds of layers"), ("maxtext", "as many layers"),
     ("colossalai", "evenly"), ("megatron", None), ("torchtitan", None), ("scalewright", None)],
)  # fmt: skip
def test_stages_by_hand_are_lacking_where_a_trainer_cuts_itself(name, why):
    layout = {"tp": 1, "pp": 4, "schedule": "1f1b", "zero_stage": 0, "sp": False, "stage_layers": (0, 2, 2, 0)}
    lacks = [words for words in find_capabilities(name).missing(layout) if "by hand" in words]
    assert (not lacks) if why is None else (why in lacks[0])
    even = find_capabilities(name).missing({**layout, "stage_layers": (1, 1, 1, 1)})
    assert not [words for words in even if "by hand" in words]


def test_a_fixed_value_that_the_trainer_lacks() -> None:
    with pytest.raises(UserError, match=r"megatron has no schedule dualpipe.*use schedule 1f1b or interleaved"):
        plan("megatron", fixed={"schedule": "dualpipe"})
    result = plan("scalewright", fixed={"schedule": "dualpipe", "pp": 2}, top=1)  # ours lists the layout, and marks it
    assert result.best[0].layout.schedule == "dualpipe"
    assert not result.best[0].trainable


def test_the_file_is_sound() -> None:
    entries = read_yaml(FILE)
    assert set(entries) <= {*framework_names(), *table()["aliases"]}
    for name in entries:
        trainer = find_capabilities(name)
        assert trainer.known
        assert trainer.source
        for axis, values in trainer.axes.items():
            assert values, (name, axis)
            assert set(values) <= set(WORDS.get(axis, values)), (name, axis)
        assert set(trainer.devices) <= KINDS, name
        limited = {*trainer.axes, *(axis for rule in trainer.never for axis in rule), *CUTS}
        assert set(trainer.why) <= limited, name  # a reason is of something that it lacks
    assert not find_capabilities("internevo").known


def test_rules_forbid_only_what_they_name_together() -> None:
    rules = [{"zero_stage": [2, 3], "pp": ">1"}]
    columns = {"zero_stage": np.array([1, 2, 3, 2]), "pp": np.array([4, 4, 2, 1])}
    assert forbidden(rules, columns, 4).tolist() == [False, True, True, False]
    assert not forbidden(rules, {"pp": np.array([4])}, 1).any()


def test_a_trainer_that_is_priced_as_another_has_its_own_features() -> None:
    neox = find_framework("GPT-NeoX")
    assert (neox.name, of_framework(neox).trainer) == ("megatron-deepspeed", "gpt-neox")
    assert of_framework(find_framework("megatron-deepspeed")).allows("schedule", "zb-h1")
    assert not of_framework(neox).allows("schedule", "zb-h1")
    assert of_framework(find_framework("olmo")).trainer == "huggingface"
    with pytest.raises(UserError, match="litgpt has no tp 2"):
        plan("litgpt", fixed={"tp": 2})


def test_rules_of_replicas_are_searched_by() -> None:
    """A rule with `dp_replicate` leaves no such layout in a plan."""
    result = plan("gpt-neox", fixed={"zero_stage": 1})
    assert all(choice.keys["dp_replicate"] == 1 for choice in [*result.best, *result.pareto])


@pytest.mark.parametrize(
    ("name", "version", "attention"),
    [
        ("deepspeed", None, "flash"), ("deepspeed", "2025", "flash"), ("deepspeed", "2022", "unfused"),
        ("deepspeed", "2023-06", "unfused"), ("DeepSpeed ZeRO-3 + CPU offload (2022)", None, "unfused"),
        ("huggingface", None, "flash"),
    ],
)  # fmt: skip
def test_deepspeed_is_todays_where_no_version_is_given(name: str, version: str | None, attention: str) -> None:
    trainer = find_framework(name, version)
    assert (trainer.attention, trainer.dropout) == (attention, attention == "unfused")


def test_every_name_of_the_table_is_known_by_trainer_release_and_date() -> None:
    names = read_yaml(Path(__file__).with_name("trainer_names.yaml"))
    assert {line["name"] for line in names["table"]} == {row["framework"] for row in read_table(MEASURED)}
    for line in (*names["table"], *names["others"]):
        trainer = find_framework(line["name"])
        year, month = divmod(round(12 * trainer.year), 12)
        assert (trainer.name, trainer.release) == (line["trainer"], line["release"]), line
        assert (f"{year}-{month + 1:02d}", trainer.attention) == (line["date"], line["attention"]), line
        assert trainer.known == (line["trainer"] != "unknown"), line


def test_a_release_has_what_came_before_it() -> None:
    """Permutation in one kernel came with Core 0.11, DeepEP with 0.12, the router's kernel with 0.14: by any name."""
    by_name = {
        "NeMo 24.12": (False, "alltoall", False), "NeMo 25.02": (True, "alltoall", False),
        "Megatron-LM (2025-06, core 0.12)": (True, "deepep", False), "megatron-core 0.14": (True, "deepep", True),
        "Megatron-Bridge 0.1": (True, "deepep", True), "megatron": (True, "deepep", True),
        "NeMo 2.3": (True, "deepep", False),
    }  # fmt: skip
    for name, has in by_name.items():
        trainer = find_framework(name)
        assert (trainer.permute_fusion, trainer.dispatcher, trainer.router_fusion) == has, name
    assert find_framework("megatron", "24.07") == replace(
        find_framework("megatron-lm 24.07"), asked="megatron", version="24.07"
    )


def test_amds_stack_lacks_what_megatron_lacks() -> None:
    amd = of_framework(find_framework("AMD PyTorch (MLPerf, 2025-10)"))
    assert amd.missing({"pp": 4, "schedule": "zbv"}) == []  # Primus has schedules without bubbles
    assert amd.missing({"pp": 4, "schedule": "dualpipe"}) == ["schedule dualpipe"]
    assert amd.missing({"pp": 2, "zero_stage": 3}) == ["zero_stage 3 with pp 2"]
