"""Runs whose replicas go on in their processes when one dies, and take it in again: nothing is lost, or read."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from runs import assert_same_bits, assert_same_run, bits, events, merge, rows, run, run_data, weights
from scalewright.goodput.ledger import read_ledger
from scalewright.launch.deaths import Died
from scalewright.launch.regroup import ASKED, LOST, Go, Regroups
from scalewright.spec.elastic import ElasticSpec, check_in_process, on_replicas, replicas, seated
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.layout import Layout
from scalewright.train import resolve
from scalewright.train.regroup import Standing, copies, settled_step, sources

FOUR = {"devices": 4, "zero_stage": 0, "dp_replicate": 4, "global_batch": 24, "micro_batch": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "replicas": FOUR,
    "shards": {**FOUR, "zero_stage": 3, "dp_replicate": 2},
    "zero 1": {**FOUR, "zero_stage": 1, "dp_replicate": 2},
    "tp": {**FOUR, "dp_replicate": 2, "tp": 2},
    "pipeline": {**FOUR, "dp_replicate": 2, "pp": 2},
}
AGAIN_S = 15.0


def base(folder: Path, **changes: Any) -> dict[str, Any]:
    ends = {"every": 0, "at_end": True}
    return run_data(
        folder, **merge({"train": {"steps": 24}, "checkpoint": ends, "elastic": {"in_process": True}}, changes)
    )


def control(folder: Path, data: dict[str, Any]) -> str:
    """The same run, which nothing disturbs."""
    return run(merge(data, {"out_dir": str(folder / "control"), "loss": "cross_entropy", "elastic": None})).out_dir


def watched(folder: Path, pause: float = 0.02) -> dict[str, str]:
    (folder / "ranks").mkdir()
    (folder / "ranks" / "pause").write_text(str(pause))
    return {"python": "parts:watched", "folder": str(folder / "ranks")}


def pids(folder: Path) -> list[list[int]]:
    """Which process was each rank, call after call of the loss."""
    files = [folder / "ranks" / f"rank-{rank}" for rank in range(4)]
    return [list(map(int, file.read_text().split())) for file in files if file.exists()]


def running(pid: int) -> bool:
    """Whether a process is there, and no mere entry that nobody has read."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def lives(out: str | Path) -> list[tuple[int, int]]:
    """(step, ranks) of each beginning."""
    return [(e["step"], e["world"]) for e in events(out) if e["kind"] in ("start", "resume")]


def check_disturbed(out: str, data: dict[str, Any], left: int, folder: Path) -> None:
    """One rank was killed, once: the others went on, and all were there at the end."""
    assert [world for _, world in lives(out)] == [4, left, 4]
    assert [event["step"] for event in rows(out)] == list(range(1, data["train"]["steps"] + 1))
    for event in events(out, "restart"):
        assert event["in_process"]
        assert event["seconds"] < AGAIN_S
    assert sum(event["steps"] for event in events(out, "lost")) == 0
    ledger = read_ledger(Path(out))
    assert sum(ledger.seconds.values()) == pytest.approx(ledger.wall_s)
    assert not ledger.notes
    assert_same_run(out, control(folder, data))


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
def test_the_others_go_on_and_it_comes_back(tmp_path: Path, kind: str) -> None:
    """At a random moment; the samples in order, each once, losses and norms as of a run that nothing disturbed."""
    chance = random.Random(os.urandom(4).hex())
    when, victim = chance.uniform(0.0, 0.4), chance.randrange(4)
    print(f"rank {victim}, {when:.3f} s after step 6")
    data = base(tmp_path, layout=LAYOUTS[kind], loss=watched(tmp_path))

    def on_step(row: dict[str, Any]) -> None:
        if row["step"] == 6:
            time.sleep(when)
            os.kill(started[victim], signal.SIGKILL)
        if row["step"] == data["train"]["steps"]:
            there.extend(pid for pid in started if running(pid))

    started: list[int] = []
    there: list[int] = []
    out = run(data, on_step=on_step, on_start=started.extend).out_dir
    print(
        [
            {k: e[k] for k in ("detect_s", "rendezvous_s", "load_s", "first_step_s") if k in e}
            for e in events(out, "restart")
        ]
    )
    left = 3 if kind == "replicas" else 2
    check_disturbed(out, data, left, tmp_path)
    assert there == [pid for pid in started if pid != started[victim]]  # whose processes go on


