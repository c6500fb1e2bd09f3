"""torchtitan's Python and TOML: written, read again, and read from every release's form."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from emit.random_runs import COUNTS, differences, random_runs
from scalewright.emit.question import as_run
from scalewright.emit.read import read_text
from scalewright.emit.settings import Settings, settings_of
from scalewright.emit.torchtitan.flavors import FLAVORS, READ, flavor_of, spec_of
from scalewright.emit.write import emit
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec, model_presets
from scalewright.spec.run import RunSpec

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

KEYS = ("layout", "model", "optimizer", "data.seq_len", "train.steps", "seed", "lr_schedule")
TRAINING = tuple(key for key in KEYS if key != "model")


def a_run(version: str | None = None, **keys: Any) -> Settings:
    """Settings of a run of Llama 3.1 8B with these keys."""
    layout = {"devices": 8, "zero_stage": 3, "precision": "bf16", "global_batch": 8, **keys.pop("layout", {})}
    run = {"model": "llama-3.1-8b", "layout": layout, "data": {"train": "c", "seq_len": 8192}, **keys}
    settings = settings_of(RunSpec.parse(run))
    settings.version = version
    return settings


@COUNTS
def test_random_runs_come_back(count: int) -> None:
    for settings in random_runs(count, seed=3):
        emitted = emit("torchtitan", settings)
        reading = read_text(emitted.files["titan.py"], ".py", "titan.py")
        assert not differences(settings, emitted, reading, KEYS), settings.layout
        assert not reading.unread


def test_random_runs_come_back_from_the_toml_of_0_2() -> None:
    refused = 0
    for settings in random_runs(100, seed=4):
        settings.version = "0.2.2"
        if settings.model.moe and settings.layout.pp > 1:  # which 0.2's Qwen3 can't
            with pytest.raises(UserError, match=r"0\.3"):
                emit("torchtitan", settings)
            refused += 1
            continue
        emitted = emit("torchtitan", settings)
        reading = read_text(emitted.files["titan.toml"], ".toml", "titan.toml")
        assert not differences(settings, emitted, reading, TRAINING), settings.layout
        assert [item.key for item in reading.unread] == ["model.flavor"]  # its sizes are in own_model.py
        assert tomllib.loads(emitted.files["titan.toml"])["model"]["name"] == "own"
    assert 0 < refused < 30


@pytest.mark.parametrize("release", ["0.1", "0.2", "0.3"])
@pytest.mark.parametrize("name", sorted(FLAVORS))
def test_flavors_are_written_and_read_by_their_names(name: tuple[str, str], release: str) -> None:
    flavor = FLAVORS[name]
    model = spec_of(flavor)
    written = flavor_of(model, release)
    assert written == (name if release in flavor.releases else written)
    if written != name:
        return
    settings = a_run(release, model=model.dump(), layout={"ep": 1}, data={"train": "c", "seq_len": 2048})
    emitted = emit("torchtitan", settings)
    file, text = next(iter(emitted.files.items()))
    assert len(emitted.files) == 1
    assert name[1] in text
    reading = read_text(text, ".py" if file.endswith(".py") else ".toml", file)
    back = as_run(reading, file).model
    assert flavor_of(load_model_spec(back), release) == name  # type: ignore[arg-type]


def test_flavors_are_presets() -> None:
    assert {flavor.preset for flavor in (*FLAVORS.values(), *READ.values())} <= set(model_presets())


def test_latent_attention_of_other_sizes_comes_back() -> None:
    keys = {**load_model_spec("deepseek-v2-lite").dump(), "num_hidden_layers": 5, "norm_eps": 1e-5}
    settings = a_run(model=keys, layout={"ep": 4, "tp": 2})
    emitted = emit("torchtitan", settings)
    assert "latent_decoder(" in emitted.files["titan.py"]
    assert not emitted.dropped
    reading = read_text(emitted.files["titan.py"], ".py", "titan.py")
    assert not differences(settings, emitted, reading, tuple(key for key in KEYS if key != "model"))
    back = as_run(reading, "titan.py").model
    assert (back.mla, back.moe) == (settings.model.mla, settings.model.moe)
    assert back.query_scale == pytest.approx(settings.model.query_scale, rel=1e-5)  # printed with six digits


def test_a_pipeline_counts_all_micro_batches() -> None:
    layout = {"pp": 2, "micro_batch": 2, "global_batch": 64, "schedule": "1f1b", "stage_layers": [17, 15]}
    text = emit("torchtitan", a_run(layout=layout)).files["titan.py"]
    assert "local_batch_size=16" in text  # 64 sequences over dp 4
    assert "pipeline_parallel_microbatch_size=2" in text
    assert "disable_cuda_graphs=True" in text
    assert '"layers.16"], ["layers.17"' in text
    back = read_text(text, ".py", "titan.py").run["layout"]
    assert (back["micro_batch"], back["global_batch"], back["stage_layers"]) == (2, 64, [17, 15])


@pytest.mark.parametrize("release", ["0.1", "0.2", "0.3"])
@pytest.mark.parametrize(
    ("cut", "pp"), [("0,1x32,0", 17), ("2,1x28,2", 15), ("0,1x30,2", 16), ("1x32", 16), ("0,16x2,0", 2)]
)
def test_stages_of_the_ends_alone_come_back(release: str, cut: str, pp: int) -> None:
    layout = {"devices": pp, "pp": pp, "schedule": "interleaved", "stage_layers": cut, "global_batch": 4 * pp}
    given = Layout.parse(layout).stage_layers
    assert given is not None
    assert len(given) == 2 * pp
    (file, text), *_ = emit("torchtitan", a_run(release, layout=layout)).files.items()
    reading = read_text(text, ".py" if file.endswith(".py") else ".toml", file)
    assert reading.run["layout"]["stage_layers"] == [*given]


def test_what_only_some_releases_have_is_reported() -> None:
    keys: dict[str, Any] = {
        "data": {"train": "c", "seq_len": 8192, "document_mask": True},
        "train": {"steps": 10, "valid_every": 5},
        "layout": {"cp": 2, "cp_kind": "ring"},
    }
    lost = {}
    for release in ("0.1", "0.2", "0.3"):
        emitted = emit("torchtitan", a_run(release, **keys))
        lost[release] = {item.key for item in (*emitted.dropped, *emitted.changed)}
    old = {"train.valid_every", "data.document_mask", "model.rope.scaling.factor"}
    assert lost == {"0.1": old, "0.2": {"data.document_mask"}, "0.3": {"layout.cp_kind"}}
    assert 'context_parallel_load_balancer="ptrr"' in emitted.files["titan.py"]


def test_no_recomputation_is_said_since_the_default_is_selective() -> None:
    text = emit("torchtitan", a_run(layout={"recompute": "none"})).files["titan.py"]
    assert "activation_checkpoint=None" in text
    bare = "import torchtitan\ndef llama3_8b():\n    return Trainer.Config(model_spec=model_registry('8B'))"
    assert read_text(bare, ".py", "x.py").run["layout"]["recompute"] == "selective"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"layout": {"tp": 8}, "model": "qwen3-30b-a3b"}, "tp 8 doesn't divide"),
        ({"layout": {"pp": 2}, "model": "llama-3.2-1b"}, "tied"),
        ({"layout": {"ep": 2, "etp": 2, "tp": 2}, "model": "mixtral-8x7b"}, "etp 2"),
        ({"version": "0.2", "layout": {"pp": 2}, "model": "qwen3-8b"}, "pipeline"),
        ({"version": "0.1", "model": "qwen3-8b"}, "0.1"),
        ({"layout": {"cp": 2}, "data": {"train": "c", "seq_len": 640}}, "blocks"),
        ({"layout": {"pp": 4, "devices": 4, "global_batch": 9, "schedule": "interleaved"}}, "rounds"),
    ],
)
def test_layouts_that_it_cannot_run_are_refused(keys: dict[str, Any], message: str) -> None:
    settings = a_run(**keys)
    with pytest.raises(UserError, match=message):
        emit("torchtitan", settings)


YEAR_2024 = """
# NOTE: this toml config is a preset for 16 A100 GPUs.
[model]
name = "llama3"
flavor = "8B"
norm_type = "rmsnorm"
[optimizer]
name = "AdamW"
lr = 3e-4
[training]
batch_size = 4
seq_len = 8192
warmup_steps = 200
steps = 1000
data_parallel_degree = -1
tensor_parallel_degree = 2
compile = false
[experimental]
pipeline_parallel_degree = 2
pipeline_parallel_split_points = "layers.20"
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
[float8]
enable_float8_linear = true
"""
YEAR_2025 = """
[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]
tokenizer_path = "x"
[lr_scheduler]
warmup_steps = 10
decay_ratio = 0.2
lr_min = 0.1
[training]
local_batch_size = 8
steps = 100
surprise = 1
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "interleaved1f1b"
pipeline_parallel_layers_per_stage = 11
context_parallel_degree = 2
context_parallel_rotate_method = "alltoall"
[checkpoint]
enable_checkpoint = true
"""


def test_the_toml_of_2024_is_read() -> None:
    reading = read_text(YEAR_2024, ".toml", "llama3.toml")
    layout = reading.run["layout"]
    assert reading.run["model"] == "llama-3-8b"
    assert (layout["devices"], layout["tp"], layout["pp"], layout["zero_stage"]) == (16, 2, 2, 2)
    assert (layout["stage_layers"], layout["recompute"]) == ([20, 12], {"every": 2})
    assert layout["precision"] == "fp8"
    assert reading.run["lr_schedule"] == {"kind": "linear", "warmup_steps": 200, "min_ratio": 0.0}
    assert not reading.unread
    as_run(reading, "llama3.toml")


@pytest.mark.parametrize(("release", "lacks"), [(None, False), ("0.2", False), ("0.3", True)])
def test_a_toml_s_own_recomputation_is_one_that_its_release_has(
    release: str | None, lacks: bool, tmp_path: Any, call_cli: Any
) -> None:
    path = tmp_path / "llama3.toml"
    path.write_text(YEAR_2024)
    flags = ["--software-version", release] if release else []
    answer = call_cli("predict", "--from", path, "--cluster", "dgx-h100", "--devices", "64", *flags, "--json").json()
    assert answer["layout"]["recompute"] == {"every": 2}
    assert ("recompute every 2" in answer["lacks"]) == lacks, answer["lacks"]


def test_the_toml_of_0_1_is_read() -> None:
    reading = read_text(YEAR_2025, ".toml", "llama3.toml")
    layout = reading.run["layout"]
    assert (layout["devices"], layout["dp_replicate"], layout["zero_stage"]) == (64, 2, 2)
    assert (layout["schedule"], layout["virtual_stages"], layout["cp_kind"]) == ("interleaved", 2, "ring")
    assert layout["stage_layers"] == [10, 11, 10, 10, 10, 10, 10, 9]  # its ends count as a layer
    assert reading.run["lr_schedule"] == {"kind": "wsd", "warmup_steps": 10, "min_ratio": 0.1, "decay_steps": 20}
    assert [item.key for item in reading.unread] == ["training.surprise"]


REGISTRY = """
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import llama3_70b

