"""`scalewright checkpoint` beside a run that trains, and its `prune` and `diff`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runs import run, run_data
from scalewright.checkpoint import verify
from scalewright.checkpoint.format import COMMIT, StoredFile, remove
from scalewright.checkpoint.pieces import describe_file
from scalewright.checkpoint.verify import commit_text
from scalewright.train.state.claim import hold_folder

STILL = {"name": "sgd", "lr": 1e-30, "momentum": 0.9}  # weights stay what they were


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`one` and `two`, which differ in their layout; `other` in its seed. Saves at 2, 4, 6 and 8."""
    folder = tmp_path_factory.mktemp("runs")
    out = {}
    for name, changes in {
        "one": {"layout": {"micro_batch": 8}},
        "two": {"layout": {"devices": 2, "zero_stage": 3, "micro_batch": 4}},
        "other": {"layout": {"micro_batch": 8}, "seed": 4},
    }.items():
        save = {"every": 2, "keep": 4}
        data = run_data(folder, out_dir=str(folder / name), checkpoint=save, train={"steps": 8}, **changes)
        run({**data, "optimizer": STILL})
        out[name] = folder / name
    return out


@pytest.fixture
def copy(runs, tmp_path):
    return Path(shutil.copytree(runs["one"], tmp_path / "run"))


def steps(folder: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in (folder / "checkpoints").iterdir())


def step(folder: Path, number: int) -> Path:
    return folder / "checkpoints" / f"step-{number:08d}"


# -- beside a run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["first_damage", "verify_heads", "read_manifest"])
def test_one_that_goes_while_it_is_read_is_gone(call_cli, copy, monkeypatch, moment):
    """As retention does it: COMMIT first. Nothing is damaged, and the exit code is 0."""
    whole, victim = getattr(verify, moment), step(copy, 2)

    def and_remove(path: Path, *rest: Any) -> Any:
        if victim in (path, path.parent) and victim.exists():
            remove(victim)
        return whole(path, *rest)

    monkeypatch.setattr(verify, moment, and_remove)
    answer = call_cli("checkpoint", "verify", copy, "--json")
    assert answer.code == 0, answer.err
    assert [row["state"] for row in answer.json()["checkpoints"]] == ["complete"] * 3 + ["gone"]
    assert "step 8: complete" in call_cli("checkpoint", "verify", copy).out


def test_one_that_goes_while_its_files_are_listed(call_cli, copy, monkeypatch):
    listed = Path.rglob

    def and_remove(path: Path, pattern: str) -> Any:
        files = list(listed(path, pattern))
        if path == step(copy, 4):
            remove(path)
        return files

    monkeypatch.setattr(Path, "rglob", and_remove)
    rows = call_cli("checkpoint", "ls", copy, "--json").json()
    assert [row["step"] for row in rows] == [8, 6, 2]


def test_one_that_is_half_gone(call_cli, copy, monkeypatch):
    """COMMIT was removed before, and its files go now."""
    listed = Path.rglob
    (step(copy, 4) / COMMIT).unlink()

    def and_remove(path: Path, pattern: str) -> Any:
        files = list(listed(path, pattern))
        if path == step(copy, 4):
            (path / "state.json").unlink(missing_ok=True)
        return files

    monkeypatch.setattr(Path, "rglob", and_remove)
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    rows = call_cli("checkpoint", "ls", copy, "--json").json()
    assert [row["step"] for row in rows] == [8, 6, 2]


def test_damage_beside_one_that_goes_is_still_damage(call_cli, copy):
    next(step(copy, 4).glob("model-*")).unlink()
    answer = call_cli("checkpoint", "verify", copy, "--json")
    assert answer.code == 1
    assert [row["state"] for row in answer.json()["checkpoints"]] == ["complete"] * 2 + ["damaged", "complete"]


@pytest.mark.parametrize("verb", [["convert"], ["checkpoint", "diff"]])
def test_readers_say_that_it_is_gone(call_cli, copy, runs, tmp_path, monkeypatch, verb):
    whole = verify.first_damage

    def and_remove(path: Path, expected: StoredFile) -> tuple[int, int] | None:
        if copy in path.parents and path.parent.exists():
            remove(path.parent)
        return whole(path, expected)

    monkeypatch.setattr(verify, "first_damage", and_remove)
    answer = call_cli(*verb, copy, runs["other"] if verb[-1] == "diff" else tmp_path / "out")
    assert answer.code == 2
    assert "the checkpoint is gone: it was removed while it was read" in answer.error