def assert_as_stopped(
    out: str, data: dict[str, Any], folder: Path, torn_at: int, back_at: int, fewer: Layout | None
) -> None:
    """The run is, bit by bit, one that was stopped at `torn_at`, went on in a layout of `fewer` ranks, and with all
    again from `back_at` on."""
    assert fewer is not None
    plain = merge(data, {"loss": "cross_entropy", "elastic": None, "out_dir": str(folder / "stopped")})
    run(plain, steps=torn_at)
    run(merge(plain, {"layout": fewer.dump()}), steps=back_at)
    run(plain)
    assert bits(out) == bits(plain["out_dir"])
    assert_same_bits(weights(out, optimizer=True), weights(plain["out_dir"], optimizer=True))


TORN: dict[str, tuple[dict[str, Any], int, int]] = {
    "replicas": (FOUR, 2, 1),
    "shards": ({**FOUR, "zero_stage": 3, "dp_replicate": 2}, 3, 1),  # the two that are left are one replica
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TORN)
def test_a_step_that_only_some_have_done(tmp_path: Path, kind: str) -> None:
    """It counts, with the samples of the rank that died: whoever lacks its report gets it, and no step is done twice.
    So the run is, bit by bit, one that was stopped there and went on with fewer ranks, and then with all."""
    layout, dies, misses = TORN[kind]
    torn = {"python": "parts:torn", "folder": str(tmp_path), "where": "report", "dies": dies, "misses": misses}
    data = base(tmp_path, layout=layout, train={"steps": 12}, loss={**torn, "at": 3 * 4 + 1})
    data["optimizer"] = {"name": "adamw", "lr": 0.01}
    out = run(data).out_dir
    (_, first), (torn_at, left), (back_at, again) = lives(out)
    assert (first, again) == (4, 4)
    assert torn_at == 5 if kind == "replicas" else torn_at > 1

    count = left * len(replicas(Layout.parse(data["layout"]))) // 4
    assert_as_stopped(out, data, tmp_path, torn_at, back_at, on_replicas(Layout.parse(data["layout"]), count))


INNER = 3
ISLANDS = {
    "2 of 2": ({**FOUR, "dp_replicate": 2}, 3, 1),
    "4 of 1": (FOUR, 3, 1),
    "2 of 2 shards": ({**FOUR, "dp_replicate": 2, "zero_stage": 2}, 3, 0),
}


def with_islands(folder: Path, layout: dict[str, Any], steps: int = 15, **changes: Any) -> dict[str, Any]:
    outer = {"inner_steps": INNER, "outer_lr": 0.7, "outer_momentum": 0.9}
    return base(folder, layout=layout, diloco=outer, train={"steps": steps}, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ISLANDS)
