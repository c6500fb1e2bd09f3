"""Resume is the same run: bitwise on the same layout, and the same samples on any other."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from forked import fork_cli
from runs import (
    assert_same_bits,
    assert_same_run,
    bits,
    end,
    events,
    merge,
    rows,
    run,
    run_apart,
    run_data,
    start_cli,
    steps_done,
    wait_for,
    weights,
    write_run,
)
from scalewright.spec.errors import RunError

ONE = {"devices": 1, "micro_batch": 2}
ZERO0 = {"devices": 2, "zero_stage": 0, "micro_batch": 2}
ZERO3 = {"devices": 2, "zero_stage": 3, "micro_batch": 2}
ADAMW = {"name": "adamw", "lr": 1e-2, "weight_decay": 0.1}
MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
LION = {"name": "lion", "lr": 1e-3}
MUON = {"name": "muon", "lr": 3e-3, "weight_decay": 0.1}
SCHEDULE = {"kind": "cosine", "warmup_steps": 3}


def resumable(folder: Path, layout: dict[str, Any], optimizer: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A run of 12 steps that saves every fourth."""
    base = {
        "layout": layout,
        "optimizer": optimizer,
        "lr_schedule": SCHEDULE,
        "checkpoint": {"every": 4, "at_end": True},
        "train": {"steps": 12, "valid_every": 6, "valid_batches": 4},
    }
    return run_data(folder, **merge(base, more))


