"""A run that goes on compares itself with what was saved: some may change and is noted, some must not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from runs import EOD, bits, events, make_data, merge, rows, run, run_data
from scalewright.checkpoint.format import COMMIT
from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.checkpoint.verify import commit_text
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec
from scalewright.train.build import _on_devices
from scalewright.train.state.changes import Changes, find_changes, keep_choices

SAVED = {"checkpoint": {"at_end": True}, "train": {"steps": 3}}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """A run of two sources with three steps behind it, and its run file."""
    folder = tmp_path_factory.mktemp("saved")
    data = run_data(folder, **SAVED, seed=3)
    make_data(folder / "data", 200, seed=1)
    data["data"]["train"] = [source(folder / "data" / f"tokens-{n}.npy") for n in (0, 1)]
    run(data)
    return folder, data


def source(path: Path, weight: float = 1.0) -> dict[str, Any]:
    return {"path": str(path), "eod": EOD, "weight": weight}


@pytest.fixture
def again(saved, tmp_path):
    """Goes on with a copy of the run, with something changed."""
    _, data = saved
    shutil.copytree(data["out_dir"], tmp_path / "out")

    def go_on(changes: dict[str, Any], *overrides: str, steps: int = 5) -> Path:
        changed = merge({**data, "out_dir": str(tmp_path / "out"), "train": {"steps": 3}}, changes)
        return Path(run(changed, overrides, steps=steps).out_dir)

    return go_on


def state_of(out: Path) -> dict[str, Any]:
    return dict(CheckpointReader(find_checkpoint(out)).state)


def kinds(out: Path) -> list[str]:
    """The events that say how the run went, in order."""
    return [e["kind"] for e in events(out) if e["kind"] in ("start", "resume", "changed", "save", "finish")]


# -- what is meant to change --------------------------------------------------------------------------


def test_settings_may_change_with_one_event_and_one_line(again, capfd):
    out = again(
        {"optimizer": {"lr": 0.25}, "train": {"steps": 5}, "layout": {"global_batch": 4}},
        "checkpoint.keep=3",
        "track.tensorboard=false",
    )
    (event,) = events(out, "changed")
    assert event["step"] == 3
    assert event["changes"] == {
        "layout.global_batch": [8, 4],
        "optimizer.lr": [0.5, 0.25],
        "train.steps": [3, 5],
        "checkpoint.keep": [2, 3],
    }
    assert event["message"].startswith("changed since step 3: ")
    assert "optimizer.lr 0.5 -> 0.25" in event["message"]
    assert "\n" not in event["message"]
    assert kinds(out)[-4:] == ["resume", "changed", "save", "finish"]


def test_the_same_run_file_has_no_such_event(again):
    out = again({})
    assert kinds(out)[-2:] == ["resume", "finish"]
    assert events(out, "changed") == []


def test_changed_weights_move_every_source_on_from_where_it_stood(again, saved):
    folder, _ = saved
    sources = [source(folder / "data" / f"tokens-{n}.npy", w) for n, w in ((0, 3.0), (1, 1.0))]
    out = again({"data": {"train": sources}, "train": {"steps": 5}})
    (event,) = events(out, "changed")
    assert event["changes"]["data.train.weight"] == [[1.0, 1.0], [3.0, 1.0]]
    data = state_of(out)["data"]
    assert data["segments"] == [
        {"from": 0, "weights": {"0": 1.0, "1": 1.0}},
        {"from": 24, "weights": {"0": 3.0, "1": 1.0}},
    ]
    assert data["samples"] == [12 + 12, 12 + 4]
    assert list(data["paths"].values()) == [s["path"] for s in sources]


def test_moved_data_are_the_same_data(again, saved, tmp_path):
    folder, _ = saved
    moved = [shutil.copy(folder / "data" / f"tokens-{n}.npy", tmp_path / f"moved-{n}.npy") for n in (0, 1)]
    out = again({"data": {"train": [source(Path(path)) for path in moved]}, "train": {"steps": 4}})
    assert set(events(out, "changed")[0]["changes"]) == {"train.steps"}


# -- what must not ------------------------------------------------------------------------------------


def test_a_broken_promise_is_refused_with_its_key_before_anything_is_written(again, saved, tmp_path):
    folder, _ = saved
    other = make_data(tmp_path / "other", 300, seed=7)
    first = folder / "data" / "tokens-0.npy"
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    for changes, words, key in (
        ({"seed": 4}, "saved with seed 3, and has 4 now", "seed"),
        ({"data": {"train": [source(first), source(other)]}}, "tokens-7.npy is new", "data"),
        ({"data": {"train": [source(first)]}}, "tokens-1.npy is gone", "data"),
        ({"data": {"packing": False}}, "data.packing was True, and is False now", "data"),
        ({"data": {"python": "parts:Counting", "seq_len": 16}}, "and are parts:Counting now", "data"),
        ({"model": {"norm_eps": 0.5}}, "model has norm_eps .* but the run's has 0.5", "model"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            again({**changes, "train": {"steps": 5}})
        assert f"allow_changes=[{key}]" in caught.value.how
    after = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}
    assert after == before


def test_what_is_allowed_goes_on_and_is_noted(again, saved, tmp_path):
    folder, _ = saved
    other = make_data(tmp_path / "other", 300, seed=7)
    sources = [source(folder / "data" / "tokens-0.npy"), source(other)]
    changes = {"seed": 4, "data": {"train": sources}, "train": {"steps": 5}}
    with pytest.raises(UserError, match=r"tokens-7.npy is new.*seed 3") as caught:
        again(changes)
    assert "allow_changes=[data, seed]" in caught.value.how
    with pytest.raises(UserError, match=r"tokens-7.npy is new"):
        again(changes, "allow_changes=seed")
    out = again(changes, "allow_changes=[seed, data]")
    found = events(out, "changed")[0]["changes"]
    assert found["seed"] == [3, 4]
    assert [Path(p).name for p in found["data.train"][1]] == ["tokens-0.npy", "tokens-7.npy"]
    data = state_of(out)["data"]
    assert data["samples"] == [12 + 8, 12, 8]  # the one that left keeps its place, the new one begins
    assert again(changes, "allow_changes=[seed, data]") == out  # and goes on without a word


def prepared(folder: Path, words: int) -> Path:
    """A folder of prepared tokens whose tokenizer is a text of its own."""
    from scalewright.data.prepare import prepare

    text = folder.with_suffix(".txt")
    random = np.random.default_rng(0)
    text.write_text("\n\n".join(" ".join(f"w{random.integers(40)}" for _ in range(60)) for _ in range(80)))
    prepare([str(text)], str(folder), vocab_size=words, valid_fraction=0.0)
    return folder


def test_a_tokenizer_is_a_promise_and_its_file_is_never_overwritten(tmp_path):
    first, second = prepared(tmp_path / "a", 280), prepared(tmp_path / "b", 300)
    base = {"model": {"vocab_size": 512}, "data": {"valid": []}, **SAVED}
    data = run_data(tmp_path, **base)
    data["data"]["train"] = [{"path": str(first)}]
    out = Path(run(data).out_dir)
    old = (out / "tokenizer.json").read_bytes()
    assert old == (first / "tokenizer.json").read_bytes()
    data["data"]["train"] = [{"path": str(second)}]
    with pytest.raises(UserError, match="made with another tokenizer") as caught:
        run(data, ["train.steps=5"])
    assert "allow_changes=[data, tokenizer]" in caught.value.how
    assert (out / "tokenizer.json").read_bytes() == old
    run(data, ["train.steps=5", "allow_changes=[data, tokenizer]"])
    assert (out / "tokenizer.until-step-3.json").read_bytes() == old
    assert (out / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()


def test_a_checkpoint_of_an_older_release_goes_on(again, tmp_path):
    """It says nothing of the run and its data; seed and model are compared as ever."""
    folder = find_checkpoint(tmp_path / "out")
    state = json.loads((folder / "state.json").read_text())
    old = {k: state[k] for k in ("step", "samples", "tokens", "seed", "optimizer_name", "optimizer")}
    (folder / "state.json").write_text(json.dumps(old))
    (folder / COMMIT).write_text(commit_text(folder, 3))
    with pytest.raises(UserError, match="seed"):
        again({"seed": 9})
    out = again({"train": {"steps": 5}})
    assert [row["step"] for row in rows(out)] == [1, 2, 3, 4, 5]
    assert events(out, "changed") == []


# -- comparing ----------------------------------------------------------------------------------------


def compared(before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    whole = {"model": {}, "data": {}, "seed": 0}
    return find_changes({"run": {**whole, **before}, "seed": 0}, {**whole, **now}, {}, {}).values


def test_keys_that_one_release_lacks_are_no_changes_but_new_arguments_are():
    assert compared({"train": {"steps": 3}}, {"train": {"steps": 3, "guard": {"spike": "log"}}}) == {}
    own = {"python": "mine:Optimizer", "lr": 0.1}
    assert compared({"optimizer": own}, {"optimizer": {**own, "k": 2}}) == {"optimizer.k": [None, 2]}
    assert compared({"loss": "cross_entropy"}, {"loss": own}) == {"loss": ["cross_entropy", own]}


def test_a_line_shows_the_first_changes_and_counts_the_rest():
    line = Changes({f"key{n}": [n, n + 1] for n in range(8)}).line(7)
    assert line.startswith("changed since step 7: key0 0 -> 1, ")
    assert line.endswith(", 2 more (events.jsonl)")


# -- choices ------------------------------------------------------------------------------------------


def with_settings(out: Path, **changes: Any) -> None:
    """Rewrites what a checkpoint's run had chosen."""
    folder = find_checkpoint(out)
    state = json.loads((folder / "state.json").read_text())
    state["run"] = merge(state["run"], changes)
    (folder / "state.json").write_text(json.dumps(state))
    (folder / COMMIT).write_text(commit_text(folder, 3))