def test_an_outer_step_that_only_some_have_taken(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All take it, with the dead island's part; the islands that are left go on, and it begins anew at a later one.
    After an outer step an island's weights are the outer ones: so the run is, bit by bit, one that was stopped there,
    went on with fewer islands from its checkpoint, and then with all."""
    layout, dies, misses = ISLANDS[kind]
    torn = {"python": "parts:torn", "folder": str(tmp_path), "where": "outer", "dies": dies, "misses": misses}
    data = with_islands(tmp_path, layout, loss={**torn, "at": 4 * 3 + 1})  # in step 5; the next outer one is after 6
    out = run(data).out_dir
    (_, first), (torn_at, left), (back_at, again) = lives(out)
    assert (first, left, again) == (4, 3 if kind == "4 of 1" else 2, 4)
    assert (torn_at, back_at % INNER) == (2 * INNER, 0)

    monkeypatch.setattr(resolve, "_check_diloco", lambda run, model: None)  # one island is no run of its own
    count = left * layout["dp_replicate"] // 4
    fewer = on_replicas(Layout.parse(data["layout"]), count, islands=True)
    assert_as_stopped(out, data, tmp_path, torn_at, back_at, fewer)


@pytest.mark.slow
def test_a_rank_that_hangs_is_ended_and_comes_back(tmp_path: Path) -> None:
    """Saves under way, in files and in memory, are given up with the ranks that made them."""
    data = base(tmp_path, layout=FOUR, train={"steps": 20, "valid_every": 4})
    data["checkpoint"] |= {"every": 4, "async": True, "memory_every": 3}
    data["loss"] = {"python": "parts:falls", "folder": str(tmp_path), "rank": 2, "at": 3 * 5 + 1, "how": "SIGSTOP"}
    out = run(data).out_dir
    assert "does not answer" in events(out, "fault")[0]["message"]
    assert events(out, "fault")[0]["ranks"] == [2]
    check_disturbed(out, data, 3, tmp_path)
    assert [row["step"] for row in rows(out, "valid")] == [4, 8, 12, 16, 20]


@pytest.mark.slow
def test_an_island_goes_and_comes_back(tmp_path: Path) -> None:
    """At a random moment: the other one trains on by itself, and is joined again after an outer step."""
    when = random.SystemRandom().uniform(0.0, 1.0)
    print(f"{when:.3f} s after step 4")
    data = with_islands(tmp_path, {**FOUR, "dp_replicate": 2}, 30, loss=watched(tmp_path))
    started: list[int] = []

    def on_step(row: dict[str, Any]) -> None:
        if row["step"] == 4:
            time.sleep(when)
            os.kill(started[2], signal.SIGKILL)

    out = run(data, on_step=on_step, on_start=started.extend).out_dir
    (_, first), (_, left), (back_at, again) = lives(out)
    assert (first, left, again) == (4, 2, 4)
    assert back_at % INNER == 0
    assert [event["step"] for event in rows(out)] == list(range(1, 31))
    straight = rows(control(tmp_path, data))
    assert [row["sample_ids_hash"] for row in rows(out)] == [row["sample_ids_hash"] for row in straight]
    # Another algorithm from the loss on: one island's steps on the whole batch. It learns as much: within a tenth of
    # what is learnt in all.
    learnt = straight[0]["loss"] - straight[-1]["loss"]
    assert rows(out)[-1]["loss"] == pytest.approx(straight[-1]["loss"], abs=0.1 * learnt)
    assert set(pids(tmp_path)[0]) == {started[0]}


def test_who_goes_on() -> None:
    """Whole replicas, as many as can share the batch; each rank at its place."""
    four = Layout.parse(FOUR)
    assert replicas(four) == ((0,), (1,), (2,), (3,))
    fewer = seated(four, [0, 1, 3])
    assert fewer is not None
    assert (fewer[0].dp, fewer[0].accumulation, fewer[0].micro_batch, fewer[1]) == (3, 4, 2, (0, 1, 3))
    shared = Layout.parse({**FOUR, "global_batch": 8})
    assert [s and s[1] for s in (seated(shared, [3, 1, 0]), seated(shared, []))] == [
        (1, 3),
        None,
    ]  # three can't share 8

    shards = Layout.parse({**FOUR, "zero_stage": 3, "dp_replicate": 2})
    assert replicas(shards) == ((0, 1), (2, 3))
    one = seated(shards, [1])
    assert one is not None
    assert (one[0].dp_replicate, one[0].dp_shard, one[0].zero_stage, one[1]) == (1, 2, 3, (2, 3))
    pipeline = Layout.parse({**FOUR, "dp_replicate": 2, "pp": 2})
    assert replicas(pipeline) == ((0, 2), (1, 3))
    assert seated(pipeline, [0, 1]) == (pipeline, (0, 1, 2, 3))
    islands = Layout.parse({**FOUR, "dp_replicate": 2})
    assert replicas(islands, islands=True) == ((0, 1), (2, 3))
    assert len(replicas(islands)) == 4


@pytest.mark.parametrize(
    ("layout", "more", "message"),
    [
        (
            {**FOUR, "zero_stage": 3, "dp_replicate": 1},
            {},
            "4 ranks hold the model once between them.*set layout.dp_repl",
        ),
        (FOUR, {"overlap": 1}, r"diloco.overlap 1.*use overlap 0"),
        (FOUR, {"engine": "deepspeed"}, "deepspeed can't change its ranks"),
        (FOUR, {"store": True}, "a save on its way there needs"),
    ],
)
def test_runs_whose_replicas_cannot_go_on(layout: dict[str, Any], more: dict[str, Any], message: str) -> None:
    given = {"islands": False, "overlap": 0, "engine": "scalewright", "store": False, **more}
    with pytest.raises(UserError, match=message):
        check_in_process(ElasticSpec(in_process=True), Layout.parse(layout), **given)
    check_in_process(ElasticSpec(), Layout.parse(layout), **given)


def test_under_another_launcher_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(
        UserError, match=r"the starter of these ranks.*ends all of them.*elastic: true goes on by a restart"
    ):
        run(base(tmp_path, layout=FOUR))


def test_which_step_all_can_stand_at() -> None:
    """The newest that any has done; who hasn't takes the report of a rank of its island that has it."""
    done, missed, new = Standing(5), Standing(4, broken=True), Standing(-1)
    assert settled_step([done, missed, new]) == 5
    assert sources([done, missed, new], 5) == {0: 0}
    assert sources([missed, missed], 4) == {}  # nobody has done it: it is done again
    heard = Standing(4, broken=True, summed=True, island=1)
    assert sources([done, Standing(4, broken=True, island=1), heard], 5) == {1: 2}
    with pytest.raises(RunError, match=r"stand at steps \[3, 5\]"):
        sources([done, Standing(3)], 5)


def test_who_copies_from_whom() -> None:
    """From the same place in another replica, the load spread over those."""
    assert copies([(0,), (1,), (2,), (3,)], [0, 1]) == [(0, 2), (1, 3)]
    assert copies([(0, 2), (1, 3)], [0, 2, 1]) == [(2, 3)]
    with pytest.raises(RunError, match="no replica is whole"):
        copies([(0, 1), (2, 3)], [0, 3])


class Worker:
    """A worker as its supervisor sees it."""

    def __init__(self, *, ready: bool = False) -> None:
        self.answer: tuple[str, Any] | None = None
        self.ready, self.told, self.accuses = ready, list[Any](), None

    def tell(self, message: Any) -> None:
        self.told.append(message)


class Keeper:
    """Single ranks are replicas, and two must be left."""

    patience_s, retry_s = 60.0, 0.0

    def __init__(self, allows: bool = True) -> None:
        self.allows, self.errors = allows, list[str]()

    def seats(self, live: Any, first: Any) -> tuple[int, ...]:
        return tuple(sorted(live)) if len(live) > 1 else ()

    def begin(self, seats: Any, error: RunError | None) -> tuple[Any, ...] | None:
        self.errors.append(str(error))
        return ("run",) if self.allows else None

    def say(self, text: str) -> None:
        self.errors.append(text)


DIED = ("died", (-signal.SIGKILL, True))


def test_what_a_supervisor_tells_its_workers() -> None:
    """A death: all hear of it, come, and go on; a new process is asked in at a step's end."""
    workers, keeper = [Worker() for _ in range(3)], Keeper()
    regroups = Regroups(keeper, workers, lambda seat: Worker())
    workers[0].answer = DIED
    assert regroups.takes(0, DIED)
    assert [worker.told for worker in workers[1:]] == [[LOST], [LOST]]
    workers[1].ready = True
    regroups.look()
    assert workers[1].told == [LOST]  # not before all are there
    workers[2].ready = True
    regroups.look()
    assert [worker.told[-1] for worker in workers[1:]] == [Go(r, 2, 1, False, ("run",)) for r in (0, 1)]
    assert keeper.errors == ["worker 0 was killed by SIGKILL"]
    assert (regroups.members, workers[0].answer) == ((1, 2), None)  # another one

    workers[0].ready = True
    regroups.look()
    assert [worker.told[-1] for worker in workers[1:]] == [ASKED, ASKED]
    workers[1].ready = workers[2].ready = True
    regroups.look()
    assert workers[0].told == [Go(0, 3, 2, True, ("run",))]
    assert not regroups.over()


def test_failures_that_nobody_outlives() -> None:
    workers = [Worker() for _ in range(2)]
    regroups = Regroups(Keeper(), workers, lambda seat: Worker())
    assert not regroups.takes(0, ("raise", UserError("a mistake", "layout", "mend it")))
    workers[0].answer = DIED
    assert regroups.takes(0, DIED)
    with pytest.raises(Died, match="the others were stopped") as caught:
        regroups.look()
    assert caught.value.ranks == (0,)

    workers = [Worker(ready=True) for _ in range(3)]
    workers[0].answer = DIED
    regroups = Regroups(Keeper(allows=False), workers, lambda seat: Worker())  # the same again and again
    assert regroups.takes(0, DIED)
    with pytest.raises(Died):
        regroups.look()
