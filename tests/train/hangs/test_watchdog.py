"""Ranks that stop, sleep, or take another turn: named while the others wait, and when the run gives up.

Patience is short here, so on a busy machine a rank may be named that was only slow; what is tested is that
the right one is, while it is the cause.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runs import events, merge, rows, run_data, wait_for
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.spec.errors import RunError
from scalewright.spec.run import RunSpec, TimeoutsSpec
from scalewright.train.hangs import process, watchdog
from scalewright.train.hangs.board import FolderBoard, Patience, Position, Waiting
from scalewright.train.hangs.position import position, source_line
from scalewright.train.hangs.watchdog import STEADY, Watchdog
from scalewright.train.resolve import Resolved, resolve
from scalewright.train.run import PRELOAD
from scalewright.train.start import Start
from scalewright.train.worker import work
from worlds import one_rank

SHORT = {"tick_s": 0.1, "step_s": 1.0, "answer_s": 1.0, "stalled_s": 2.0, "grace_s": 6.0}


def watched(context: RankContext, resolved: Resolved, patience: dict[str, float]) -> Any:
    """A rank's life with little patience."""
    return work(context, Start(resolved, "cpu", quiet=True, patience=Patience(**patience)))


def train_wrong(folder: Path, how: str, steady_s: float, **changes: Any) -> Any:
    """Three ranks, of which the last goes wrong in its eighth step or so."""
    loss = {"python": "train.hangs.hang_parts:wrong_on_one", "how": how, "rank": 2, "at": 16}
    layout = {"devices": 3, "zero_stage": 3, "global_batch": 12, "micro_batch": 2}
    timeouts = {"start_s": 120, "steady_s": steady_s}
    data = run_data(
        folder, layout=layout, train={"steps": 12, "timeouts": timeouts}, loss={**loss, "folder": str(folder)}
    )
    resolved = resolve(RunSpec.parse(merge(data, changes)))
    return run_local(watched, (resolved, SHORT), 3, preload=PRELOAD, threads=1)


@pytest.mark.skipif(sys.platform == "win32", reason="stops a process by a signal")
def test_a_stopped_rank_is_named_and_the_run_goes_on_with_it(tmp_path):
    """SIGSTOP of rank 2: named with the collective that the others wait in; SIGCONT: all 12 steps."""

    def of_rank_2() -> list[dict[str, Any]]:
        file = tmp_path / "out" / "events.jsonl"
        return [event for event in events(file.parent, "hang") if event["rank"] == 2] if file.exists() else []

    hangs = tmp_path / "out" / "hangs"
    seen: dict[str, Any] = {}

    def see() -> bool:
        """Reads what rank 1 recorded, which may just be written."""
        with suppress(ValueError):
            seen["collectives"] = json.loads((hangs / "rank-00001.json").read_text())
            seen["stacks"] = (hangs / "rank-00000.txt").read_text()
        return len(seen) == 2

    def wake() -> None:
        wait_for(lambda: (tmp_path / "stopped").exists(), 120, "the stop")
        try:
            wait_for(of_rank_2, 60, "the report")
            wait_for(see, 60, "what was recorded")  # now: on a busy machine a later wait is recorded over it
        finally:
            os.kill(int((tmp_path / "stopped").read_text()), signal.SIGCONT)

    waker = threading.Thread(target=wake)
    waker.start()
    answer = train_wrong(tmp_path, "stop", steady_s=100)
    waker.join()
    assert answer["step"] == 12
    hang = of_rank_2()[-1]
    assert (hang["axis"], hang["collective"], hang["where"]) == ("dp_shard", "all_gather", "")
    assert hang["number"] > 100
    pid, host = int((tmp_path / "stopped").read_text()), socket.gethostname()
    assert (hang["host"], hang["pid"]) == (host, pid)
    assert f"rank 2 (pid {pid} on {host}) does not answer" in hang["message"]
    assert "ranks 0 and 1 wait in all_gather" in hang["message"]
    assert "scalewright/parallel/execute.py" in hang["message"]
    over = [event["time"] for event in events(tmp_path / "out", "continued")]
    assert over
    assert max(over) > hang["time"]
    assert "in all_gather number" in seen["stacks"]
    assert "parallel/execute.py" in seen["stacks"]
    assert seen["collectives"][-1]["profiling_name"] == "gloo:all_gather"