def test_what_a_run_chose_is_kept(again, saved, tmp_path):
    """`auto` means "as before", whatever a measurement would give now."""
    _, data = saved
    with_settings(tmp_path / "out", layout={"precision": "bf16", "zero_stage": 2}, train={"compile": True})
    open_choices = {**data, "out_dir": str(tmp_path / "out"), "device": "auto"}
    open_choices["layout"] = {"devices": 1, "global_batch": 8, "precision": "auto"}
    kept = keep_choices(RunSpec.parse(open_choices))
    assert (kept.layout.precision, kept.layout.zero_stage, kept.train.compile) == ("bf16", 2, True)
    assert kept.device == "cpu"
    said = merge(open_choices, {"layout": {"precision": "fp32", "zero_stage": 0}, "train": {"compile": False}})
    kept = keep_choices(RunSpec.parse(said))
    assert (kept.layout.precision, kept.layout.zero_stage, kept.train.compile) == ("fp32", 0, False)
    larger = merge(open_choices, {"layout": {"devices": 2}})  # its stage is derived anew
    assert keep_choices(RunSpec.parse(larger)).layout.zero_stage == RunSpec.parse(larger).layout.zero_stage
    anew = {**open_choices, "resume": "never"}
    assert keep_choices(RunSpec.parse(anew)).layout.precision == "auto"


