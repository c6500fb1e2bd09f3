"""A plan's run file: `train` accepts it, and it contains the layout's keys that aren't defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plan.searches import search
from scalewright.plan.search.run_file import PLACEHOLDER, run_file
from scalewright.plan.search.search import Plan
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import DataSpec, load_run

LLAMA, H100 = load_model_spec("llama-3.1-8b"), load_cluster("dgx-h100")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return search(LLAMA, H100, devices=64, seq_len=4096, global_batch=128, top=10)


def read(text: str, folder: Path) -> tuple[Layout, DataSpec, str, object]:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    run = load_run(path)
    assert isinstance(run.data, DataSpec)
    assert isinstance(run.model, str) or run.model == LLAMA.replace(name="mine")
    return run.layout, run.data, run.name, run.cluster


def test_a_run_file_contains_the_whole_layout(plan: Plan, tmp_path: Path) -> None:
    text = run_file(plan, data="shards")
    assert text is not None
    layout, data, _, cluster = read(text, tmp_path)
    assert plan.trainable is not None
    assert layout == plan.trainable.layout
    check_layout(layout, LLAMA, data.seq_len, train=True)
    assert (data.seq_len, data.train[0].path, cluster) == (4096, "shards", "dgx-h100")
    assert not re.search(r"null|stage_layers|cp_kind|\b(cp|etp|dp_replicate): 1|offload", text), "defaults"
    assert len(text.splitlines()) < 16


def test_without_data_one_line_is_marked_to_fill_in(plan: Plan, tmp_path: Path) -> None:
    text = run_file(plan)
    assert text is not None
    marked = [line for line in text.splitlines() if "FILL-IN" in line]
    assert len(marked) == 1
    _, data, _, _ = read(text, tmp_path)
    assert data.train[0].path == PLACEHOLDER


def test_a_custom_model_and_cluster_are_written_in_full(tmp_path: Path) -> None:
    model, cluster = LLAMA.replace(name="mine"), load_cluster({"like": "dgx-h100", "nodes": 2})
    plan = search(model, cluster, devices=16, seq_len=4096, global_batch=32)
    text = run_file(plan, data="shards")
    assert text is not None
    _, _, name, written = read(text, tmp_path)
    assert name == "mine-16"
    assert load_cluster(written).dump() == cluster.dump()  # type: ignore[arg-type]


def test_a_plan_that_train_cannot_run_has_no_run_file() -> None:
    hybrid = load_model_spec("qwen3-next-80b-a3b")
    mixed = search(hybrid, H100, devices=16, seq_len=4096, global_batch=32, fixed={"tp": 1})
    assert mixed.trainable is None
    assert run_file(mixed) is None


@pytest.mark.parametrize("name", ["gpt-oss-20b", "llama-4-scout"])
def test_mixtures_with_stacked_experts_have_a_run_file(name: str) -> None:
    model = load_model_spec(name)
    plan = search(model, H100, devices=64, seq_len=4096, global_batch=128, fixed={"tp": 1, "cp": 1, "pp": 1})
    assert plan.trainable is not None
    assert run_file(plan) is not None


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028"])
def test_no_name_adds_a_key(tmp_path: Path, end: str) -> None:
    cluster = H100.replace(name=f"x{end}init: elsewhere #")
    text = run_file(search(LLAMA, cluster, devices=8, seq_len=4096, global_batch=8), data="shards")
    assert text is not None
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    assert load_run(path).init == "random"