def test_a_rank_that_never_comes_ends_the_run_with_its_name(tmp_path):
    """It sleeps in the user's code; the others' collective times out, and the error names line and key."""
    with pytest.raises(RunError) as caught:
        train_wrong(tmp_path, "sleep", steady_s=6)
    text = str(caught.value)
    assert "rank 2 is at hang_parts.py:" in text
    assert "ranks 0 and 1 wait in all_gather" in text
    assert "gave up after 6 s (train.timeouts.steady_s)" in text
    assert len(rows(tmp_path / "out")) < 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("skip", "rank 2 began all_gather"),
        ("order", "rank 2 wait for each other: rank 2 in all_reduce"),
        ("shape", "rank 2 began all_reduce of 5,000 elements"),
    ],
)
def test_ranks_that_take_different_turns(tmp_path, how, words):
    """A collective left out, two in another order, one of another size: found by what each rank began."""
    with pytest.raises(RunError) as caught:
        train_wrong(tmp_path, how, steady_s=6)
    assert words in str(caught.value)
    if how != "shape":  # which Gloo answers at once by ending a process
        assert events(tmp_path / "out", "hang")[-1]["rank"] == 2


@pytest.mark.slow
def test_a_pipeline_rank_that_sleeps(tmp_path):
    """Messages are in no flight recorder: they are read from the stack."""
    layout = {"pp": 3, "zero_stage": 0, "global_batch": 4, "micro_batch": 2}
    with pytest.raises(RunError, match=r"rank 2 is at hang_parts.py:\d+ .* wait in receive number \d+ of pp"):
        train_wrong(tmp_path, "sleep", steady_s=6, layout=layout)


@pytest.mark.slow
def test_a_data_loader_that_stalls(tmp_path):
    """Nothing of the rank's own waits in a collective: it waits for its next batch."""
    data = {"python": "train.hangs.hang_parts:Stalling", "rank": 2, "at": 96, "seq_len": 16}
    with pytest.raises(RunError, match=r"rank 2 is at scalewright/data/prefetch.py:\d+"):
        train_wrong(tmp_path, "nothing", steady_s=6, data=data)


# -- one rank ----------------------------------------------------------------------------------------


@pytest.fixture
def watch(tmp_path):
    mesh, _ = one_rank()
    patience = Patience(stalled_s=10.0, stalled_usual=5.0)
    return Watchdog(RankContext(), mesh, tmp_path, TimeoutsSpec(), patience)


def test_a_heartbeat_while_a_step_takes_long(watch, tmp_path, capsys):
    """Usual are 0.5 s; the fourth step is reported at 10 s and not at 9, once, and again when it is over."""
    now = [1000.0]
    watch._step_began = now[0]
    for step, seconds in enumerate((9.0, 0.5, 0.5, 0.5), 1):  # the first compiles
        now[0] += seconds
        watch._now = lambda: now[0]
        watch.stepped(step)
    watch._look(now[0])
    for later in (9.0, 10.5, 12.0, 14.0):
        watch._look(now[0] + later)
        assert bool(events_or_none(tmp_path, "stalled")) == (later > 10)
    (stalled,) = events(tmp_path, "stalled")
    assert (stalled["step"], stalled["seconds"], stalled["usual_s"]) == (5, 10.5, 0.5)
    assert "step 5 has taken 10 s so far, usual are 0.5 s" in capsys.readouterr().err
    now[0] += 20.0
    watch.stepped(5)
    watch._look(now[0])
    (over,) = events(tmp_path, "continued")
    assert over["seconds"] == 20.0
    assert "the run goes on, after 20 s" in capsys.readouterr().err


