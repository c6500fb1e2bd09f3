"""litgpt, GPT-NeoX, MaxText, Levanter and Colossal-AI: written and read again, and their traps."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from emit.limited import document_of, limited_runs, reported, reread, run_of, written
from emit.random_runs import COUNTS, DENSE, MIXTURE, differences
from scalewright.emit.emitted import Reading
from scalewright.emit.maxtext.run import MODELS
from scalewright.emit.question import as_run
from scalewright.emit.trainers import TRAINERS, module_of
from scalewright.emit.write import emit
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import is_preset

KEYS = ("layout", "model", "optimizer", "data.seq_len", "train.steps", "seed", "lr_schedule")
FIXED: dict[str, dict[str, Any]] = {  # sizes that a trainer doesn't have
    "litgpt": {"tp": 1, "pp": 1, "cp": 1, "ep": 1},
    "gpt-neox": {"cp": 1, "ep": 1, "dp_replicate": 1},
    "maxtext": {},
    "levanter": {"pp": 1, "cp": 1, "ep": 1},
}
READ = list(FIXED)
REFUSALS = ("can't run", "mixtures of experts aren't written")


def read(name: str, document: dict[str, Any]) -> Reading:
    module = module_of(name)
    assert module.recognises(document, "")
    reading: Reading = module.read(document, "", "x.yaml")
    return reading


@pytest.mark.parametrize("name", READ)
@COUNTS
def test_random_runs_come_back(name: str, count: int) -> None:
    made = 0
    for settings in limited_runs(FIXED[name], count, seed=5, experts=name != "gpt-neox"):
        emitted = written(name, settings)
        if isinstance(emitted, str):
            assert any(text in emitted for text in REFUSALS)
            continue
        made += 1
        reading = reread(emitted)
        assert not differences(settings, emitted, reading, KEYS), settings.layout
        assert not reading.unread
    assert made > (150 if count == 200 else 32)  # three of four; of 50, some 3 more or fewer by chance


@pytest.mark.parametrize("name", [*READ, "nanotron"])
def test_a_file_is_recognised_by_its_own_reader_alone(name: str) -> None:
    emitted = emit(name, run_of(layout={"devices": 8, "global_batch": 8}))
    (text,) = emitted.files.values()
    others = [other for other, trainer in TRAINERS.items() if trainer.reads and other != name]
    assert not [other for other in others if module_of(other).recognises(document_of(emitted), text)]


def test_colossal_scripts_are_python() -> None:
    made = 0
    for settings in limited_runs({}, 200, seed=6):
        emitted = written("colossalai", settings)
        if isinstance(emitted, str):
            assert any(text in emitted for text in REFUSALS)
            continue
        made += 1
        ast.parse(emitted.files["train.py"])
        assert not [item for item in emitted.dropped if item.key.startswith("model")]
    assert made > 120


@pytest.mark.parametrize(("layout", "name", "arguments"), [
    ({"zero_stage": 2}, "HybridParallelPlugin", {"zero_stage": 2, "pp_size": 1}),
    ({"zero_stage": 3, "tp": 2, "dp_replicate": 2}, "GeminiPlugin", {"tp_size": 2, "extra_dp_size": 2}),
    ({"zero_stage": 3, "pp": 2}, "HybridParallelPlugin", {"zero_stage": 1, "pp_style": "1f1b"}),
    ({"pp": 2, "schedule": "zbv", "zero_stage": 1}, "HybridParallelPlugin",
     {"pp_style": "zbv", "num_model_chunks": 2}),
    ({"cp": 2, "cp_kind": "ulysses", "zero_stage": 1}, "HybridParallelPlugin",
     {"sequence_parallelism_mode": "all_to_all", "sp_size": 2}),
])  # fmt: skip
def test_colossal_plugins(layout: dict[str, Any], name: str, arguments: dict[str, Any]) -> None:
    script = emit("colossalai", run_of(layout={"devices": 16, "global_batch": 64, **layout})).files["train.py"]
    calls = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)]
    (plugin,) = [call for call in calls if ast.unparse(call.func) == name]
    given = {key.arg: ast.literal_eval(key.value) for key in plugin.keywords if key.arg != "scheduler_nodes"}
    assert {key: given[key] for key in arguments} == arguments
    assert ("zero_bubble(config)" in script) == (arguments.get("pp_style") == "zbv")


@pytest.mark.parametrize(("name", "key"), [
    ("litgpt", "layout.tp"), ("litgpt", "layout.pp"), ("gpt-neox", "layout.cp"), ("levanter", "layout.pp"),
    ("levanter", "layout.cp"),
])  # fmt: skip
def test_sizes_that_they_lack_are_refused(name: str, key: str) -> None:
    size = key.removeprefix("layout.")
    with pytest.raises(UserError, match=rf"can't run {size} 2"):
        emit(name, run_of(layout={"devices": 8, size: 2, "global_batch": 8}))


@pytest.mark.parametrize("name", [*READ, "colossalai"])
def test_keys_without_a_word_are_reported(name: str) -> None:
    keys = {"train": {"steps": 9, "valid_every": 3, "compress": "fp16"}, "profile": {"steps": [2]}, "data": {
        "train": ["a", "b"], "valid": "c", "seq_len": 2048}, "layout": {"devices": 8,
        "recompute": {"every": 2},
        "offload": "all", "zero_stage": 3, "precision": "nvfp4", "global_batch": 8}}  # fmt: skip
    emitted = emit(name, run_of(**keys))
    expected = {"train.compress", "layout.recompute", "layout.offload", "layout.precision"}
    assert expected <= reported(emitted).keys()
    assert ("data.valid" in reported(emitted)) == (name in ("litgpt", "levanter"))


# -- litgpt ------------------------------------------------------------------------------------------------


def test_litgpt_counts_tokens_and_shards_within_nodes() -> None:
    emitted = emit("litgpt", run_of(layout={"devices": 32, "global_batch": 64, "dp_replicate": 4}))
    document = document_of(emitted)
    assert document["train"]["max_tokens"] == 200 * 64 * 2048
    assert (document["devices"], document["num_nodes"]) == (8, 4)
    assert "layout.dp_replicate" not in reported(emitted)
    whole = emit("litgpt", run_of(layout={"devices": 32, "global_batch": 64}))
    assert reported(whole)["layout.dp_replicate"] == "4"


def test_litgpt_by_the_name_of_a_model() -> None:
    document = {"model_name": "pythia-14m", "precision": "bf16-true", "devices": "auto", "train": {
        "global_batch_size": 512, "micro_batch_size": 4, "max_tokens": 3e12, "lr_warmup_steps": 2000,
        "max_norm": 1.0, "min_lr": 4e-5}, "optimizer": "AdamW"}  # fmt: skip
    assert read("litgpt", document).run["model"] == "pythia-14m"
    reading = read("litgpt", document | {"model_name": "nobody's-14m"})
    assert "model" not in reading.run
    assert any("nobody's-14m" in text for text in reading.assumed)
    run = as_run(reading, "x.yaml", ["model=pythia-70m"])
    assert (run.layout.devices, run.layout.zero_stage, run.train.tokens) == (8, 3, 3e12)


def test_litgpt_norms_and_windows() -> None:
    model = {**DENSE, "qk_norm": "head", "norm_position": "both", "embedding_scale": 32.0,
             "sliding_window": 512, "window_pattern": [True, False]}  # fmt: skip
    settings = run_of(model=model, layout={"devices": 8, "global_batch": 8, "precision": "bf16"})
    emitted = emit("litgpt", settings)
    assert not reported(emitted)
    assert not differences(settings, emitted, reread(emitted), ("model", "layout"))


# -- GPT-NeoX ----------------------------------------------------------------------------------------------


def test_neox_writes_a_third_of_a_gated_mlp() -> None:
    """configs/llama2/7B.yml has 32768 and multiples of 256 for Llama's width of 11008."""
    document = document_of(emit("gpt-neox", run_of(layout={"devices": 8, "global_batch": 8})))
    assert document["intermediate_size"] == 3 * 2816
    foreign = {"num-layers": 4, "hidden-size": 4096, "num-attention-heads": 32, "pipe-parallel-size": 1,
              "model-parallel-size": 2, "max-position-embeddings": 4096, "seq-length": 4096,
              "activation": "swiglu", "intermediate_size": 32768, "mlp_multiple_of": 256,
              "train_micro_batch_size_per_gpu": 4,
              "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}}}  # fmt: skip
    run = as_run(read("gpt-neox", foreign), "x.yml")
    assert isinstance(run.model, ModelSpec)
    assert (run.model.intermediate_size, run.layout.tp, run.layout.devices) == (11008, 2, 2)


def test_neox_has_no_zero_2_with_a_pipeline() -> None:
    emitted = emit("gpt-neox", run_of(layout={"devices": 8, "pp": 2, "zero_stage": 3, "global_batch": 8}))
    assert reported(emitted)["layout.zero_stage"] == "1"
    assert document_of(emitted)["pipe_parallel_size"] == 2
    plain = document_of(emit("gpt-neox", run_of(layout={"devices": 8, "zero_stage": 3, "global_batch": 8})))
    assert (plain["pipe_parallel_size"], plain["zero_optimization"]["stage"]) == (0, 3)


def test_neox_counts_the_warm_up_into_the_decay() -> None:
    emitted = emit("gpt-neox", run_of(lr_schedule={"kind": "cosine", "warmup_steps": 30, "decay_steps": 90}))
    document = document_of(emitted)
    assert (document["lr_decay_iters"], document["warmup"]) == (120, 0.25)
    assert reread(emitted).run["lr_schedule"] == {
        "kind": "cosine", "warmup_steps": 30, "decay_steps": 90, "min_ratio": 0.1,
    }  # fmt: skip


def test_neox_mixtures_are_refused() -> None:
    with pytest.raises(UserError, match="mixtures of experts aren't written for GPT-NeoX"):
        emit("gpt-neox", run_of(model=MIXTURE))


# -- MaxText -----------------------------------------------------------------------------------------------


def test_maxtext_counts_every_device_in_a_batch() -> None:
    layout = {"devices": 32, "tp": 4, "cp": 2, "micro_batch": 2, "global_batch": 64, "zero_stage": 3}
    document = document_of(emit("maxtext", run_of(layout=layout)))
    assert document["per_device_batch_size"] == 2 / 8
    assert document["gradient_accumulation_steps"] == 8
    assert document["per_device_batch_size"] * 32 * 8 == 64


def test_maxtext_pipelines_accumulate_in_themselves() -> None:
    layout = {"devices": 16, "pp": 4, "schedule": "gpipe", "micro_batch": 2, "global_batch": 64, "zero_stage": 1}
    emitted = emit("maxtext", run_of(layout=layout))
    document = document_of(emitted)
    assert (document["num_pipeline_microbatches"], document["gradient_accumulation_steps"]) == (8, 1)
    assert document["num_layers_per_pipeline_stage"] == 4
    assert not [key for key in reported(emitted) if key.startswith("layout")]
    odd = emit("maxtext", run_of(layout={**layout, "global_batch": 48}))  # 6 micro-batches: 4 are a multiple of pp
    assert reported(odd)["layout.micro_batch"] == "3"


def test_maxtext_experts_take_ranks_of_fsdp() -> None:
    layout = {"devices": 16, "ep": 4, "tp": 2, "etp": 2, "dp_replicate": 2, "zero_stage": 3, "global_batch": 16}
    emitted = emit("maxtext", run_of(model=MIXTURE, layout=layout))
    document = document_of(emitted)
    sizes = [document[f"ici_{axis}_parallelism"] for axis in ("data", "fsdp", "expert", "tensor_sequence")]
    assert sizes == [2, 1, 4, 2]
    assert not [key for key in reported(emitted) if key.startswith("layout")]


def test_maxtext_shards_parameters_over_context_and_experts() -> None:
    emitted = emit("maxtext", run_of(layout={"devices": 8, "cp": 2, "zero_stage": 1, "global_batch": 8}))
    assert reported(emitted)["layout.zero_stage"] == "3 over cp"


def test_maxtext_with_what_base_yml_fills_in() -> None:
    reading = read("maxtext", {"model_name": "llama3.1-8b", "per_device_batch_size": 2,
                               "max_target_length": 8192, "ici_fsdp_parallelism": 8,
                               "dcn_data_parallelism": 2, "steps": 100})  # fmt: skip
    run = as_run(reading, "x.yml")
    assert run.model == "llama-3.1-8b"
    layout = run.layout
    assert (layout.devices, layout.dp_replicate, layout.zero_stage, layout.global_batch) == (16, 2, 3, 32)
    assert (layout.recompute, run.lr_schedule.warmup_steps) == ("full", 10)


def test_maxtext_axes_that_take_what_is_left() -> None:
    reading = read("maxtext", {"base_emb_dim": 1024, "ici_fsdp_parallelism": -1, "ici_tensor_parallelism": 4})
    assert any("ici_fsdp_parallelism" in text for text in reading.assumed)
    assert reading.run["layout"]["tp"] == 4


def test_maxtext_names_are_presets() -> None:
    assert [name for name in MODELS.values() if not is_preset(name)] == []


# -- Levanter ----------------------------------------------------------------------------------------------


def test_levanter_shares_of_the_run() -> None:
    document = {"model": {"type": "llama", "hidden_dim": 64, "num_heads": 4, "num_kv_heads": 4,
                          "num_layers": 2},
                "trainer": {"num_train_steps": 1000, "train_batch_size": 32, "mp": "p=f32,c=bfloat16",
                            "tensor_parallel_axes": ["mlp", "heads"], "model_axis_size": 4,
                            "tracker": {"type": "wandb"}},
                "optimizer": {"learning_rate": "4E-4", "warmup": 0.05, "decay": 0.2,
                              "lr_schedule": "linear"}}  # fmt: skip
    reading = read("levanter", document)
    run = as_run(reading, "x.yaml")
    assert (run.lr_schedule.kind, run.lr_schedule.warmup_steps, run.lr_schedule.decay_steps) == ("wsd", 50, 200)
    assert (run.layout.tp, run.layout.zero_stage, run.layout.precision) == (4, 3, "bf16")
    assert any(text.startswith("devices 4") for text in reading.assumed)
    assert not reading.unread


def test_levanter_whole_replicas() -> None:
    settings = run_of(layout={"devices": 8, "zero_stage": 0, "global_batch": 8})
    emitted = emit("levanter", settings)
    assert document_of(emitted)["trainer"]["fsdp_axis"] is None
    assert reread(emitted).run["layout"]["zero_stage"] == 0


# -- all ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "document"), [
    ("litgpt", {"model_name": "x", "train": {"micro_batch_size": "many", "global_batch_size": 4}}),
    ("gpt-neox", {"num_layers": "two", "model_parallel_size": 2, "hidden_size": 8, "num_attention_heads": 2}),
    ("maxtext", {"base_emb_dim": [1], "per_device_batch_size": 1}),
    ("levanter", {"trainer": {"num_train_steps": {"a": 1}, "mp": "f32", "model_axis_size": "x"}}),
])  # fmt: skip
def test_values_of_another_kind(name: str, document: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        read(name, document)