def debugmodel():
    return Trainer.Config(model_spec=model_registry("debugmodel"), training=TrainingConfig(steps=10))

def eight() -> Trainer.Config:
    model_spec = model_registry("8B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])])
    return Trainer.Config(
        loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec)),
        model_spec=model_spec,
        optimizer=default_adamw(lr=3e-4, betas=(0.9, 0.98)),
        training=TrainingConfig(local_batch_size=1, seq_len=8192, steps=1000 * SCALE),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        activation_checkpoint=FullAC.Config(),
    )

def wider():
    config = eight()
    config.parallelism.tensor_parallel_degree = 2
    config.parallelism.data_parallel_shard_degree = 4
    config.activation_checkpoint = None
    for part in config.parts:
        part.enable()
    return config

def seventy():
    config = llama3_70b()
    config.training.seq_len = 4096
    return config
"""


def test_functions_are_followed_and_never_run() -> None:
    reading = read_text(REGISTRY, ".py", "registry.py")
    assert reading.assumed[0].startswith("function eight of debugmodel, eight, wider, seventy")
    assert (reading.run["model"], reading.run["layout"]["precision"]) == ("llama-3.1-8b", "fp8")
    assert (reading.run["optimizer"]["betas"], reading.run["train"]["steps"]) == ([0.9, 0.98], 10000)
    assert [(item.key, item.value) for item in reading.unread] == [("training.steps", "1000 * SCALE")]
    wider = read_text(REGISTRY + "# --config wider", ".py", "registry.py")
    assert (wider.run["layout"]["tp"], wider.run["layout"]["devices"]) == (2, 8)
    assert wider.run["layout"]["recompute"] == "none"
    assert [item.key for item in wider.unread] == ["training.steps", "wider()"]
    seventy = read_text(REGISTRY + "# --config seventy", ".py", "registry.py")
    assert (seventy.run["model"], seventy.run["data"]["seq_len"]) == ("llama-3.1-70b", 4096)
    assert "is in another file" in seventy.assumed[1]


def test_a_value_of_another_kind_is_a_users_error() -> None:
    with pytest.raises(UserError, match="torchtitan"):
        read_text(YEAR_2025.replace("steps = 100", 'steps = "many"'), ".toml", "x.toml")
    with pytest.raises(UserError, match="Trainer"):
        read_text("import torchtitan\ndef f(): return 1", ".py", "x.py")


@pytest.mark.parametrize(
    ("degrees", "sizes"),
    [
        ("tensor_parallel_degree = 4", (1, 4)),  # without expert parallelism, tp cuts experts too
        ("tensor_parallel_degree = 4\nexpert_parallel_degree = 4", (4, 1)),
        ("tensor_parallel_degree = 4\nexpert_parallel_degree = 2\nexpert_tensor_parallel_degree = 4", (2, 4)),
        ("tensor_parallel_degree = 1", (1, 1)),
    ],
)
@pytest.mark.parametrize(("name", "flavor"), [("deepseek_v3", "671B"), ("deepseek_v3", "16B"), ("llama3", "8B")])
def test_experts_are_cut_alike_by_name_and_by_keys(
    name: str, flavor: str, degrees: str, sizes: tuple[int, int]
) -> None:
    text = f'[model]\nname = "{name}"\nflavor = "{flavor}"\n[training]\nsteps = 10\n[parallelism]\n{degrees}\n'
    layout = read_text(text, ".toml", "x.toml").run["layout"]
    expected = sizes if name == "deepseek_v3" else (1, 1)
    assert (layout["ep"], layout["etp"]) == expected


@pytest.mark.parametrize("method", ['semi_sync_method = "diloco"', 'semi_sync_method = "local_sgd"\ngroup_size = 4'])
@pytest.mark.parametrize("enabled", [True, False])
def test_fault_tolerance_is_reported_where_it_is_on(method: str, enabled: bool) -> None:
    text = f"[training]\nsteps = 10\n[fault_tolerance]\nenable = {str(enabled).lower()}\n{method}\n"
    keys = [item.key for item in read_text(f'[model]\nname = "llama3"\nflavor = "8B"\n{text}', ".toml", "x").unread]
    assert ("fault_tolerance.semi_sync_method" in keys) == enabled
    assert all(key.startswith("fault_tolerance.") for key in keys)


def test_a_computed_key_is_named_with_its_default() -> None:
    unread = {item.key: item.why for item in read_text(REGISTRY, ".py", "config.py").unread}
    assert "its default stands for it" in unread["training.steps"]
