"""Runs whose ranks die, and that go on with those that are left: nothing is lost, and nobody lends a hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runs import assert_same_bits, assert_same_run, bits, events, merge, run, run_data, weights
from scalewright.launch.rank import RankContext
from scalewright.machine.local import find_cluster
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.layout import Layout
from scalewright.spec.run import RunSpec
from scalewright.train import elastic
from scalewright.train.elastic import at_most, for_launcher, on_world
from scalewright.train.metrics import expectation

LAYOUT = {"devices": 4, "zero_stage": 3, "global_batch": 24, "micro_batch": 2}
LEAST = {"devices": 2, "zero_stage": 3, "micro_batch": 4}
DETECT_S, AGAIN_S = 5.0, 15.0  # what a failure may take: until it is seen, until a step is done again


def base(folder: Path, **changes: Any) -> dict[str, Any]:
    saves = {"every": 3, "keep": 3, "at_end": True}
    return run_data(folder, **merge({"checkpoint": saves, "train": {"steps": 12}}, changes))


def control(folder: Path, data: dict[str, Any]) -> str:
    """The same run, which nothing disturbs."""
    return run(merge(data, {"out_dir": str(folder / "control"), "loss": "cross_entropy", "elastic": None})).out_dir


def falling(folder: Path, at: int = 14, **arguments: Any) -> dict[str, Any]:
    """A rank falls at this call, from 1: with LAYOUT three make a step."""
    return {"python": "parts:falls", "folder": str(folder), "at": at, **arguments}


def in_time(out: Path | str) -> None:
    for event in events(out, "restart"):
        assert event["detect_s"] < DETECT_S
        assert event["seconds"] < AGAIN_S
        parts = [event[key] for key in ("detect_s", "rendezvous_s", "load_s", "first_step_s")]
        assert event["seconds"] == pytest.approx(sum(parts), abs=2e-3)


def test_fewer_ranks_and_then_all_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 -> 1 -> 2: a killed rank is left out, and the file DEVICES brings it back, by a save and not by a failure."""
    data = base(tmp_path, layout=LEAST, train={"steps": 20}, elastic=True)
    data["loss"] = falling(tmp_path, at=5)
    out = tmp_path / "out"
    monkeypatch.setattr(elastic, "LOOK_S", 0.0)  # a step takes milliseconds

    def on_step(row: dict[str, Any]) -> None:
        if row["step"] == 8:
            (out / "DEVICES").touch()

    result = run(data, on_step=on_step)
    assert result.step == 20
    begun = [event for event in events(out) if event["kind"] in ("start", "resume")]
    assert [event["world"] for event in begun] == [2, 1, 2]
    assert [event["asked"] for event in events(out, "world")] == [2]
    (failed,) = events(out, "fault")
    assert (failed["ranks"], failed["failure"]) == ([1], "worker # was killed by SIGKILL")
    (restart,) = events(out, "restart")
    assert (restart["world_before"], restart["world"]) == (2, 1)
    in_time(out)
    assert not (out / "DEVICES").exists()
    assert_same_run(out, control(tmp_path, merge(data, {"layout": {"devices": 1}})))


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "1.5", "3", "\0"])
def test_a_number_of_ranks_that_is_none_changes_nothing(tmp_path: Path, capsys, text: str) -> None:
    parsed = RunSpec.parse(base(tmp_path, layout=LEAST, elastic=True))
    ranks = elastic.LocalRanks(parsed, lambda *_: {}, lambda *_: False, most=2, devices=(0, 1))
    (tmp_path / "DEVICES").write_text(text)
    assert ranks._in_file(tmp_path / "DEVICES") is None
    assert "write 1 to 2, or nothing for all" in capsys.readouterr().err
    assert not (tmp_path / "DEVICES").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "exit", "raise"])
def test_the_same_ranks_again_are_the_same_run(tmp_path: Path, how: str) -> None:
    data = base(tmp_path, layout=LAYOUT, launch={"max_restarts": 1}, loss=falling(tmp_path, rank=2, how=how))
    out = run(data).out_dir
    assert [event["world"] for event in events(out, "resume")] == [4]
    in_time(out)
    straight = control(tmp_path, data)
    assert bits(out) == bits(straight)
    assert_same_bits(weights(out, optimizer=True), weights(straight, optimizer=True))


@pytest.mark.slow
def test_a_run_of_one_device_is_started_again_too(tmp_path: Path) -> None:
    data = base(tmp_path, launch={"max_restarts": 1}, loss=falling(tmp_path, rank=0, at=9))
    out = run(data).out_dir
    assert len(events(out, "restart")) == 1
    assert bits(out) == bits(control(tmp_path, data))


