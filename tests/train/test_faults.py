"""What goes wrong in real runs: damaged files, full disks, kills at the worst moment, settings at odds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forked import fork_cli
from runs import (
    alive,
    bits,
    end,
    events,
    merge,
    rows,
    run,
    run_data,
    small_disk,
    start_cli,
    steps_done,
    wait_for,
    weights,
    write_run,
)
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.spec.errors import RunError, UserError
from scalewright.train.run import PRELOAD
from scalewright.train.state.claim import hold_folder

TWO = {"devices": 2, "zero_stage": 3, "micro_batch": 4}


def saved_run(folder: Path, steps: int = 8, **changes: Any) -> dict[str, Any]:
    """A run that has saved at 4 and 8, and has 12 steps in all."""
    base = {"checkpoint": {"every": 4}, "train": {"steps": 12}, "layout": {"micro_batch": 8}}
    data = run_data(folder, **merge(base, changes))
    run(data, steps=steps)
    assert [path.name for path in checkpoints(folder)] == ["step-00000004", "step-00000008"]
    return data


def checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "out" / "checkpoints").iterdir() if "." not in path.name)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = {
    "a flipped bit": ("model-*.safetensors", flip_a_bit),
    "a truncated file": ("optimizer-*.safetensors", halve),
    "a missing file": ("model-*.safetensors", Path.unlink),
    "a manifest of garbage": ("manifest.json", lambda path: path.write_bytes(b"\xff\xfe garbage")),
    "a manifest that is a list": ("manifest.json", lambda path: path.write_text("[1, 2]")),
    "a bit of the manifest": ("manifest.json", flip_a_bit),
    "a state of garbage": ("state.json", lambda path: path.write_text("{")),
    "an empty COMMIT": ("COMMIT", lambda path: path.write_text("")),
}


def damage(folder: Path, kind: str) -> None:
    pattern, harm = DAMAGE[kind]
    harm(next(folder.glob(pattern)))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run with two checkpoints, to be copied."""
    folder = tmp_path_factory.mktemp("saved")
    data = saved_run(folder, optimizer={"name": "adamw", "lr": 1e-2})
    straight = run({**data, "out_dir": str(folder / "straight")}).out_dir
    return folder, data, bits(straight)


@pytest.fixture
def copy(saved, tmp_path):
    """(its data, its checkpoints, what an undisturbed run wrote)"""
    import shutil

    folder, data, control = saved
    shutil.copytree(folder / "out", tmp_path / "out")
    return {**data, "out_dir": str(tmp_path / "out")}, checkpoints(tmp_path), control


@pytest.mark.parametrize("kind", DAMAGE)
def test_the_newest_is_damaged(copy, kind):
    """The one before it is taken, an event says why, and the damaged one is kept out of the way."""
    data, (_, newest), control = copy
    damage(newest, kind)
    result = run(data)
    assert result.resumed_from == 4
    assert bits(result.out_dir) == control
    notes = [event["message"] for event in events(result.out_dir, "fault")]
    assert "skipped a checkpoint: step-00000008" in notes[0]
    assert notes[1] == "set step-00000008.aside-1 aside"
    assert (newest.parent / "step-00000008.aside-1").is_dir()
    assert [path.name for path in checkpoints(Path(data["out_dir"]).parent)] == ["step-00000008", "step-00000012"]


def test_a_damaged_checkpoint_does_not_push_good_ones_out(copy):
    """With keep=1 the damaged newest would be the one kept when the next is pruned."""
    data, (_, newest), _ = copy
    newest.rename(newest.with_name("step-00000011"))  # as if saved late, by another `every`
    damage(newest.with_name("step-00000011"), "a flipped bit")
    data = merge(data, {"checkpoint": {"keep": 1}})
    assert run(data, steps=8).resumed_from == 4
    assert run(data).resumed_from == 8