def test_a_save_and_the_first_step_are_no_stalls(watch, tmp_path):
    now = [1000.0]
    watch._now = lambda: now[0]
    watch.begins(0, None)
    watch._look(now[0] + 500)
    for step in range(1, 6):
        now[0] += 0.5
        watch.stepped(step)
    with watch.phase("save"):
        for later in range(0, 300, 2):
            watch._look(now[0] + later)
        now[0] += 300
    watch._look(now[0] + 5)
    watch.ends()
    watch._look(now[0] + 500)
    assert not events_or_none(tmp_path, None)


def events_or_none(folder: Path, kind: str | None) -> list[dict[str, Any]]:
    return events(folder, kind) if (folder / "events.jsonl").exists() else []


def test_the_line_of_source_is_ours_or_the_users():
    torch_file = torch.__file__
    ours = Path(sys.modules["scalewright.train.step"].__file__ or "")
    helper = ours.parent.parent / "parallel" / "collectives.py"
    stack = [(torch_file, 1), (threading.__file__, 2), ("<string>", 3), (str(helper), 4), (str(ours), 5)]
    assert source_line(stack) == "scalewright/train/step.py:5"
    assert source_line(stack[:4]) == "scalewright/parallel/collectives.py:4"
    assert source_line([(torch_file, 1), ("/home/me/my_loss.py", 7), (str(ours), 5)]) == "my_loss.py:7"
    assert source_line(stack[:3]) == ""


def test_while_torch_compiles_the_phase_is_another(tmp_path):
    code = compile("found = position(0, 3, 'step', thread, None, [])", "/x/torch/_dynamo/convert_frame.py", "exec")
    values: dict[str, Any] = {"position": position, "thread": threading.get_ident()}
    exec(code, values)
    assert values["found"].phase == "compile"
    assert position(0, 3, "step", threading.get_ident(), None, []).phase == "step"


def test_the_watch_goes_on_after_an_error_and_reports_it_once(watch, capsys):
    looks = []

    def look(now: float) -> None:
        looks.append(now)
        if len(looks) == 5:
            watch._end.set()
        raise TypeError("of a post")

    watch._look = look
    watch.patience = Patience(tick_s=0.001)
    watch._watch()
    assert len(looks) == 5
    assert capsys.readouterr().err == "watchdog of rank 0: TypeError('of a post'); it goes on\n"


# -- two ranks on one clock ----------------------------------------------------------------------------