AXES: dict[str, tuple[dict[str, Any], int]] = {
    "zero 3": (LAYOUT, 3),
    "replicas": ({**LAYOUT, "zero_stage": 0, "dp_replicate": 4}, 3),
    "replicas of shards": ({**LAYOUT, "dp_replicate": 2}, 3),
    "tp": ({**LAYOUT, "tp": 2}, 2),
    "pipeline": ({**LAYOUT, "zero_stage": 1, "pp": 2}, 2),
    "all are needed": ({**LAYOUT, "zero_stage": 0, "tp": 4, "global_batch": 4}, 4),
    "a batch that three don't share": ({**LAYOUT, "global_batch": 8}, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", AXES)
def test_the_ranks_that_are_left(tmp_path: Path, kind: str) -> None:
    """The largest world that fits; the same samples in the same order, the same losses but for their last bits."""
    layout, left = AXES[kind]
    model = {"num_key_value_heads": 4} if layout.get("tp") == 4 else {}
    data = base(tmp_path, layout=layout, elastic=True, loss=falling(tmp_path, rank=3), model=model)
    data["loss"]["at"] = 4 * Layout.parse(layout).accumulation + 1

    out = run(data).out_dir
    assert [event["world"] for event in events(out, "resume")] == [left]
    in_time(out)
    assert_same_run(out, control(tmp_path, data))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGSTOP", "spin"])
def test_a_rank_that_hangs_is_left_out(tmp_path: Path, how: str) -> None:
    """The watchdog names it as soon as it doesn't answer; the others go on without it."""
    data = base(tmp_path, layout=LAYOUT, elastic=True, loss=falling(tmp_path, rank=2, how=how))
    out = run(data).out_dir
    assert events(out, "fault")[0]["ranks"] == [2]
    in_time(out)
    assert [event["world"] for event in events(out, "resume")] == [3]
    assert_same_run(out, control(tmp_path, data))


@pytest.mark.slow
def test_back_to_all_ranks_at_a_save(tmp_path: Path) -> None:
    data = base(tmp_path, layout=LAYOUT, elastic={"retry_s": 0.1}, loss=falling(tmp_path, rank=1))
    out = run(data).out_dir
    assert [event["world"] for event in events(out) if event["kind"] in ("start", "resume")] == [4, 3, 4]
    assert_same_run(out, control(tmp_path, data))


@pytest.mark.slow
def test_more_failures_than_max_restarts(tmp_path: Path) -> None:
    data = base(tmp_path, layout=LEAST, launch={"max_restarts": 1}, loss=falling(tmp_path, at=6, times=2))
    with pytest.raises(RunError, match="worker 1 was killed by SIGKILL"):
        run(data)
    assert len(events(tmp_path / "out", "fault")) == 2


@pytest.mark.slow
def test_a_mistake_that_comes_back_ends_the_run(tmp_path: Path) -> None:
    """Three times, and once more from the checkpoint before, which isn't lost."""
    data = base(tmp_path, layout=LEAST, elastic=True)
    data["loss"] = {"python": "parts:wrong_at", "step_of": str(tmp_path / "out"), "step": 8}
    with pytest.raises(RunError, match=r"given up \(4 times the same failure at step 8.*numbers went wrong"):
        run(data)
    out = tmp_path / "out"
    noted = events(out, "fault")
    assert [event["step"] for event in noted if "failure" in event] == [8] * 4
    assert noted[-1]["gave_up"]
    assert [event["step"] for event in events(out, "resume")] == [6, 6, 3]
    assert (out / "checkpoints" / "step-00000006" / "COMMIT").exists()
    assert run(merge(data, {"loss": "cross_entropy"})).resumed_from == 6  # mended: it goes on


@pytest.mark.slow
def test_a_checkpoint_that_kills_whoever_loads_it(tmp_path: Path) -> None:
    """The run goes back behind it by itself, and ends as if nothing had been."""
    data = base(tmp_path, layout=LEAST, elastic=True)
    run(data, steps=6)
    data["loss"] = {"python": "parts:falls_after", "folder": str(tmp_path / "out"), "step": 6}
    assert run(data).step == 12
    out = tmp_path / "out"
    assert len(events(out, "back")) == 1
    assert [event["step"] for event in events(out, "resume")] == [6, 6, 6, 3]
    assert_same_run(out, control(tmp_path, data))


def spec(**changes: Any) -> RunSpec:
    return RunSpec.parse(run_data(Path(), elastic=True, layout=LAYOUT, **changes))


def test_worlds_of_a_launcher() -> None:
    three = RankContext(0, 3, starter="torchrun")
    assert for_launcher(spec(), three, 1).layout.devices == 3
    assert for_launcher(spec(), three, 2).layout.devices == 6
    with pytest.raises(UserError, match=r"torchrun started 5 ranks.*global_batch 24 stay.*start 1, 2, 3 or 4"):
        for_launcher(spec(), RankContext(0, 5, starter="torchrun"), 1)
    with pytest.raises(UserError, match=r"elastic.min 4\).*start 4"):
        for_launcher(merged(spec(), {"elastic": {"min": 4}}), three, 1)


def merged(run: RunSpec, changes: dict[str, Any]) -> RunSpec:
    return RunSpec.parse(merge(run.dump(), changes))


def test_the_largest_world_that_fits() -> None:
    pairs = [(size, fitted.layout.devices) for size in range(1, 8) if (fitted := at_most(spec(), size))]
    assert pairs == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (6, 6), (7, 6)]
    assert on_world(spec(), 5) is None
    islands = merged(spec(), {"diloco": {"inner_steps": 2}, "layout": {"dp_replicate": 2}})
    assert [size for size in range(1, 7) if on_world(islands, size)] == [2, 3, 4, 6]


def test_a_world_without_elastic_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way out is named."""
    for name, value in {"RANK": 0, "WORLD_SIZE": 3, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UserError, match=r"started 3 ranks but layout.devices is 4.*or set elastic=true"):
        run(base(tmp_path, layout=LAYOUT))


def test_the_planner_lays_out_another_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """6 of 8 H100: tp 8 fits them in no way; with `replan` it need not stay. Batch, model and precision do."""
    layout = {"devices": 8, "tp": 8, "micro_batch": 1, "global_batch": 24, "precision": "bf16"}
    changes = {"layout": layout, "model": "llama-3.2-1b", "data": {"seq_len": 1024}}
    asked = RunSpec.parse(run_data(Path(), elastic=True, **changes))
    assert on_world(asked, 6) is None
    cluster = find_cluster("dgx-h100"), ""
    monkeypatch.setattr(expectation, "place_of", lambda run: cluster)
    fitted = on_world(merged(asked, {"elastic": {"replan": True}}), 6)
    assert fitted is not None
    assert (fitted.layout.devices, fitted.layout.global_batch, fitted.layout.precision) == (6, 24, "bf16")