# -- prune -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (["--keep", 1], [8]),
        (["--keep", 2], [6, 8]),
        ([], [2, 4, 6, 8]),  # the run's own checkpoint.keep
        (["--keep", 1, "--keep-every", 4], [4, 8]),
    ],
)
def test_prune_keeps_the_newest(call_cli, copy, flags, left):
    before = sum(p.stat().st_size for p in (copy / "checkpoints").rglob("*") if p.is_file())
    plan = call_cli("checkpoint", "prune", copy, *flags, "--dry-run", "--json").json()
    assert steps(copy) == [2, 4, 6, 8]
    done = call_cli("checkpoint", "prune", copy, *flags, "--json").json()
    assert steps(copy) == left == sorted(row["step"] for row in done["kept"])
    assert {**done, "dry_run": True} == plan
    after = sum(p.stat().st_size for p in (copy / "checkpoints").rglob("*") if p.is_file())
    assert done["bytes"] == before - after
    assert call_cli("checkpoint", "verify", copy).code == 0


def test_prune_keeps_the_newest_whole_one(call_cli, copy):
    for number in (6, 8):
        next(step(copy, number).glob("model-*")).write_bytes(b"x")
    assert call_cli("checkpoint", "prune", copy, "--keep", 1).code == 0
    assert steps(copy) == [4, 8]


def test_prune_removes_nothing_where_none_is_whole(call_cli, copy):
    for number in (2, 4, 6, 8):
        next(step(copy, number).glob("model-*")).write_bytes(b"x")
    answer = call_cli("checkpoint", "prune", copy, "--keep", 1)
    assert (answer.code, steps(copy)) == (2, [2, 4, 6, 8])
    assert "none is removed" in answer.error


def test_prune_keeps_finite_ones(call_cli, copy):
    state = json.loads((step(copy, 8) / "state.json").read_text())
    (step(copy, 8) / "state.json").write_text(json.dumps({**state, "finite": False}))
    (step(copy, 8) / COMMIT).write_text(commit_text(step(copy, 8), 8))
    call_cli("checkpoint", "prune", copy, "--keep", 1)
    assert steps(copy) == [6, 8]


def test_prune_beside_a_run_is_refused(call_cli, copy):
    with hold_folder(copy):
        answer = call_cli("checkpoint", "prune", copy / "checkpoints", "--keep", 1)
        assert answer.code == 2
        assert "another process is training there" in answer.error
        assert call_cli("checkpoint", "prune", copy, "--keep", 1, "--dry-run").code == 0
    assert steps(copy) == [2, 4, 6, 8]


def test_prune_follows_no_link(call_cli, copy, runs):
    """A save that lies elsewhere stays there, and what a killed removal left goes."""
    shutil.rmtree(step(copy, 2))
    step(copy, 2).symlink_to(step(runs["one"], 2))
    (step(copy, 4) / COMMIT).unlink()
    call_cli("checkpoint", "prune", copy, "--keep", 1)
    assert steps(copy) == [8]
    assert (step(runs["one"], 2) / COMMIT).exists()


def test_prune_of_one_checkpoint_is_refused(call_cli, copy):
    assert "give its run's folder" in call_cli("checkpoint", "prune", step(copy, 8)).error
    assert steps(copy) == [2, 4, 6, 8]


# -- diff --------------------------------------------------------------------------------------------


def test_the_same_checkpoint(call_cli, runs, copy):
    answer = call_cli("checkpoint", "diff", runs["one"], copy, "--json")
    assert answer.code == 0
    found = answer.json()
    assert (found["equal"], found["tensors_equal"], found["settings"], found["tensors"]) == (True, True, {}, [])
    assert "tensors are equal, bit for bit" in call_cli("checkpoint", "diff", runs["one"], copy).out


def test_another_layout(call_cli, runs):
    """Boxes of two ranks and of one, put together."""
    answer = call_cli("checkpoint", "diff", runs["one"], runs["two"], "--json")
    assert answer.code == 1
    found = answer.json()
    assert found["settings"]["layout"]["layout.devices"] == [1, 2]
    assert set(found["settings"]) <= {"layout", "guard"}  # whose usual losses differ by rounding
    assert not [row for row in found["tensors"] if not row["name"].startswith("optimizer/")]


def test_another_step(call_cli, runs):
    answer = call_cli("checkpoint", "diff", step(runs["one"], 4), runs["one"], "--json")
    found = answer.json()
    assert found["settings"]["step"] == {"step": [4, 8]}
    assert found["settings"]["samples"] == {"samples": [32, 64]}
    assert {"step", "samples", "tokens", "data"} <= set(found["settings"])
    assert {row["name"].split("/")[0] for row in found["tensors"]} == {"optimizer"}
    out = call_cli("checkpoint", "diff", step(runs["one"], 4), runs["one"]).out
    assert "step: 4 -> 8" in out
    assert "optimizer/momentum_buffer" in out


def sign(folder: Path, state: dict[str, Any]) -> None:
    """Another state.json, with the checksums to it."""
    (folder / "state.json").write_text(json.dumps(state))
    (folder / COMMIT).write_text(commit_text(folder, state["step"]))