class Pair:
    """Two watchdogs without threads or groups: rank 0 meets rank 1 in collective 7, or goes on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mesh, _ = one_rank()
        self.now, self.ended, self.dumps, self.waits = 1000.0, [], [], False
        self.ranks = [Watchdog(RankContext(), mesh, folder, TimeoutsSpec(), Patience()) for _ in range(2)]
        for rank, watch in enumerate(self.ranks):
            monkeypatch.setattr(watch, "rank", rank)
            monkeypatch.setattr(watch, "mesh", SimpleNamespace(world=2, device=torch.device("cpu")))
            monkeypatch.setattr(watch, "_board", FolderBoard(folder / "board"))
            monkeypatch.setattr(watch, "_now", lambda: self.now)
            monkeypatch.setattr(watch, "_position", lambda rank=rank: self.position(rank))
            monkeypatch.setattr(watch, "_give_up", lambda reason, rank=rank: self.ended.append(rank))
            watch._progress_at = watch._looked_at = self.now
            watch._usual.extend([1.0] * 3)
        monkeypatch.setattr(watchdog, "flights", self.flights)
        monkeypatch.setattr(process, "flights", self.flights)
        self.phases = [STEADY, STEADY]

    def flights(self, *, stacks: bool = False) -> list[dict[str, Any]]:
        self.dumps.append(stacks)
        return []

    def position(self, rank: int) -> Position:
        call = Waiting("dp", "dp", "all_reduce", 7, (8,), "a.py:1", (0, 1)) if self.waits and rank == 0 else None
        return Position(rank, 4, self.phases[rank], "a.py:1", call, {"dp": 7 if call else 6})

    def run(self, seconds: float, *, waits: bool) -> None:
        """Rank 1 computes all the time; rank 0 waits for it, or gets on."""
        self.waits = waits
        for _ in range(int(seconds)):
            self.now += 1.0
            for watch, phase in zip(self.ranks, self.phases, strict=True):
                watch._phase = phase if phase != "compile" else STEADY
                watch._marks += not waits and watch.rank == 0
                watch._look(self.now)


def test_a_rank_that_is_only_slow_is_not_ended_before_others_waited_for_the_timeout(tmp_path, monkeypatch):
    """It has computed for 400 s, and others have waited for it for 20: a line, and no end until 315."""
    pair = Pair(tmp_path, monkeypatch)
    pair.run(400, waits=False)
    pair.run(20, waits=True)
    (hang,) = events(tmp_path, "hang")
    assert hang["rank"] == 1
    assert "no progress for 8 s" in hang["message"], "how long rank 0 has waited"
    pair.run(290, waits=True)
    assert not pair.ended
    pair.run(10, waits=True)
    assert set(pair.ended) == {0, 1}
    assert len(events(tmp_path, "hang")) == 1


@pytest.mark.parametrize("phases", [("save", "save"), (STEADY, "save"), ("start", "start"), (STEADY, "compile")])
def test_slow_phases_are_no_hangs_for_a_share_of_their_timeout(tmp_path, monkeypatch, phases):
    """A quarter of 1800 s, also where the others are in the next step; stacks are dumped after it."""
    pair = Pair(tmp_path, monkeypatch)
    pair.phases = list(phases)
    pair.run(400, waits=True)
    assert not events_or_none(tmp_path, "hang")
    assert not any(pair.dumps)
    if phases[0] != STEADY:  # of which it is rather the timeout's turn
        pair.run(120, waits=True)
        assert len(events(tmp_path, "hang")) == 1
        assert any(pair.dumps)


# -- a connection that broke ---------------------------------------------------------------------------

RESET = "[/pytorch/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:18345: Connection reset by peer. GLHF!"


@pytest.mark.parametrize(
    ("starter", "others", "words"),
    [
        ("torchrun", [0], r"rank 1's connection ended \(pid 4321 on node7\): it has failed or was killed; its own"),
        ("torchrun", [0, 1], "the connection to another rank ended: it has failed or was killed; its own error"),
        ("local", [0], None),  # the launcher sees how the other one ended
    ],
)
def test_the_error_of_a_rank_whose_peer_has_gone(tmp_path, monkeypatch, starter, others, words):
    """One sentence instead of Gloo's, with the rank that doesn't report the same."""
    mesh, _ = one_rank()
    monkeypatch.setattr(process, "PATIENCE_S", 0.1)
    monkeypatch.setattr(watchdog, "flights", lambda **keywords: [])
    supervisor = tmp_path if starter == "local" else None
    uri = (tmp_path / "store").as_uri()
    context = RankContext(0, 2, 0, 2, uri, starter=starter, supervisor=supervisor)
    watch = Watchdog(context, mesh, tmp_path, TimeoutsSpec(), Patience())
    board = FolderBoard(tmp_path / "board")
    monkeypatch.setattr(watch, "mesh", SimpleNamespace(world=2, device=torch.device("cpu")))
    monkeypatch.setattr(watch, "_board", board)
    board.post("process-1", {"host": "node7", "pid": 4321})
    for rank in others:
        board.post(f"last-{rank}", Position(rank, 4, "step", "a.py:1", None).dump())
    with pytest.raises(RunError if words else RuntimeError, match=words or "GLHF") as caught, watch:
        raise RuntimeError(RESET)
    assert (type(caught.value) is RunError) == (words is not None)