def kill_in_step(data: dict[str, Any], step: int, done: int = 0) -> None:
    """Goes on with a run that has `done` steps, until a worker is killed with -9 in the middle of `step`."""
    layout = data["layout"]
    calls = layout["global_batch"] // layout["micro_batch"] // layout["devices"]  # of the loss, in a step
    last = {"python": "parts:fragile_on_one", "rank": layout["devices"] - 1}
    loss = last if layout["devices"] > 1 else {"python": "parts:fragile"}
    with pytest.raises(RunError, match="killed by SIGKILL"):
        run_apart({**data, "loss": {**loss, "die_at": (step - 1 - done) * calls + 1}})


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The run without an interruption, made once for each layout and optimizer."""
    made: dict[str, Path] = {}

    def make(layout: dict[str, Any], optimizer: dict[str, Any]) -> Path:
        key = f"{layout}{optimizer}"
        if key not in made:
            folder = tmp_path_factory.mktemp("straight")
            made[key] = Path(run(resumable(folder, layout, optimizer)).out_dir)
        return made[key]

    return make


def assert_bitwise(mine: str | Path, control: Path) -> None:
    """The same lines but for the timing, the same weights, the same optimizer state."""
    assert bits(mine) == bits(control)
    assert [row["step"] for row in rows(mine)] == list(range(1, 13))
    assert [row["step"] for row in rows(mine, "valid")] == [6, 12]
    assert_same_bits(weights(mine, optimizer=True), weights(control, optimizer=True))


@pytest.mark.parametrize(
    ("layout", "optimizer"),
    [
        pytest.param(ONE, LION, marks=pytest.mark.slow),
        pytest.param(ZERO0, MOMENTUM, marks=pytest.mark.slow),
        pytest.param(ZERO3, MUON, marks=pytest.mark.slow),
    ],
    ids=["1-lion", "zero0-sgd", "zero3-muon"],
)
def test_killed_once(straight, tmp_path, layout, optimizer):
    """12 steps straight == 8 + kill -9 + 4. Steps 9 and 10 were done before the kill, and are done again."""
    data = resumable(tmp_path, layout, optimizer)
    kill_in_step(data, 11)
    assert steps_done(tmp_path / "out") == 10
    result = run(data)
    assert result.resumed_from == 8
    assert_bitwise(result.out_dir, straight(layout, optimizer))


@pytest.mark.parametrize(
    ("layout", "optimizer"),
    [(ONE, ADAMW), pytest.param(ZERO3, ADAMW, marks=pytest.mark.slow)],
    ids=["1-adamw", "zero3-adamw"],
)
def test_killed_twice(straight, tmp_path, layout, optimizer):
    data = resumable(tmp_path, layout, optimizer)
    kill_in_step(data, 6)
    kill_in_step(data, 10, done=4)
    result = run(data)
    assert result.resumed_from == 8
    assert_bitwise(result.out_dir, straight(layout, optimizer))
    assert [e["step"] for e in events(result.out_dir, "resume")] == [4, 8]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [ADAMW, MOMENTUM, LION], ids=["adamw", "sgd", "lion"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("layout", [ONE, ZERO0, ZERO3, {**ZERO3, "devices": 4}], ids=["1", "z0", "z3", "4z3"])
def test_every_resume(straight, tmp_path, layout, optimizer, precision):
    layout = {**layout, "precision": precision}
    for name, kills in (("once", [(11, 0)]), ("twice", [(6, 0), (10, 4)])):
        data = resumable(tmp_path, layout, optimizer, out_dir=str(tmp_path / name))
        for step, done in kills:
            kill_in_step(data, step, done)
        assert_bitwise(run(data).out_dir, straight(layout, optimizer))


def test_another_number_of_ranks_goes_on(straight, tmp_path):
    """A checkpoint of 2 ranks continues on 1 and on 4: same samples, losses within 1e-5."""
    control = straight(ZERO3, ADAMW)
    kill_in_step(resumable(tmp_path, ZERO3, ADAMW), 9)
    for layout in ({"devices": 1, "micro_batch": 4}, {"devices": 4, "zero_stage": 3, "micro_batch": 2}):
        out = str(tmp_path / str(layout["devices"]))
        shutil.copytree(tmp_path / "out", out)
        result = run(resumable(tmp_path, layout, ADAMW, out_dir=out))
        assert result.resumed_from == 8
        assert bits(out)[:8] == bits(control)[:8]
        assert_same_run(out, control)


@pytest.mark.slow
def test_stopping_early_and_going_on(straight, tmp_path):
    """`--steps 8` ends early on purpose; the schedule is still laid over all 12."""
    data = resumable(tmp_path, ONE, ADAMW)
    assert run(data, steps=8).step == 8
    assert [row["step"] for row in rows(tmp_path / "out")] == list(range(1, 9))
    assert_bitwise(run(data).out_dir, straight(ONE, ADAMW))


def test_a_finished_run_has_nothing_to_do(tmp_path):
    data = resumable(tmp_path, ONE, ADAMW)
    first = run(data)
    before = (tmp_path / "out" / "metrics.jsonl").read_bytes()
    again = run(data)
    assert (again.step, again.resumed_from) == (12, 12)
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == before
    assert (again.loss, again.valid_loss) == (first.loss, first.valid_loss)


def test_dropout_resumes_bitwise(tmp_path):
    """Random numbers are a pure function of seed, step and rank: nothing of them is saved."""
    model = {"python": "parts:build", "dropout": 0.3}
    straight = run(resumable(tmp_path, ONE, ADAMW, model=model, out_dir=str(tmp_path / "straight"))).out_dir
    data = resumable(tmp_path, ONE, ADAMW, model=model)
    kill_in_step(data, 10)
    assert_bitwise(run(data).out_dir, Path(straight))
    plain = {"python": "parts:build", "dropout": 0.0}
    other = run(resumable(tmp_path, ONE, ADAMW, model=plain, out_dir=str(tmp_path / "plain"))).out_dir
    assert bits(other) != bits(straight)  # the dropout was there


def test_another_batch_goes_on_with_the_next_sample(tmp_path):
    """A step takes [consumed, consumed + global_batch), also when the batch has grown since."""
    ids = {"python": "parts:Counting", "seq_len": 16}
    data = run_data(tmp_path, data=ids, model={"python": "parts:build"}, checkpoint={"at_end": True})
    run(data, steps=3)
    result = run(data, ["layout.global_batch=16", "train.steps=5"])
    found = rows(result.out_dir)
    assert [row["samples"] for row in found] == [8, 16, 24, 40, 56]
    assert [row["tokens"] for row in found] == [n * 16 for n in (8, 16, 24, 40, 56)]
    from scalewright.data.batch import sample_ids_hash

    assert found[3]["sample_ids_hash"] == sample_ids_hash(range(24, 40))


# -- signals, through the command line ----------------------------------------------------------------


@pytest.mark.parametrize("layout", [pytest.param(ONE, marks=pytest.mark.slow), ZERO3], ids=["1", "2"])
def test_sigterm_saves_and_the_same_command_goes_on(tmp_path, straight, layout):
    """Exit code 75 and one line; then nothing shows that there was a stop."""
    data = resumable(tmp_path, layout, ADAMW, checkpoint={"every": 0}, loss={"python": "parts:fragile"})
    slow = {**data, "loss": {"python": "parts:fragile", "pause": 0.15}}
    file = write_run(tmp_path, slow)
    process = fork_cli(tmp_path, "train", str(file))
    try:
        wait_for(lambda: steps_done(tmp_path / "out") >= 3 or process.poll() is not None, 120, "three steps")
        os.kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        end(process)
    assert process.returncode == 75, err
    stopped = steps_done(tmp_path / "out")
    assert 3 <= stopped < 12
    assert f"stopped at step {stopped} of 12 and saved" in err.strip().splitlines()[-1]
    assert "Traceback" not in err
    assert events(tmp_path / "out", "stop")[0]["step"] == stopped
    write_run(tmp_path, {**data, "checkpoint": {"every": 4, "at_end": True}})
    process = fork_cli(tmp_path, "train", str(file))
    try:
        _, err = process.communicate(timeout=120)
    finally:
        end(process)
    assert process.returncode == 0, err
    assert_bitwise(tmp_path / "out", straight(layout, ADAMW))


@pytest.mark.slow
def test_a_killed_command_resumes(tmp_path, straight):
    """kill -9 to the supervisor of two workers: nobody is left, and the same command goes on."""
    data = resumable(tmp_path, ZERO3, ADAMW, loss={"python": "parts:fragile", "pause": 0.1})
    file = write_run(tmp_path, data)
    process = start_cli(tmp_path, "train", str(file))
    from runs import alive, descendants

    try:
        wait_for(lambda: steps_done(tmp_path / "out") >= 6 or process.poll() is not None, 120, "six steps")
        family = descendants(process.pid)
        assert len(family) >= 2
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        wait_for(lambda: not alive(family), 20, "the workers to leave")
    finally:
        end(process)
    result = run({**data, "loss": "cross_entropy"})
    assert result.resumed_from >= 4
    assert_bitwise(result.out_dir, straight(ZERO3, ADAMW))


def test_a_requeued_job_goes_on_from_its_own_saves_and_not_from_the_path_again(tmp_path: Path) -> None:
    first = run(resumable(tmp_path / "first", ONE, MOMENTUM), steps=4)
    start = resumable(tmp_path / "second", ONE, MOMENTUM, resume=f"{first.out_dir}/checkpoints/step-00000004")
    assert run(start, steps=8).resumed_from == 4
    assert run(start, steps=12).resumed_from == 8  # the same command again
    back = f"resume={start['out_dir']}/checkpoints/step-00000008"
    assert run(start, [back], steps=12).resumed_from == 8  # one of its own: on purpose
    straight = run(resumable(tmp_path / "straight", ONE, MOMENTUM), steps=12)
    assert_same_bits(weights(straight.out_dir), weights(start["out_dir"]))