def test_a_resume_is_in_the_precision_of_the_first_start(tmp_path, monkeypatch):
    """The measurement says bf16 at the second start: the run goes on in fp32, bit for bit."""
    import scalewright.train.precision as precision

    data = run_data(tmp_path, layout={"precision": "auto"}, **SAVED)
    monkeypatch.setattr(precision, "compare_bf16", lambda *_: None)
    straight = run({**data, "out_dir": str(tmp_path / "straight")}).out_dir
    run(data, steps=2)
    monkeypatch.setattr(precision, "compare_bf16", lambda *_: pytest.fail("measured again"))
    out = run(data).out_dir
    assert events(out, "resume")[0]["precision"] == "fp32"
    assert bits(out) == bits(straight)
    changed = run({**data, "layout": {**data["layout"], "precision": "bf16"}, "train": {"steps": 4}}).out_dir
    assert events(changed, "changed")[0]["changes"]["layout.precision"] == ["fp32", "bf16"]


def test_a_save_of_an_older_release_has_its_choices_in_the_runs_folder(again, saved, tmp_path):
    folder = find_checkpoint(tmp_path / "out")
    state = json.loads((folder / "state.json").read_text())
    del state["run"]
    (folder / "state.json").write_text(json.dumps(state))
    (folder / COMMIT).write_text(commit_text(folder, 3))
    text = (tmp_path / "out" / "run.yaml").read_text()
    (tmp_path / "out" / "run.yaml").write_text(text.replace("precision: fp32", "precision: bf16"))
    _, data = saved
    layout = {"devices": 1, "global_batch": 8, "precision": "auto"}
    kept = keep_choices(RunSpec.parse({**data, "out_dir": str(tmp_path / "out"), "layout": layout}))
    assert kept.layout.precision == "bf16"


def test_compile_auto_is_for_gpus(saved):
    """Settled on the devices of the run, and written down as what it was settled to."""
    _, data = saved
    run = RunSpec.parse(data)
    assert run.train.compile == "auto"
    assert state_of(Path(data["out_dir"]))["run"]["train"]["compile"] is False  # on a CPU
    for asked, kind, settled in (("auto", "cuda", True), ("auto", "mps", False), (False, "cuda", False)):
        mesh: Any = SimpleNamespace(device=torch.device(kind), rank=0, world=1, groups={}, group=lambda axis: None)
        given = run.replace(train={**run.train.dump(), "compile": asked})
        assert _on_devices(given, mesh, []).train.compile is settled
