"""nanotron's YAML: written, read again, and read from the forms in which people have it."""

from __future__ import annotations

from typing import Any

import pytest

from emit.limited import document_of, limited_runs, reported, reread, run_of, written
from emit.random_runs import COUNTS, DENSE, MIXTURE, differences
from scalewright.emit.nanotron.run import read
from scalewright.emit.question import as_run
from scalewright.emit.write import emit
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec

KEYS = ("layout", "model", "optimizer", "data.seq_len", "train.steps", "seed", "lr_schedule")
LLAMA: dict[str, Any] = {
    "general": {"project": "p", "run": "r", "seed": 7},
    "model": {
        "dtype": "bfloat16", "init_method": {"std": 0.02}, "model_config": {
            "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
            "num_hidden_layers": 4, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "vocab_size": 512, "tie_word_embeddings": True, "is_llama_config": True, "rope_scaling": None,
        },
    },
    "optimizer": {
        "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "clip_grad": 1.0, "weight_decay": 0.01,
        "zero_stage": 0, "learning_rate_scheduler": {
            "learning_rate": 1e-3, "lr_warmup_steps": 10, "lr_decay_style": "cosine", "lr_decay_steps": 90,
            "min_decay_lr": 1e-4,
        },
    },
    "parallelism": {"dp": 4, "pp": 2, "tp": 2, "pp_engine": "afab", "tp_mode": "ALL_REDUCE"},
    "tokens": {"sequence_length": 256, "train_steps": 100, "micro_batch_size": 2,
               "batch_accumulation_per_replica": 4},
}  # fmt: skip


def changed(part: str, **keys: Any) -> dict[str, Any]:
    """The file above with other keys in one section."""
    return {**LLAMA, part: {**LLAMA[part], **keys}}


@COUNTS
def test_random_runs_come_back(count: int) -> None:
    made = 0
    for settings in limited_runs({"cp": 1, "ep": 1}, count, seed=3):
        emitted = written("nanotron", settings)
        if isinstance(emitted, str):
            assert "nanotron can't run dp_replicate" in emitted
            continue
        made += 1
        reading = reread(emitted)
        assert not differences(settings, emitted, reading, KEYS), settings.layout
        assert not reading.unread
    assert made > (150 if count == 200 else 32)  # three of four; of 50, some 3 more or fewer by chance


def test_the_same_run_gives_the_same_text() -> None:
    layout = {"devices": 16, "tp": 2, "pp": 2, "micro_batch": 2, "global_batch": 32}
    first, second = (emit("nanotron", run_of(layout=layout)) for _ in range(2))
    assert first == second
    assert "--nnodes 2 --nproc-per-node 8" in first.command


def test_dp_is_written_and_the_batch_is_counted_by_it() -> None:
    layout = {"devices": 16, "tp": 2, "pp": 2, "micro_batch": 2, "global_batch": 64}
    document = document_of(emit("nanotron", run_of(layout=layout)))
    assert document["parallelism"]["dp"] == 4
    assert document["tokens"]["batch_accumulation_per_replica"] == 8
    assert document["optimizer"]["zero_stage"] == 1


@pytest.mark.parametrize(("kind", "expected"), [
    ("cosine", ("cosine", None, 180)), ("linear", ("linear", None, 180)),
    ("wsd", ("linear", 160, 40)), ("constant", ("linear", None, 180)),
])  # fmt: skip
def test_schedules(kind: str, expected: tuple[str, int | None, int]) -> None:
    settings = run_of(lr_schedule={"kind": kind, "warmup_steps": 20, "min_ratio": 0.1}, optimizer={"lr": 1e-3})
    rates = document_of(emit("nanotron", settings))["optimizer"]["learning_rate_scheduler"]
    assert (rates["lr_decay_style"], rates["lr_decay_starting_step"], rates["lr_decay_steps"]) == expected
    assert rates["min_decay_lr"] == pytest.approx(1e-3 if kind == "constant" else 1e-4)


def test_a_mixture_with_a_shared_expert() -> None:
    moe = {"num_experts": 8, "top_k": 2, "moe_intermediate_size": 2816, "num_shared_experts": 1,
           "shared_gate": True, "dense_layers": [3]}  # fmt: skip
    settings = run_of(
        model={**MIXTURE, "moe": moe},
        layout={"devices": 8, "tp": 2, "etp": 2, "zero_stage": 1, "precision": "bf16", "global_batch": 8},
    )
    emitted = emit("nanotron", settings)
    config = document_of(emitted)["model"]["model_config"]["moe_config"]
    assert config["layers"] == [layer for layer in range(16) if layer != 3]
    assert config["enable_shared_expert"]
    assert not [item for item in (*emitted.dropped, *emitted.changed) if item.key.startswith("model")]
    assert not differences(settings, emitted, reread(emitted), ("model", "layout"))


def test_experts_are_split_over_tp() -> None:
    settings = run_of(model=MIXTURE, layout={"devices": 8, "tp": 2, "global_batch": 8})
    assert reported(emit("nanotron", settings))["layout.etp"] == "2"


@pytest.mark.parametrize(("size", "value"), [("cp", 2), ("ep", 2), ("tp", 16)])
def test_sizes_that_it_lacks_are_refused(size: str, value: int) -> None:
    layout = {"devices": 16, size: value, "global_batch": 64}
    model = {**MIXTURE, "num_key_value_heads": 8} if size == "ep" else DENSE
    with pytest.raises(UserError, match=rf"nanotron can't run {size} {value}"):
        emit("nanotron", run_of(model=model, layout=layout))


