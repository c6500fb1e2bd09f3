"""run.yaml: defaults, overrides, round trips through YAML and Python, and one line for each mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scalewright.spec.base import parse_yaml, to_yaml, write_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.devices import DeviceSpec, Link
from scalewright.spec.hardware.topology import Fabric, Level
from scalewright.spec.model import MLA, DeltaNet, Mamba, ModelSpec, MoE
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import DataSpec, OptimizerSpec, PythonRef, RunSpec, apply_override, load_run

LEAST: dict[str, Any] = {"model": "tiny", "data": {"train": "tokens"}}
MODEL = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_defaults_are_those_of_the_interface() -> None:
    run = RunSpec.parse(LEAST)
    assert (run.name, run.out_dir, run.resume, run.init, run.cluster) == ("run", "runs/run", "auto", "random", "local")
    assert isinstance(run.optimizer, OptimizerSpec)
    assert (run.optimizer.lr, run.optimizer.betas, run.optimizer.clip_norm) == (3e-4, (0.9, 0.95), 1.0)
    assert (run.train.steps, run.train.valid_batches, run.checkpoint.keep, run.checkpoint.at_end) == (1000, 16, 2, True)
    assert isinstance(run.data, DataSpec)
    assert (run.data.seq_len, run.data.train[0].path, run.data.valid) == (1024, "tokens", ())
    assert RunSpec.parse({**LEAST, "name": "mine"}).out_dir == "runs/mine"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": MODEL},
        {"model": {"python": "mine:build", "width": 3}},
        {"data": {"python": "mine:Data"}, "loss": {"python": "mine:loss"}, "optimizer": {"python": "mine:opt"}},
        {"layout": {"devices": 8, "tp": 2}, "train": {"tokens": 1e9}, "cluster": {"like": "dgx-h100"}},
        {"checkpoint": {"async": True, "every": 5}},
    ],
)
def test_round_trips(more: dict[str, Any], tmp_path: Path) -> None:
    run = RunSpec.parse({**LEAST, **more})
    assert RunSpec.parse(parse_yaml(to_yaml(run.dump()))) == run
    write_yaml(tmp_path / "run.yaml", run.dump())
    assert load_run(tmp_path / "run.yaml") == run


def test_overrides_reach_any_depth_and_read_numbers(tmp_path: Path) -> None:
    write_yaml(tmp_path / "run.yaml", LEAST)
    overrides = ["layout.devices=4", "optimizer.lr=3e-4", "data.valid=[a, b]", "train.tokens=2e6"]
    run = load_run(tmp_path / "run.yaml", overrides)
    assert run.layout.devices == 4
    assert isinstance(run.optimizer, OptimizerSpec)
    assert run.optimizer.lr == pytest.approx(3e-4, rel=0)
    assert run.train.tokens == 2e6
    assert run.train.steps is None
    assert isinstance(run.data, DataSpec)
    assert [source.path for source in run.data.valid] == ["a", "b"]


def test_the_last_override_wins_and_nulls_are_kept() -> None:
    data: dict[str, Any] = {}
    for text in ("layout.tp=2", "layout.tp=4", "layout.sp=null"):
        apply_override(data, text)
    assert data == {"layout": {"tp": 4, "sp": None}}


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("layout.tpp=2", ["layout.tpp", "tp"]),
        ("modle=tiny", ["modle", "model"]),
        ("optimizer.betas=[1]", ["optimizer"]),
        ("layout.recompute={evry: 2}", ["layout.recompute"]),
        ("layout", ["key=value"]),
        ("layout.tp.x=2", ["layout.tp"]),
        ("train.steps=-1", ["train.steps", "-1"]),
        ("name=a/b", ["name", "a/b"]),
        ("model.python=nothing", ["model", "python"]),
        ("layout={tp: 2", ["YAML"]),
        ("optimizer.lr=fast", ["optimizer", "lr", "fast"]),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(override: str, parts: list[str], tmp_path: Path) -> None:
    write_yaml(tmp_path / "run.yaml", {**LEAST, "layout": {"tp": 1}})
    with pytest.raises(UserError) as caught:
        load_run(tmp_path / "run.yaml", [override])
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_run(tmp_path / "absent.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match="keys and values"):
        load_run(tmp_path / "list.yaml")
    (tmp_path / "twice.yaml").write_text("name: a\nname: b\n")
    with pytest.raises(UserError, match="written twice"):
        load_run(tmp_path / "twice.yaml")


def test_steps_and_tokens_exclude_each_other() -> None:
    with pytest.raises(UserError, match="both given"):
        RunSpec.parse({**LEAST, "train": {"steps": 5, "tokens": 1e6}})


@pytest.mark.parametrize(
    ("others", "ours"),
    [("layers", "num_hidden_layers"), ("n_layer", "num_hidden_layers"), ("heads", "num_attention_heads"),
     ("n_embd", "hidden_size"), ("d_model", "hidden_size"), ("kv_heads", "num_key_value_heads"),
     ("ffn_hidden_size", "intermediate_size")],
)  # fmt: skip
def test_a_models_sizes_under_other_names_are_understood(others: str, ours: str) -> None:
    with pytest.raises(UserError, match=rf"unknown key '{others}'.*did you mean '{ours}'\?"):
        RunSpec.parse({**LEAST, "model": {others: 4}})


@pytest.mark.parametrize("extra", ["", "name: tiny\n", "vocab_size: 512\n"])
def test_a_models_own_file_is_no_run(tmp_path: Path, extra: str) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text("hidden_size: 64\nnum_hidden_layers: 2\nnum_attention_heads: 4\n" + extra)
    with pytest.raises(UserError, match=r"this is a model, not a run .*`model: .*tiny\.yaml`"):
        load_run(path)


@pytest.mark.parametrize("name", ["tiny.yaml", "models/tiny.yml", "theirs/config.json"])
def test_a_relative_path_that_leads_nowhere_says_where_it_begins(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run file may lie elsewhere: what it names is looked for in the folder of the command."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(f"check the path (you are in {tmp_path})")):
        load_model_spec(name)


@pytest.mark.parametrize("text", ["layout:\n\ttp: 2\n", "a: 1\nlayout:\n  tp: 2\n\tpp: 2\n", "\tname: x\n"])
def test_a_tab_is_named(text: str) -> None:
    with pytest.raises(UserError, match="write spaces in place of the tab"):
        parse_yaml(text, "run.yaml")


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("train.save_every", "checkpoint.every"), ("train.save_steps", "checkpoint.every"),
        ("train.eval_interval", "train.valid_every"), ("train.gradient_clipping", "optimizer.clip_norm"),
        ("train.gradient_accumulation_steps", "layout.global_batch"), ("layout.dp", "layout.devices"),
    ],
)  # fmt: skip
def test_names_that_others_use_lead_to_ours(key: str, ours: str) -> None:
    section, name = key.split(".")
    with pytest.raises(UserError, match=rf"unknown key '{key}'.*did you mean '{ours}'\?"):
        RunSpec.parse({"model": "tiny", "data": {"train": "x"}, section: {name: 8}})


def test_a_misspelt_key_is_named_with_its_section() -> None:
    with pytest.raises(UserError, match=r"unknown key 'train\.step'.*did you mean 'train\.steps'\?"):
        RunSpec.parse({**LEAST, "train": {"step": 5}})
    with pytest.raises(UserError, match=r"did you mean 'train\.steps'\?"):
        RunSpec.parse({**LEAST, "train": {"max_steps": 5}})
    with pytest.raises(UserError, match=r"did you mean 'train' or"):
        RunSpec.parse({**LEAST, "trian": {"steps": 5}})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, ["missing keys 'model', 'data' (run.yaml): add `model: tiny`, `data: data/shakespeare`"]),
        (
            {"model": {"vocab_size": 512, "hidden_size": 64}},
            ["missing key 'data' (run.yaml)", "'intermediate_size', 'num_hidden_layers', 'num_attention_heads' "
             "(run.yaml: model): add `intermediate_size: 14336`, `num_hidden_layers: 32`, `num_attention_heads: 32`"],
        ),
        (
            {"model": {**MODEL, "mla": {}, "moe": {"top_k": 2}}, "data": {"seq_len": 8}, "layout": {"devices": "two"}},
            ["'moe.num_experts', 'moe.moe_intermediate_size'", "`kv_lora_rank: 512`", "'mla.v_head_dim'",
             "missing key 'train' (run.yaml: data)", "layout.devices is 'two' (run.yaml): it should be a whole number"],
        ),
        (
            {**LEAST, "optimizer": {"lr": "high"}, "layout": {"zero_stage": 9}, "train": {"steps": -1}, "seed": -1},
            ["4 things to mend", "lr is 'high' (run.yaml: optimizer)", "layout.zero_stage is 9", "train.steps is -1",
             "seed is -1"],
        ),
        (
            {**LEAST, "launch": {"time_limit": "soon", "port": 5, "env": {"1": "2"}}, "track": {"mlflow": 3}},
            ["4 things to mend", "launch.port is 5", "launch.env", "'soon' won't do", "track.mlflow"],
        ),
        ({"model": "tiny", "data": {"train": [{}, {"weight": 2}]}},
         ["missing keys 'train.0.path', 'train.1.path' (run.yaml: data): add `path: data/shakespeare`"]),
    ],
)  # fmt: skip
def test_all_that_is_wrong_is_named_at_once(keys: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        RunSpec.parse(keys, "run.yaml")
    for part in words:
        assert part in str(caught.value)
    assert "give 1 or more" not in str(caught.value), "what follows from what is wrong inside"


def test_a_misspelt_key_explains_the_one_that_is_missing() -> None:
    model = {("vocab" if key == "vocab_size" else key): value for key, value in MODEL.items()}
    with pytest.raises(UserError) as caught:
        RunSpec.parse({**LEAST, "model": model}, "run.yaml")
    assert str(caught.value) == "unknown key 'vocab' (run.yaml: model): did you mean 'vocab_size'?"


def test_every_key_that_must_be_given_has_an_example() -> None:
    for spec in (RunSpec, DataSpec, ModelSpec, DeviceSpec, Level, Link, Fabric, MoE, MLA, Mamba, DeltaNet):
        with pytest.raises(UserError) as caught:
            spec.parse({})
        assert "..." not in caught.value.how, spec


def test_a_model_of_own_keys_is_checked_when_parsed() -> None:
    with pytest.raises(UserError, match=r"hidden_siz.*did you mean 'hidden_size'"):
        RunSpec.parse({**LEAST, "model": {**MODEL, "hidden_siz": 3}})
    assert isinstance(RunSpec.parse({**LEAST, "model": MODEL}).model, ModelSpec)
    assert isinstance(RunSpec.parse({**LEAST, "model": {"python": "a:b", "n": 1}}).model, PythonRef)


def test_exponents_without_a_dot_are_numbers() -> None:
    assert parse_yaml("[3e-4, 1E5, 5e+2, .5, 1.5e3, 12, v1e, 2026-11-21x]") == [
        3e-4,
        1e5,
        500.0,
        0.5,
        1500.0,
        12,
        "v1e",
        "2026-11-21x",
    ]


WRITTEN = {**LEAST, "environment": {"host": "a"}, "name": "a"}


def run_folder(home: Path, **keys: Any) -> Path:
    """A run's folder as `train` leaves it."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "events.jsonl").write_text("")
    write_yaml(home / "run.yaml", {**WRITTEN, "out_dir": "runs/a", **keys})
    return home / "run.yaml"


