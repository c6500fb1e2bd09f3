"""What `engine: deepspeed` refuses before a process starts, each time with a way out; its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runs import run_data
from scalewright.dry_run.dry_run import dry_run
from scalewright.emit.settings import settings_of
from scalewright.emit.write import emit
from scalewright.plan.request import from_question
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec
from scalewright.train.deepspeed import check
from scalewright.train.deepspeed.initialize import engine_config
from scalewright.train.resolve import resolve

TWO = {"devices": 2, "zero_stage": 2}
PIPE = {"devices": 4, "pp": 2, "zero_stage": 1, "micro_batch": 2}


def run_of(folder: Path = Path(), **changes: Any) -> RunSpec:
    return RunSpec.parse(run_data(folder, **{"engine": "deepspeed", **changes}))


def check_run(run: RunSpec, monkeypatch: pytest.MonkeyPatch, installed: bool = True) -> None:
    monkeypatch.setattr(check, "find_spec", lambda name: name if installed else None)
    resolve(run, read_data=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layout": {"devices": 2, "tp": 2}}, r"tp 2: .*AutoTP.*layout.tp.*use tp 1, or engine: scalewright"),
        ({"layout": {"devices": 2, "cp": 2, "zero_stage": 3}}, r"cp 2: .*Ulysses.*use cp 1"),
        ({"layout": {"devices": 4, "dp_replicate": 2, "zero_stage": 3}}, r"shards over all ranks.*use dp_replicate 1"),
        ({"layout": {**PIPE, "zero_stage": 2}}, r"zero_stage 2 with pp 2 .*use zero_stage 1"),
        ({"layout": {**PIPE, "schedule": "gpipe"}}, r"schedule gpipe .*layout.schedule.*use schedule 1f1b"),
        ({"layout": {**TWO, "offload": "all", "zero_stage": 3}}, r"offload all .*none or optimizer or param"),
        ({"layout": {**TWO, "offload": "optimizer", "zero_stage": 0}}, r"zero_stage 0 with offload optim"),
        ({"layout": {**TWO, "recompute": {"budget": 0.5}}}, r"recompute budget 0.5 .*full"),
        ({"layout": {**TWO, "zero_stage": 3, "recompute": "selective"}}, r"runs parts of one.*use full"),
        ({"layout": {**TWO, "precision": "fp16"}}, r"loss scale.*use bf16"),
        ({"layout": {"precision": "bf16"}}, r"sums gradients in bf16 at zero_stage 0.*use zero_stage 1"),
        ({"optimizer": {"name": "muon"}}, r"optimizer muon can't be handed.*use adamw or sgd"),
        ({"optimizer": {"python": "parts:momentum", "lr": 0.1}}, r"optimizer your own"),
        ({"train": {"guard": {"spike": "skip"}}}, r"spike: skip comes .*train.guard.spike.*use log"),
        ({"train": {"compile": True}}, r"break its graphs.*train.compile.*use auto"),
        (
            {"layout": {**PIPE, "zero_stage": 0}},
            r"clips all stages .* norm of the first.*use zero_stage 1, optimizer.clip_norm 0",
        ),
        (
            {"model": {"moe": {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 16}}},
            r"experts.*use engine: scalewright, or a dense model",
        ),
        ({"model": {"mtp_layers": 1}}, r"prediction modules.*train.mtp_weight.*set it to 0"),
    ],
)
def test_what_deepspeed_cannot_do(changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=words):
        check_run(run_of(**changes), monkeypatch)


@pytest.mark.parametrize(
    "layout",
    [
        *({"devices": 2, "zero_stage": stage} for stage in range(4)),
        PIPE,
        {**TWO, "offload": "optimizer"},
        {**TWO, "zero_stage": 3, "offload": "parameters", "recompute": {"every": 2}},
        {**TWO, "precision": "bf16", "recompute": "selective"},
    ],
)
def test_what_it_can(layout: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check_run(run_of(layout=layout), monkeypatch)


def test_it_has_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"deepspeed is not installed \(engine\): .*\.\[deepspeed\]"):
        check_run(run_of(layout=TWO), monkeypatch, installed=False)


def test_other_runs_do_not_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_run(run_of(engine="scalewright", layout={"devices": 2, "tp": 2}), monkeypatch, installed=False)


def test_a_dry_run_is_of_our_own_engine() -> None:
    with pytest.raises(UserError, match="plan it with --framework deepspeed"):
        dry_run(run_of(layout=TWO))


def test_it_is_predicted_as_deepspeed_is() -> None:
    cluster = load_cluster("dgx-h100")
    for engine in ("deepspeed", "scalewright"):
        run = run_of(engine=engine, layout=TWO)
        assert from_question(Question(run, cluster)).framework.name == engine


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_json_is_that_of_emit_and_more(stage: int, precision: str) -> None:
    """What `emit deepspeed` writes stands in the engine's document, but for what makes sums fp32."""
    layout = {"devices": 4, "zero_stage": stage, "precision": precision, "micro_batch": 2}
    run = run_of(layout=layout, optimizer={"name": "adamw", "lr": 1e-3})
    written = json.loads(emit("deepspeed", settings_of(run)).files["ds_config.json"])
    made = engine_config(run)
    assert {key: made[key] for key in written if key != "bf16"} == {
        key: value for key, value in written.items() if key != "bf16"
    }
    more = {"data_types": {"grad_accum_dtype": "fp32"}} if precision == "bf16" else {}
    assert {key: value for key, value in made.items() if key not in written} == more
    assert made["zero_optimization"]["stage"] == stage
    assert made["train_batch_size"] == 8


def test_options_are_laid_over_the_document() -> None:
    options = {"zero_optimization": {"reduce_bucket_size": 1000}, "wall_clock_breakdown": True}
    run = run_of(layout=TWO, engine_options=options)
    made = engine_config(run)
    assert made["zero_optimization"] == {
        "stage": 2, "overlap_comm": False, "contiguous_gradients": True, "reduce_bucket_size": 1000,
    }  # fmt: skip
    assert made["wall_clock_breakdown"] is True
    emitted = json.loads(emit("deepspeed", settings_of(run)).files["ds_config.json"])
    assert emitted["zero_optimization"]["reduce_bucket_size"] == 1000


def test_states_on_the_host_of_a_cpu_run_need_no_compiler() -> None:
    layout = {**TWO, "offload": "optimizer"}
    on_cpu, on_gpu = (
        engine_config(run_of(layout=layout, device=device, optimizer={"name": "adamw", "lr": 1e-3}))
        for device in ("cpu", "cuda")
    )
    assert on_cpu["optimizer"]["params"]["torch_adam"] is True
    assert "torch_adam" not in on_gpu["optimizer"]["params"]