def test_keys_without_a_word_are_reported() -> None:
    keys = {"optimizer": {"name": "muon"}, "train": {"steps": 9, "valid_every": 3}, "data": {
        "train": "a", "valid": "b", "seq_len": 2048}, "layout": {"devices": 8, "recompute": {"every": 2},
        "offload": "activations", "precision": "fp8", "global_batch": 8}}  # fmt: skip
    emitted = emit("nanotron", run_of(**keys))
    assert {"optimizer.name", "data.valid", "train.valid_every", "layout.recompute", "layout.offload",
            "layout.precision", "layout.zero_stage"} <= reported(emitted).keys()  # fmt: skip


def test_an_older_file() -> None:
    """Adam's numbers beside the schedule, no data stages, nulls."""
    reading = read(LLAMA, "", "x.yaml")
    run = as_run(reading, "x.yaml")
    layout = {"devices": 16, "tp": 2, "pp": 2, "schedule": "gpipe", "micro_batch": 2, "global_batch": 32}
    assert {key: run.layout.dump()[key] for key in layout} == layout
    assert not run.layout.sp
    assert run.lr_schedule.dump() == {"kind": "cosine", "warmup_steps": 10, "decay_steps": None, "min_ratio": 0.1}
    assert isinstance(run.model, ModelSpec)
    assert (run.model.kv_heads, run.seed, run.seq_len) == (2, 7, 256)
    assert not reading.unread


def test_a_decay_that_begins_late_is_wsd() -> None:
    rates = {**LLAMA["optimizer"]["learning_rate_scheduler"], "lr_decay_starting_step": 80, "lr_decay_steps": 20}
    reading = read(changed("optimizer", learning_rate_scheduler=rates), "", "x.yaml")
    run = as_run(reading, "x.yaml")
    assert (run.lr_schedule.kind, run.lr_schedule.decay_steps) == ("wsd", 20)
    assert "the decay of lr_schedule wsd is a line: theirs is cosine" in reading.assumed


def test_expert_ranks_are_taken_as_data_parallel_ones() -> None:
    """Their world is ep x pp x dp x tp, and the ranks of ep take the same samples."""
    config = {**LLAMA["model"]["model_config"], "is_llamoe_config": True, "moe_num_experts": 4,
              "num_experts_per_tok": 1, "moe_capacity_factor": 1}  # fmt: skip
    document = {**changed("parallelism", expert_parallel_size=2), "model": {"model_config": config}}
    reading = read(document, "", "x.yaml")
    layout = as_run(reading, "x.yaml").layout
    assert (layout.devices, layout.dp, layout.ep, layout.etp, layout.global_batch) == (32, 8, 2, 2, 32)
    assert any("expert ranks" in text for text in reading.assumed)


def test_context_parallelism_of_its_branch() -> None:
    config = {**LLAMA["model"]["model_config"], "_attn_implementation": "llama3_ring_attention"}
    document = {**changed("parallelism", context_parallel_size=4), "model": {"model_config": config}}
    layout = Layout.parse(read(document, "", "x.yaml").run["layout"])
    assert (layout.cp, layout.cp_kind, layout.devices) == (4, "allgather", 64)


def test_data_of_stages() -> None:
    stages = [
        {"name": "a", "data": {"dataset": {"dataset_folder": {"one": 0.8, "two": 0.2}}}},
        {"name": "b", "data": {"dataset": {"dataset_folder": "three"}}},
    ]
    reading = read({**LLAMA, "data_stages": stages}, "", "x.yaml")
    assert reading.run["data"]["train"] == [{"path": "one", "weight": 0.8}, {"path": "two", "weight": 0.2}]
    assert [(item.key, item.value) for item in reading.unread] == [("data_stages[1]", "three")]
    texts = [{"name": "a", "data": {"dataset": {"hf_dataset_or_datasets": "some/texts"}}}]
    (unread,) = read({**LLAMA, "data_stages": texts}, "", "x.yaml").unread
    assert "scalewright prepare" in unread.why


def test_what_a_run_lacks_is_reported() -> None:
    document = {**changed("model", init_method={"use_mup": True}), "doremi": {"domain_names": "a, b"},
                "checkpoints": {"resume_checkpoint_path": "there", "checkpoint_interval": 20}}  # fmt: skip
    reading = read(document, "", "x.yaml")
    assert [item.key for item in reading.unread] == [
        "model.init_method.use_mup", "doremi.domain_names", "checkpoints.resume_checkpoint_path",
    ]  # fmt: skip
    assert reading.run["checkpoint"] == {"every": 20}


def test_other_networks_are_left_out() -> None:
    document = changed("model", model_config={"is_mamba_config": True, "d_model": 64, "num_hidden_layers": 2})
    with pytest.raises(UserError, match="the model isn't in this configuration"):
        as_run(read(document, "", "x.yaml"), "x.yaml")


@pytest.mark.parametrize("document", [
    changed("parallelism", tp="two"), changed("tokens", micro_batch_size=[1]), {**LLAMA, "data_stages": 3},
    changed("optimizer", learning_rate_scheduler={"learning_rate": "fast"}),
])  # fmt: skip
def test_values_of_another_kind(document: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        read(document, "", "x.yaml")