@pytest.mark.parametrize("place", ["runs/a", "kept/b", "b", "other/project/runs/a"])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_moved_run_goes_on_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, absolute: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    file = run_folder(Path(place), out_dir=str(tmp_path / "runs" / "a") if absolute else "runs/a")
    for path in (file, file.absolute()):
        assert load_run(path).folder.resolve() == (tmp_path / place).resolve()
    assert load_run(file, ["out_dir=elsewhere"]).folder == Path("elsewhere")


@pytest.mark.parametrize(
    ("data", "there", "found"),
    [
        ("data", "start/data", "start/data"),  # where it was started
        ("data", "copy/data", "copy/data"),  # the whole project was copied: runs/a beside data
        ("data/a", "copy/runs/data/a", "copy/runs/data/a"),
        ("data", "copy/runs/a/data", "copy/runs/a/data"),  # put into the folder
        ("data/tokens", "copy/data/tokens.bin", "copy/data/tokens"),  # named without its suffix
        ("data", "here/data", "data"),  # as it is named
        ("/nowhere/data", "start/data", "/nowhere/data"),
        ("data", "nothing", "data"),
    ],
)
def test_a_moved_runs_data_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, there: str, found: str
) -> None:
    (tmp_path / there).mkdir(parents=True)
    (tmp_path / "here").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "here")
    sources = {"train": [{"path": data, "weight": 2.0}], "valid": [{"path": data}]}
    seen = {"folder": str(tmp_path / "start")}
    run = load_run(run_folder(tmp_path / "copy" / "runs" / "a", data=sources, environment=seen))
    assert isinstance(run.data, DataSpec)
    expected = str(tmp_path / found) if found != data else data
    assert [source.path for source in (*run.data.train, *run.data.valid)] == [expected, expected]
    assert run.data.train[0].weight == 2


def test_a_moved_runs_other_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "start/weights", "start/random", "start/local"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "start" / "ours.yaml").write_text("device: h100-sxm\n")
    monkeypatch.chdir(tmp_path / "here")
    seen = {"folder": str(tmp_path / "start")}
    run = load_run(run_folder(tmp_path / "b", init="weights", cluster="ours.yaml", environment=seen))
    assert (run.init, run.cluster) == (str(tmp_path / "start/weights"), str(tmp_path / "start/ours.yaml"))
    run = load_run(run_folder(tmp_path / "c", environment=seen))
    assert (run.init, run.cluster, run.resume) == ("random", "local", "auto"), "words are no paths"


def test_a_users_own_run_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = run_folder(Path("b"))
    (Path("b") / "events.jsonl").unlink()  # a copy of the file alone
    assert load_run(file).folder == Path("runs/a")
    own = run_folder(Path("c"), environment=None)
    assert load_run(own).folder == Path("runs/a")
    named = run_folder(Path("d")).rename("d/again.yaml")
    assert load_run(named).folder == Path("runs/a")