def test_keys_that_an_older_release_lacks(call_cli, runs, copy):
    """No difference where the other has their default; one where it hasn't, printed once."""
    older = step(copy, 8)
    state = json.loads((older / "state.json").read_text())
    for key in ("left_out", "validation_cut_short", "schedule_unit"):
        del state[key]
    for part, key in (("train", "mtp_weight"), ("train", "timeouts"), ("optimizer", "eps"), ("data", "packing")):
        state["run"][part].pop(key, None)
    del state["run"]["profile"], state["run"]["engine_options"], state["run"]["diloco"], state["data"]["bos"]
    state["run"]["data"]["packing"] = True
    sign(older, state)
    manifest = json.loads((older / "manifest.json").read_text())
    for part, key in (("model", "norm_type"), ("layout", "schedule"), ("layout", "cp")):
        del manifest[part][key]
    del manifest["model"]["rope"]["fraction"]
    (older / "manifest.json").write_text(json.dumps(manifest))
    sign(older, state)
    for paths in ((runs["one"], copy), (copy, runs["one"])):
        answer = call_cli("checkpoint", "diff", *paths, "--json")
        assert (answer.code, answer.json()["settings"]) == (0, {})
    sign(older, {**state, "validation_cut_short": True, "left_out": [[1, 2]]})
    other = step(runs["one"], 8)
    lines = call_cli("checkpoint", "diff", other, copy).out.splitlines()
    assert [line for line in lines if "cut_short" in line] == ["validation_cut_short: False -> True"]
    assert "left_out: [] -> [[1, 2]]" in lines


def test_a_checkpoint_without_a_run_has_no_settings(call_cli, runs, tmp_path):
    """One that was converted: nothing is known of its training, and nothing is invented."""
    for source, out in ((runs["one"], tmp_path / "hf"), (tmp_path / "hf", tmp_path / "back")):
        assert call_cli("convert", source, out, "--no-check").code == 0
    settings = call_cli("checkpoint", "diff", tmp_path / "back", runs["one"], "--json").json()["settings"]
    assert settings["run"]["run.optimizer.lr"] == ["(absent)", 1e-30]
    assert {values[0] for values in settings["run"].values()} == {"(absent)"}
    assert set(settings.get("layout", {})) <= {"layout.micro_batch", "layout.global_batch", "layout.precision"}


def test_another_seed(call_cli, runs):
    found = call_cli("checkpoint", "diff", runs["one"], runs["other"], "--json").json()
    assert found["settings"]["seed"] == {"seed": [3, 4]}
    assert found["tensors"][0]["largest"] > 0


def test_the_size_of_a_difference(call_cli, runs, copy):
    """One number of one tensor, and a NaN of another."""
    folder = step(copy, 8)
    (file,) = folder.glob("model-*.safetensors")
    tensors = load_file(file)
    norm = tensors["norm.weight"]
    before = torch.linalg.vector_norm(norm.double())
    norm[3] += 0.5
    tensors["embed.weight"][0, 0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    manifest = json.loads((folder / "manifest.json").read_text())
    stored = describe_file(file)
    manifest["files"][file.name] |= {"bytes": stored.bytes, "checksum": stored.checksum}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / COMMIT).write_text(commit_text(folder, 8))
    answer = call_cli("checkpoint", "diff", runs["one"], copy, "--json")
    assert answer.code == 1
    rows = {row["name"]: row for row in answer.json()["tensors"]}
    assert set(rows) == {"norm.weight", "embed.weight"}
    assert (rows["norm.weight"]["numbers"], rows["norm.weight"]["of"]) == (1, 24)
    assert rows["norm.weight"]["largest"] == 0.5
    assert rows["norm.weight"]["relative"] == pytest.approx(0.5 / float(before))
    assert rows["embed.weight"]["largest"] is None


def test_other_models(call_cli, runs, tmp_path):
    data = run_data(tmp_path, model={"hidden_size": 32, "num_hidden_layers": 2}, train={"steps": 1})
    run({**data, "checkpoint": {"every": 1}})
    answer = call_cli("checkpoint", "diff", runs["one"], tmp_path / "out", "--json")
    assert answer.code == 1
    rows = {row["name"]: row for row in answer.json()["tensors"]}
    assert rows["norm.weight"]["shape"] == [[24], [32]]
    assert {row.get("only") for row in rows.values()} == {None, "first"}
    assert "only in the first" in call_cli("checkpoint", "diff", runs["one"], tmp_path / "out").out


def test_damage_is_an_error(call_cli, runs, copy):
    next(step(copy, 8).glob("model-*")).write_bytes(b"x")
    answer = call_cli("checkpoint", "diff", runs["one"], copy)
    assert answer.code == 2
    assert "the checkpoint is damaged" in answer.error