@pytest.mark.slow
def test_all_are_damaged(copy):
    """Never anew over checkpoints that exist: an error, and nothing was changed."""
    data, both, control = copy
    for folder in both:
        damage(folder, "a flipped bit")
    metrics = Path(data["out_dir"], "metrics.jsonl").read_bytes()
    for layout in ({}, TWO):
        with pytest.raises(UserError, match=r"all 2 checkpoints are damaged.*resume=never") as caught:
            run(merge(data, {"layout": layout}))
        assert "\n" not in str(caught.value)
    assert Path(data["out_dir"], "metrics.jsonl").read_bytes() == metrics
    anew = run(data, ["resume=never"])  # the way out that the error names
    assert anew.resumed_from is None
    assert bits(anew.out_dir) == control
    aside = Path(data["out_dir"] + ".old-1")
    assert (aside / "metrics.jsonl").read_bytes() == metrics
    assert len(list((aside / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("left", ["nothing", "no COMMIT"])
def test_all_are_gone(copy, left):
    """It has to begin anew, as one that was killed before its first save does; but it says why."""
    data, both, control = copy
    for folder in both:
        (folder / "COMMIT").unlink() if left == "no COMMIT" else shutil.rmtree(folder)
    anew = run(data)
    assert anew.resumed_from is None
    assert bits(anew.out_dir) == control
    notes = [event["message"] for event in events(anew.out_dir, "fault")]
    assert notes == ["the run begins anew: its checkpoints are gone, the last of step 8"]


def test_a_named_checkpoint_is_checked_too(copy):
    data, (older, newest), control = copy
    damage(newest, "a truncated file")
    with pytest.raises(UserError, match="the checkpoint is damaged: optimizer"):
        run(data, [f"resume={newest}"])
    with pytest.raises(UserError, match="the checkpoint is damaged"):
        run(data, [f"init={newest}", f"out_dir={data['out_dir']}-2"])
    result = run(data, [f"resume={older}"])
    assert (result.resumed_from, bits(result.out_dir)) == (4, control)


def test_going_back_abandons_what_came_after(copy):
    """resume=PATH to an older step: the newer checkpoint isn't the newest of this run any more."""
    data, (older, newest), _ = copy
    run(data, [f"resume={older}"], steps=6)
    assert not newest.exists()
    assert (newest.parent / "step-00000008.aside-1").is_dir()


def test_weights_alone_from_another_run(copy, tmp_path):
    """`init:` takes the weights, and nothing else of that run."""
    data, (_, newest), _ = copy
    out = run(
        data, [f"init={newest}", f"out_dir={tmp_path / 'new'}", "optimizer.lr=1e-9", "checkpoint.at_end=true"], steps=1
    ).out_dir
    assert rows(out)[0]["step"] == 1
    before, after = weights(newest), weights(out)
    assert all((after[name] - before[name]).abs().max() < 1e-7 for name in before)


def test_another_optimizer_can_not_go_on(copy):
    data, _, _ = copy
    with pytest.raises(UserError, match="the state of optimizer adamw but the run's is lion"):
        run(data, ["optimizer={name: lion, lr: 1e-3}"])


def test_another_model_can_not_go_on(copy):
    data, _, _ = copy
    with pytest.raises(UserError, match="hidden_size 24 but the run's has 32"):
        run(data, ["model.hidden_size=32"])


# -- saving ------------------------------------------------------------------------------------------


def die_in_a_save(context: RankContext, data: dict[str, Any]) -> None:
    """A worker that is killed once the first file of step 8 is written."""
    import scalewright.checkpoint.write as write

    usual = write.write_tensors

    def write_tensors(path: Path, items: Any) -> Any:
        stored = usual(path, items)
        if "step-00000008" in str(path):
            os.kill(os.getpid(), signal.SIGKILL)
        return stored

    write.write_tensors = write_tensors
    run(data)


def test_killed_during_a_save(tmp_path):
    """The half-written one is never taken, and the next save sweeps it."""
    base = {"checkpoint": {"every": 4}, "train": {"steps": 12}, "layout": {"micro_batch": 8}}
    data = run_data(tmp_path, **base)
    control = run({**data, "out_dir": str(tmp_path / "straight")}).out_dir
    with pytest.raises(RunError, match="killed by SIGKILL"):
        run_local(die_in_a_save, (data,), 1, preload=PRELOAD, threads=1)
    names = sorted(path.name for path in (tmp_path / "out" / "checkpoints").iterdir())
    assert names == ["step-00000004", "step-00000008.tmp"]
    result = run(data)
    assert result.resumed_from == 4
    assert bits(result.out_dir) == bits(control)
    names = sorted(path.name for path in (tmp_path / "out" / "checkpoints").iterdir())
    assert names == ["step-00000008", "step-00000012"]


def failing_saves(monkeypatch, steps: list[int], error: OSError | None = None) -> None:
    """Saves of these steps meet a full disk halfway."""
    import scalewright.checkpoint.write as write

    usual = write.write_tensors

    def write_tensors(path, items):
        if int(path.parent.name.split("-")[1].split(".")[0]) in steps:
            path.write_bytes(b"half")
            raise error or OSError(28, "No space left on device", str(path))
        return usual(path, items)

    monkeypatch.setattr(write, "write_tensors", write_tensors)


def test_a_full_disk_at_one_save(tmp_path, monkeypatch):
    """One clear line, the older checkpoint stays, and the run goes on, since a later save works."""
    failing_saves(monkeypatch, [8])
    data = run_data(tmp_path, checkpoint={"every": 4}, train={"steps": 12}, layout={"micro_batch": 8})
    assert run(data).step == 12
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000004", "step-00000012"]
    assert not list((tmp_path / "out" / "checkpoints").glob("*.tmp"))
    (note,) = events(tmp_path / "out", "fault")
    assert "no space left on the disk" in note["message"]
    assert "older checkpoints are kept" in note["message"]


def test_a_full_disk_at_the_last_save(tmp_path, monkeypatch):
    """The run isn't a success: what it learned last isn't on the disk. It goes on from the older one."""
    failing_saves(monkeypatch, [12])
    data = run_data(tmp_path, checkpoint={"every": 4}, train={"steps": 12}, layout={"micro_batch": 8})
    with pytest.raises(RunError, match=r"cannot save step-00000012: no space left.*older .* are kept"):
        run(data)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000004", "step-00000008"]
    monkeypatch.undo()
    assert run(data).resumed_from == 8


def test_a_full_disk_at_the_first_save(tmp_path, monkeypatch):
    """Nothing was saved before, and the line doesn't claim so."""
    failing_saves(monkeypatch, [2])
    data = run_data(tmp_path, checkpoint={"every": 2}, train={"steps": 2}, layout={"micro_batch": 8})
    with pytest.raises(RunError, match=r"no space left.*; no older checkpoint exists"):
        run(data)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small disk")
def test_a_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    if not small_disk(disk):
        pytest.skip("no right to mount a small disk")
    try:
        big = {"hidden_size": 64, "vocab_size": 400}  # 0.8 MiB of weights and momenta a save
        data = run_data(
            tmp_path, out_dir=str(disk / "out"), model=big, checkpoint={"every": 4, "keep": 1},
            optimizer={"momentum": 0.9}, train={"steps": 8}, layout={"micro_batch": 8},
        )  # fmt: skip
        process = fork_cli(tmp_path, "train", str(write_run(tmp_path, data)))
        try:
            _, err = process.communicate(timeout=120)
        finally:
            end(process)
        assert process.returncode == 1, err
        last = err.strip().splitlines()[-1]
        assert last.startswith("error: cannot")
        assert "no space left" in last.lower()
        assert "Traceback" not in err
        left = [path.name for path in (disk / "out" / "checkpoints").iterdir()]
        assert left == ["step-00000004"]
        assert (disk / "out" / "run.yaml").stat().st_size > 0
    finally:
        subprocess.run(["umount", "-l", str(disk)], capture_output=True, timeout=10, check=False)


@pytest.mark.parametrize("keep", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_keep_prunes(tmp_path, keep):
    data = run_data(tmp_path, checkpoint={"every": 2, "keep": keep}, train={"steps": 8}, layout={"micro_batch": 8})
    run(data)
    steps = [2, 4, 6, 8][-keep:]
    assert [path.name for path in checkpoints(tmp_path)] == [f"step-{step:08d}" for step in steps]


# -- data --------------------------------------------------------------------------------------------


def test_data_that_breaks_in_the_middle(tmp_path):
    """An unreadable shard ends the run with its name, once; what was saved stays."""
    broken = {"python": "parts:Broken", "at": 40, "seq_len": 16}
    base = {"data": broken, "checkpoint": {"every": 2}, "layout": {"micro_batch": 4}}
    with pytest.raises(OSError, match=r"bad-shard.bin"):
        run(run_data(tmp_path, **base))
    assert steps_done(tmp_path / "out") == 5
    with pytest.raises(RunError, match=r"worker \d failed: OSError.*bad-shard.bin") as caught:
        run(run_data(tmp_path, **merge(base, {"layout": TWO, "out_dir": str(tmp_path / "two")})))
    assert str(caught.value).count("bad-shard") == 1


def test_a_damaged_shard_of_ours(call_cli, tmp_path):
    """A flipped bit in a prepared shard is an error before the first step, and the error has the fix."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog ran. " * 200)
    made = call_cli("prepare", tmp_path / "text.txt", "--out", tmp_path / "tokens", "--vocab-size", 270, "--workers", 1)
    assert made.code == 0, made.err
    flip_a_bit(next((tmp_path / "tokens" / "train").glob("tokens-*.bin")))
    data = run_data(tmp_path, model={"vocab_size": 300}, data={"train": str(tmp_path / "tokens")})
    answer = call_cli("train", write_run(tmp_path, data))
    assert answer.code == 2
    assert "damaged" in answer.error
    assert "scalewright prepare" in answer.error
    assert not (tmp_path / "out").exists()


MISTAKES: dict[str, tuple[list[str], str]] = {
    "missing data": (["data.train=nowhere"], "no such file or folder of tokens (nowhere)"),
    "wrong key": (["layout.zero_stge=3"], "did you mean 'layout.zero_stage'"),
    "batch": (["layout.global_batch=6", "layout.micro_batch=4"], "global_batch 6 is not divisible by"),
    "not yet": (["layout.precision=fp8"], "precision fp8 can be planned but not trained yet"),
    "offload": (["layout={devices: 2, zero_stage: 1, offload: parameters}"], "needs zero_stage 3 but it is 1"),
    "no such init": (["init=nowhere"], "init: nowhere"),
    "no such resume": (["resume=nowhere"], "no finished checkpoint there (nowhere)"),
    "no optimizer": (["optimizer={python: 'parts:summed'}"], "parts:summed"),
    "no such part": (["loss={python: 'parts:sumed'}"], "parts"),
    "tf32 on a CPU": (["layout.precision=tf32"], "tf32 exists on NVIDIA GPUs"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(call_cli, tmp_path, mistake):
    overrides, says = MISTAKES[mistake]
    answer = call_cli("train", write_run(tmp_path, run_data(tmp_path)), *overrides)
    assert answer.code == 2, answer.err
    assert answer.error.startswith("error: ")
    assert says in answer.error
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_tokens_that_the_model_has_no_row_for(call_cli, tmp_path):
    """Data that doesn't say its vocabulary is looked at batch by batch."""
    answer = call_cli("train", write_run(tmp_path, run_data(tmp_path)), "model.vocab_size=40")
    assert answer.code == 2
    assert "but the model's vocab_size is 40" in answer.err.strip().splitlines()[-1]
    assert "Traceback" not in answer.err


def test_the_same_command_started_twice(tmp_path):
    """The second doesn't touch the first one's files; and a killed first is no obstacle."""
    data = run_data(tmp_path, loss={"python": "parts:fragile", "pause": 0.05}, train={"steps": 2000})
    data["checkpoint"] = {"every": 2}
    process = fork_cli(tmp_path, "train", str(write_run(tmp_path, data)))
    try:
        wait_for(lambda: steps_done(tmp_path / "out") >= 3 or process.poll() is not None, 90, "three steps")
        for layout in ({"devices": 1}, TWO):
            for resume in ("auto", "never"):
                with pytest.raises(UserError, match="another process is training there"):
                    run(merge(data, {"layout": layout, "resume": resume}))
        assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
    finally:
        end(process)
    found = rows(tmp_path / "out")
    assert [row["step"] for row in found] == list(range(1, len(found) + 1))
    assert run(data, steps=len(found) + 2).resumed_from >= 2


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "out").write_text("a file of the user's")
    with pytest.raises(UserError, match=r"cannot write: .*set out_dir"):
        run(run_data(tmp_path))
    assert (tmp_path / "out").read_text() == "a file of the user's"


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder", "a loop"])
def test_events_that_are_no_file(tmp_path, kind):
    """Opening a pipe waits for its other end; a device would swallow the events."""
    path = tmp_path / "out" / "events.jsonl"
    path.parent.mkdir()
    make = {"a pipe": os.mkfifo, "a folder": Path.mkdir, "a device": lambda p: p.symlink_to(os.devnull)}
    make.get(kind, lambda p: p.symlink_to(p.name))(path)
    end = os.open(path, os.O_RDWR) if kind == "a pipe" else None  # so that a mistake here doesn't wait
    try:
        with pytest.raises(UserError, match=r"'events.jsonl' is (not a regular file|a link)"), hold_folder(path.parent):
            pass
    finally:
        if end is not None:
            os.close(end)


@pytest.mark.parametrize("kind", ["a file", "a link that leads nowhere", "a loop"])
def test_checkpoints_that_are_no_folder(tmp_path, kind):
    """As when their disk isn't mounted: a run that began anew would drop its rows, and fail when it saves."""
    data = run_data(tmp_path)
    saves = tmp_path / "out" / "checkpoints"
    saves.parent.mkdir()
    (saves.parent / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    if kind == "a file":
        saves.write_text("")
    else:
        saves.symlink_to("nowhere" if kind == "a link that leads nowhere" else saves.name)
    with pytest.raises(UserError, match=r"checkpoints' folder is none.*mount or restore"):
        run(data)
    assert (saves.parent / "metrics.jsonl").read_text() == '{"kind": "train", "step": 1}\n'


def test_more_devices_than_cores(call_cli, tmp_path):
    """Only with `device: cpu` said outright, or --simulate; the error has the command to use instead."""
    many = (os.cpu_count() or 1) * 4
    data = run_data(tmp_path, device="auto", layout={"devices": many, "global_batch": many})
    answer = call_cli("train", write_run(tmp_path, data))
    assert answer.code == 2
    assert f"layout.devices {many}" in answer.error
    assert "torchrun" in answer.error


# -- workers -----------------------------------------------------------------------------------------


def test_a_worker_killed_from_outside(tmp_path):
    """The others are down within seconds, one error names the one that died, and nobody is left."""
    data = run_data(tmp_path, layout={"devices": 3, "zero_stage": 3, "global_batch": 9, "micro_batch": 3})
    data["loss"] = {"python": "parts:fragile", "pause": 0.05}
    data["train"] = {"steps": 2000}
    seen: dict[str, Any] = {}

    def kill() -> None:
        wait_for(lambda: steps_done(tmp_path / "out") >= 2, 90, "two steps")
        import psutil

        named = [p for p in psutil.Process().children(recursive=True) if not p.children()]
        first = int(events(tmp_path / "out", "start")[0]["pid"])
        seen["workers"] = [p.pid for p in named if p.ppid() == psutil.Process(first).ppid()]
        seen["killed"] = next(pid for pid in seen["workers"] if pid != first)
        seen["at"] = time.monotonic()
        os.kill(seen["killed"], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RunError, match=r"^worker \d was killed by SIGKILL") as caught:
        run(data)
    killer.join()
    assert time.monotonic() - seen["at"] < 15
    assert len(seen["workers"]) == 3
    assert alive(seen["workers"]) == []
    assert "\n" not in str(caught.value)


def test_a_worker_that_raises_shows_its_error_once(tmp_path):
    loss = {"python": "parts:fragile_on_one", "die_at": 3, "raises": "numbers went wrong"}
    file = write_run(tmp_path, run_data(tmp_path, layout=TWO, loss=loss))
    process = fork_cli(tmp_path, "train", str(file))
    try:
        _, err = process.communicate(timeout=90)
    finally:
        end(process)
    assert process.returncode == 1
    assert err.count("numbers went wrong") == 1
    assert "worker 1 failed: ArithmeticError: numbers went wrong" in err.strip().splitlines()[-1]
    assert "Traceback" not in err


def test_a_loss_that_is_no_number_is_noted(tmp_path):
    """null in metrics.jsonl, and an event that says which."""
    data = run_data(tmp_path, loss={"python": "parts:summed", "scale": 1e38}, train={"steps": 2})
    with pytest.raises(RunError, match="ended at step 2 with loss inf"):
        run(merge(data, {"optimizer": {"clip_norm": 0.0}}))
    assert rows(tmp_path / "out")[-1]["loss"] is None
    assert events(tmp_path / "out", "nonfinite")


VANISHES: dict[str, Callable[[Path], Any]] = {
    "deleted": shutil.rmtree,
    "renamed": lambda out: out.rename(out.with_name("elsewhere")),
    "deleted and made again": lambda out: (shutil.rmtree(out), out.mkdir()),
    "its metrics deleted": lambda out: (out / "metrics.jsonl").unlink(),
    "its events replaced": lambda out: Path(shutil.copy(out / "events.jsonl", out / "x")).replace(out / "events.jsonl"),
}


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        *(pytest.param(kind, {}, marks=[] if kind == "renamed" else pytest.mark.slow) for kind in VANISHES),
        pytest.param("deleted", TWO, marks=pytest.mark.slow),
    ],
)
def test_a_folder_that_vanishes_ends_the_run(tmp_path, kind, layout):
    """Exit code 1 with the reason, on every rank; the folder isn't made again."""
    data = run_data(tmp_path, train={"steps": 100_000}, layout=layout, checkpoint={"every": 500})
    out = tmp_path / "out"
    process = fork_cli(tmp_path, "train", str(write_run(tmp_path, data)))
    try:
        wait_for(lambda: steps_done(out) >= 3, 90)
        VANISHES[kind](out)
        _, err = process.communicate(timeout=60)
    finally:
        end(process)
    last = err.strip().splitlines()[-1]
    assert process.returncode == 1, err
    assert "was removed, renamed or replaced under the run" in last
    assert "Traceback" not in err
    if kind in ("deleted", "renamed"):
        assert not out.exists()


def test_a_folder_that_vanishes_at_the_end(tmp_path):
    data = run_data(tmp_path, train={"steps": 3})
    with pytest.raises(RunError, match="under the run"):
        run(data, on_step=lambda row: shutil.rmtree(tmp_path / "out", ignore_errors=True))


def test_a_mistake_in_the_data_lets_go_of_the_callers_pipes(tmp_path):
    """`scalewright train ... | tail`: the fork server, which imports for seconds, ends with the command."""
    data = run_data(tmp_path, layout=TWO)
    data["data"]["train"] = str(tmp_path / "nowhere")
    began = time.monotonic()
    process = start_cli(tmp_path, "train", str(write_run(tmp_path, data)))
    process.wait(60)
    ended = time.monotonic()
    _, err = process.communicate(timeout=60)  # ends when nobody has the pipe open
    assert time.monotonic() - ended < (ended - began) / 2  # its imports take twice the command's time
    assert process.returncode == 2
    assert "nowhere" in err
