"""A run's saves behind the run into its store: whatever ends it at whatever put, what is there is sound."""

from __future__ import annotations

import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from runs import TIMING, run_data, wait_for
from scalewright.api import train
from scalewright.checkpoint.store import upload
from scalewright.checkpoint.store.look import look_into
from scalewright.checkpoint.store.upload import Uploader
from scalewright.checkpoint.verify import Retention
from scalewright.spec.errors import UserError
from scalewright.storage.objects import StoreError, open_store

pytest.importorskip("obstore")


@pytest.fixture(scope="module")
def saves(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The checkpoints of a run, at steps 2, 4, 6, 8 and 10, with two files of tensors each."""
    folder = tmp_path_factory.mktemp("saves")
    train(run_data(folder, optimizer=ADAM, checkpoint={"every": 2, "keep": 5}), quiet=True)
    return sorted((folder / "out" / "checkpoints").iterdir())


ADAM = {"name": "adamw", "lr": 1e-3}


class Half(Uploader):
    """One of two ranks: the second has the optimizer's file. test_kills.py has real ones."""

    def _is_mine(self, name: str) -> bool:
        return name.startswith("optimizer-") == (self.rank == 1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWRIGHT_CACHE", str(tmp_path / "cache"))


class Killed(BaseException):
    """In the place of a process's end."""


class Shim:
    """Counts what changes a store, and from some call on does nothing: as if the process had ended before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
        self.calls, self.last, self._lock = 0, last, threading.Lock()
        for verb in ("put", "delete"):
            real = getattr(upload.Store, verb)

            def shim(store: Any, what: Any, *more: Any, real: Any = real, verb: str = verb) -> None:
                for part in [what] if verb == "put" else what:
                    with self._lock:
                        self.calls += 1
                        if self.calls > self.last:
                            raise Killed
                    real(store, part if verb == "put" else [part], *more)

            monkeypatch.setattr(upload.Store, verb, shim)


def put_all(url: str, saves: list[Path], keep: int = 2, tell: Any = None) -> None:
    """What a run on two ranks does with its saves, one after the other."""
    ranks = [Half(url, rank, 2, Retention(keep), tell if rank == 0 else None) for rank in range(2)]
    for folder in saves:
        for uploader in ranks:
            uploader.offer(folder)
    for uploader in ranks:
        uploader.close()
    for uploader in ranks:
        assert uploader._thread is not None
        uploader._thread.join(20)  # one that is stuck is let go of


def sound(url: str) -> list[str]:
    """The finished checkpoints there, newest first; each must be whole, every byte of it."""
    seen = [there for there in look_into(url, every_byte=True) if (there.folder / "COMMIT").exists()]
    assert [there.problems for there in seen] == [[]] * len(seen)
    return [there.folder.name for there in seen]


def test_all_of_them_arrive_and_old_ones_go(saves, tmp_path):
    events: list[tuple[str, dict[str, Any]]] = []
    url = f"file://{tmp_path}/store"
    put_all(url, saves, tell=lambda kind, message="", **fields: events.append((kind, fields)))
    assert sound(url) == ["step-00000010", "step-00000008"]
    assert [(kind, fields["step"]) for kind, fields in events] == [("store", step) for step in (2, 4, 6, 8, 10)]
    names = {path.name for path in (tmp_path / "store" / "checkpoints").iterdir()}
    assert names == {"step-00000010", "step-00000008"}
    for folder in saves[-2:]:  # a place in a store is a run's folder: `aws s3 cp --recursive` both ways
        there = tmp_path / "store" / "checkpoints" / folder.name
        assert {p.name: p.read_bytes() for p in there.iterdir()} == {p.name: p.read_bytes() for p in folder.iterdir()}


def test_an_end_at_any_put_leaves_a_sound_checkpoint(saves, tmp_path, monkeypatch):
    """Every put and delete of three saves on two ranks, and of the ones that go, in turn the last; then the run comes
    back, and its saves arrive."""
    monkeypatch.setattr(upload, "PAUSES", (0.0,))
    monkeypatch.setattr(upload, "LAST_TRIES", 0)
    first = f"file://{tmp_path}/first"
    put_all(first, saves[:1])
    calls, last = None, 0
    while calls is None or last < calls:
        place = tmp_path / f"at-{last}"
        shutil.copytree(tmp_path / "first", place)
        with monkeypatch.context() as patch:
            shim = Shim(patch, last if calls is not None else 10**9)
            if calls is not None:
                patch.setattr(upload, "STALL_S", 0.05)  # rank 0 has ended, too
            put_all(f"file://{place}", saves[1:4])
        if calls is None:
            calls = shim.calls
            shutil.rmtree(place)
            continue
        assert sound(f"file://{place}"), f"after {last} of {calls}"
        if last % 5 == 0:
            put_all(f"file://{place}", saves[2:])
            assert sound(f"file://{place}")[0] == "step-00000010"
        shutil.rmtree(place)
        last += 1
    assert calls > 30


def test_what_is_there_isn_t_put_again_and_another_of_its_step_replaces_it(saves, tmp_path, monkeypatch):
    url, other = f"file://{tmp_path}/store", tmp_path / "other" / "checkpoints" / saves[1].name
    put_all(url, saves[:2])
    with monkeypatch.context() as patch:
        shim = Shim(patch, 10**9)
        put_all(url, saves[1:2])
        assert shim.calls == 0
    shutil.copytree(saves[1], other)
    train(run_data(tmp_path, optimizer=ADAM, seed=4, checkpoint={"every": 4}), quiet=True, steps=4)
    put_all(url, [tmp_path / "out" / "checkpoints" / saves[1].name])
    assert sound(url) == ["step-00000004", "step-00000002"]
    commit = tmp_path / "store" / "checkpoints" / saves[1].name / "COMMIT"
    assert commit.read_bytes() != (saves[1] / "COMMIT").read_bytes()


def test_a_part_of_an_earlier_attempt_doesn_t_count(saves, tmp_path, monkeypatch):
    """Rank 1's part of step 4 is there, of another save: without its own there is no COMMIT."""
    monkeypatch.setattr(upload, "STALL_S", 0.2)
    monkeypatch.setattr(upload, "PAUSES", (0.01,))
    url, events = f"file://{tmp_path}/store", list[str]()
    open_store(url, create=True).put("parts/00000004-00001", b"of another")
    uploader = Uploader(url, 0, 2, Retention(), lambda kind, message="", **fields: events.append(message))
    uploader.offer(saves[1])
    wait_for(lambda: bool(events), 60, "the first failure")
    uploader.close()
    assert not (tmp_path / "store" / "checkpoints" / "step-00000004" / "COMMIT").exists()
    assert "rank 1 hasn't put its files" in events[0]


def test_a_store_that_fails_is_tried_again_and_said(saves, tmp_path, monkeypatch):
    """Two failures of a put, then none: the save arrives, and the run's events have the reason."""
    monkeypatch.setattr(upload, "PAUSES", (0.01,))
    real, failures, events = upload.Store.put, iter([True, True]), list[tuple[str, str]]()

    def put(store: Any, name: str, content: Any) -> None:
        if next(failures, False):
            raise StoreError("it asks to slow down")
        real(store, name, content)

    monkeypatch.setattr(upload.Store, "put", put)
    uploader = Uploader(
        f"file://{tmp_path}/store", 0, 1, Retention(), lambda kind, message="", **_: events.append((kind, message))
    )
    uploader.offer(saves[0])
    wait_for(lambda: any(kind == "store" for kind, _ in events), 60, "the save to arrive")
    uploader.close()
    assert [kind for kind, _ in events] == ["fault", "fault", "store"]
    assert "step-00000002 isn't in the store yet: it asks to slow down" in events[0][1]
    assert sound(f"file://{tmp_path}/store") == ["step-00000002"]


def test_what_another_rank_meets_is_told(saves, tmp_path, monkeypatch):
    """Rank 1 may not write its file at first; rank 0 has it among the run's events, and both come through."""
    monkeypatch.setattr(upload, "PAUSES", (0.2,))
    real, refused, events = upload.Store.put, iter([True]), list[str]()

    def put(store: Any, name: str, content: Any) -> None:
        if "optimizer" in name and next(refused, False):
            raise UserError("permission was denied")
        real(store, name, content)

    monkeypatch.setattr(upload.Store, "put", put)
    put_all(f"file://{tmp_path}/store", saves[:1], tell=lambda kind, message="", **_: events.append(message))
    assert "step-00000002 isn't in the store yet: rank 1: permission was denied" in events
    assert sound(f"file://{tmp_path}/store") == ["step-00000002"]
    assert not list((tmp_path / "store").glob("parts/*"))


def test_a_slow_store_never_blocks_and_skips_alike(saves, tmp_path, monkeypatch):
    """While one is under way and one waits, `waiting` says so at once; the files are open, so the disk may prune."""
    gate, real = threading.Event(), upload.Store.put

    def put(store: Any, name: str, content: Any) -> None:
        gate.wait(20)
        real(store, name, content)

    monkeypatch.setattr(upload.Store, "put", put)
    copies = [shutil.copytree(folder, tmp_path / "run" / "checkpoints" / folder.name) for folder in saves[:2]]
    uploader = Uploader(f"file://{tmp_path}/store", 0, 1, Retention())
    uploader.offer(copies[0])
    wait_for(lambda: not uploader._queue, 60, "the first to be under way")
    assert not uploader.waiting
    uploader.offer(copies[1])
    assert uploader.waiting
    for copy in copies:
        shutil.rmtree(copy)
    gate.set()
    uploader.close()
    assert sound(f"file://{tmp_path}/store") == ["step-00000004", "step-00000002"]


def test_a_future_that_was_given_up_is_set_aside(saves, tmp_path):
    url = f"file://{tmp_path}/store"
    put_all(url, saves[:3], keep=5)
    uploader = Uploader(url, 0, 1, Retention(5))
    uploader.go_back(2)
    uploader.close()
    assert sound(url) == ["step-00000002"]
    assert (tmp_path / "store" / "checkpoints" / "step-00000006" / "COMMIT.aside").exists()


def test_another_run_s_place_is_refused(saves, tmp_path):
    url = f"file://{tmp_path}/store"
    Uploader(url, 0, 1, Retention()).claim("lost before its first save came")
    Uploader(url, 0, 1, Retention()).claim("this run")
    put_all(url, saves[:1])
    Uploader(url, 0, 1, Retention()).claim("this run")
    with pytest.raises(UserError, match="another run"):
        Uploader(url, 0, 1, Retention()).claim("another")


@pytest.mark.parametrize("key", ["resume", "init"])
def test_a_run_begins_from_a_url(key, saves, tmp_path):
    """As from the same folder on the disk; a node fetches of the files that its ranks read what they read."""
    url = f"file://{saves[2].parent.parent}"
    place = f"{url}/checkpoints/{saves[2].name}" if key == "resume" else url
    for name, source in (("local", str(saves[2] if key == "resume" else saves[-1])), ("there", place)):
        train(run_data(tmp_path, out_dir=str(tmp_path / name), optimizer=ADAM, **{key: source}), quiet=True, steps=8)
    assert rows(tmp_path / "local") == rows(tmp_path / "there")
    fetched = {re.sub(r"^\.ranges-\w+-", "", path.name) for path in (tmp_path / "cache").rglob("*.safetensors")}
    assert fetched == {path.name for path in saves[2].glob("*.safetensors" if key == "resume" else "model-*")}


def rows(folder: Path) -> list[dict[str, Any]]:
    """What two equal runs have written alike."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in row.items() if key not in TIMING} for row in lines]


def test_a_damaged_file_at_a_url_is_named(saves, tmp_path):
    shutil.copytree(saves[2], tmp_path / "store" / saves[2].name)
    (model,) = (tmp_path / "store").rglob("model-00000-*")
    content = bytearray(model.read_bytes())
    content[-3] ^= 1
    model.write_bytes(content)
    with pytest.raises(Exception, match=r"damaged: model-00000-000\.safetensors is damaged"):
        train(
            run_data(tmp_path, optimizer=ADAM, resume=f"file://{tmp_path}/store/{saves[2].name}"), quiet=True, steps=8
        )


@pytest.fixture
def wiped(tmp_path: Path) -> dict[str, Any]:
    """A run that was at step 6 when its disk was lost; its store is left."""
    run = run_data(tmp_path, checkpoint={"every": 2, "store": f"file://{tmp_path}/store"})
    train(run, quiet=True, steps=6)
    shutil.rmtree(tmp_path / "out")
    return run


def test_an_empty_disk_goes_on_from_the_store_bitwise(wiped, tmp_path):
    ended = train(wiped, quiet=True)
    assert ended.resumed_from == 6
    whole = run_data(tmp_path, out_dir=str(tmp_path / "whole"))
    train(whole, quiet=True)
    assert rows(tmp_path / "out") == rows(tmp_path / "whole")


@pytest.mark.parametrize(("stop", "at_end"), [(5, False), (0, False), (0, True)])
def test_the_newest_save_of_a_run_is_there(tmp_path, stop, at_end):
    """Whatever `store_every` says, at a stop and at the end: the machine may be gone."""
    url = f"file://{tmp_path}/store"
    kept = {"every": 2, "store": url, "store_every": 4, "at_end": at_end}
    run = run_data(tmp_path, checkpoint=kept, train={"steps": 6})
    train(run, quiet=True, on_step=lambda row: "stop" if row["step"] == stop else None)
    newest = max(path.name for path in (tmp_path / "out" / "checkpoints").iterdir())
    assert int(newest.split("-")[1]) % 4
    assert sound(url) == [newest, "step-00000004"]


def test_a_damaged_one_in_the_store_is_passed_over(wiped, tmp_path):
    (model,) = (tmp_path / "store" / "checkpoints" / "step-00000006").glob("model-*")
    content = bytearray(model.read_bytes())
    content[-3] ^= 1
    model.write_bytes(content)
    ended = train(wiped, quiet=True, steps=6)
    assert ended.resumed_from == 4
    events = (tmp_path / "out" / "events.jsonl").read_text()
    assert "skipped a checkpoint in the store: step-00000006: " in events


def test_a_store_that_is_gone_is_an_error_only_on_an_empty_disk(wiped, tmp_path, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise StoreError("cannot list there: it doesn't answer in time")

    train(wiped, quiet=True, steps=6)
    monkeypatch.setattr(upload.Store, "list", refuse)
    ended = train(wiped, quiet=True, steps=7)
    assert ended.resumed_from == 6
    assert "it goes on from the disk's step-00000006" in (tmp_path / "out" / "events.jsonl").read_text()
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(Exception, match="cannot look for the run's checkpoints: cannot list there"):
        train(wiped, quiet=True)


def test_no_step_waits_for_a_store(tmp_path, monkeypatch):
    """All steps are done before the store takes its first byte; what had to be left out is said."""
    gate, real = threading.Event(), upload.Store.put

    def put(store: Any, name: str, content: Any) -> None:
        assert name == upload.RUN_ID or gate.wait(30)
        real(store, name, content)

    monkeypatch.setattr(upload.Store, "put", put)
    url = f"file://{tmp_path}/store"
    run = run_data(tmp_path, checkpoint={"every": 1, "store": url})
    train(run, quiet=True, on_step=lambda row: gate.set() if row["step"] == 10 else None)
    assert sound(url) == ["step-00000010", "step-00000002"]
    events = map(json.loads, (tmp_path / "out" / "events.jsonl").read_text().splitlines())
    told = [(event["step"], "behind" in event.get("message", "")) for event in events if event["kind"] == "store"]
    assert [step for step, behind in told if behind] == [3, 4, 5, 6, 7, 8, 9]
    assert [step for step, behind in told if not behind] == [1, 2, 10]
