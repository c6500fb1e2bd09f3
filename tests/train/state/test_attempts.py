"""A run's failures: what is written of them, and what the next start makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalewright.spec.errors import RunError
from scalewright.train.state.attempts import (
    ALIKE,
    SILENT,
    STUCK,
    GaveUpError,
    Verdict,
    decide,
    find_recovery,
    judge,
    last_step,
    note_failure,
    note_silent_end,
    went_back,
)


def fault(step: int = 7, failure: str = "worker # was killed by SIGKILL") -> dict[str, Any]:
    return {"time": 5.0, "kind": "fault", "failure": failure, "step": step, "message": "why"}


RESUME: dict[str, Any] = {"time": 1.0, "kind": "resume", "step": 5, "world": 4}
BACK = {"time": 6.0, "kind": "back", "aside": "step-00000010.aside-1"}


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        ([], Verdict()),
        ([RESUME, fault()] * 2, Verdict()),
        ([RESUME, fault()] * 3, Verdict(back=True)),
        ([RESUME, fault(), fault(), RESUME, fault(8)], Verdict()),  # it got further
        ([RESUME, fault(), fault(failure="another"), fault()], Verdict()),
        ([fault(), fault(), {"kind": "finish"}, RESUME, fault()], Verdict()),
        ([fault(), fault(), {"kind": "fault", "gave_up": True}, fault()], Verdict()),
        ([fault()] * 3 + [BACK, RESUME], Verdict(back=True)),  # looked at twice: nothing new has happened
        ([{"kind": "fault", "message": "step 7: disk full"}] * 5, Verdict()),  # a save that failed ends nothing
    ],
)
def test_the_third_failure_alike(events: list[dict[str, Any]], verdict: Verdict) -> None:
    if events[-2:-1] == [BACK]:
        assert judge(events).stop
    else:
        assert judge(events) == verdict


def test_the_same_again_from_the_checkpoint_before_is_the_end() -> None:
    assert "also from the checkpoint before" in judge([*[fault()] * ALIKE, BACK, RESUME, fault()]).stop


def test_many_failures_that_get_nowhere() -> None:
    events = [fault(10 - number % 3, f"cause {number}") for number in range(STUCK)]
    assert judge(events[1:]) == Verdict()
    assert f"{STUCK} failures" in judge(events).stop
    assert judge([*events[:-1], fault(11, "cause")]) == Verdict()


def write(folder: Path, *events: dict[str, Any], saves: tuple[int, ...] = ()) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    for step in saves:
        place = folder / "checkpoints" / f"step-{step:08d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "COMMIT").touch()


def there(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_one_checkpoint_back_and_then_the_end(tmp_path: Path) -> None:
    """The checkpoint that wasn't at fault has its name again, so that nothing is lost by the attempt."""
    write(tmp_path, *[RESUME, fault()] * 3, saves=(5, 10))
    assert "set step-00000010 aside after 3 failures alike: the run goes on from step-00000005" in decide(tmp_path)
    assert there(tmp_path) == ["step-00000005", "step-00000010.aside-1"]
    assert went_back(tmp_path)
    note_failure(tmp_path, RunError("the same"))  # another failure: one more start
    assert decide(tmp_path) == ""
    write(tmp_path, *[RESUME, fault()] * 3, BACK, RESUME, fault())
    with pytest.raises(GaveUpError, match=r"4 times the same failure at step 7, also from the checkpoint before.*why"):
        decide(tmp_path)
    assert there(tmp_path) == ["step-00000005", "step-00000010"]


@pytest.mark.parametrize(("saved", "back"), [((), False), ((9,), True), ((4, 9), False)])
def test_the_only_checkpoint_there_is(tmp_path: Path, saved: tuple[int, ...], back: bool) -> None:
    """A first save may go: the run begins anew. One of many saves, of which one is kept, may not."""
    saves = [{"kind": "save", "step": step} for step in saved]
    write(tmp_path, *saves, *[fault()] * 3, saves=saved[-1:])
    if back:
        assert "the run begins anew" in decide(tmp_path)
    else:
        with pytest.raises(GaveUpError, match="no checkpoint to go back to"):
            decide(tmp_path)


def test_a_note_has_what_a_restart_compares(tmp_path: Path) -> None:
    write(tmp_path, RESUME)
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 3}\n{"kind": "valid", "step": 3}\n{"kind": "tr')
    assert last_step(tmp_path) == 3

    def raised() -> Exception:
        try:
            raise ArithmeticError("at 0.1234")
        except ArithmeticError as error:
            return error

    note_failure(tmp_path, raised(), detect_s=1.5)
    died = RunError("worker 3 was killed by SIGKILL; the others were stopped")
    died.ranks = (3,)
    note_failure(tmp_path, died)
    first, second = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()][1:]
    assert first["failure"].startswith("ArithmeticError in raised (test_attempts.py:")
    assert (first["step"], first["detect_s"], second["ranks"]) == (3, 1.5, [3])
    assert second["failure"] == "worker # was killed by SIGKILL"


def test_an_end_without_a_word(tmp_path: Path) -> None:
    """Rank 0 died with its node: the next start notes that, once; and not where the run has ended by itself."""
    write(tmp_path, RESUME, {"kind": "save", "step": 10})
    note_silent_end(tmp_path)
    note_silent_end(tmp_path)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event.get("failure") for event in events] == [None, None, SILENT]
    write(tmp_path, RESUME, {"kind": "stop", "step": 10})
    note_silent_end(tmp_path)
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2


def test_what_a_start_comes_after(tmp_path: Path) -> None:
    write(tmp_path, RESUME, fault())
    recovery = find_recovery(tmp_path)
    assert recovery is not None
    recovery.met, recovery.loaded = 7.0, 9.0
    fields = recovery.fields(3)
    assert (fields["world_before"], fields["world"], fields["rendezvous_s"], fields["load_s"]) == (4, 3, 2.0, 2.0)
    assert "detect_s" not in fields  # nobody measured it
    recovery.fault = {**recovery.fault, "detect_s": 1.5}
    assert recovery.fields(3)["detect_s"] == 1.5
    write(tmp_path, RESUME, fault(), RESUME)
    assert find_recovery(tmp_path) is None
    assert not went_back(tmp_path)
    write(tmp_path, fault(), RESUME, {"kind": "stop"})
    assert find_recovery(tmp_path) is None


def test_lines_that_damage_changed_are_no_events(tmp_path: Path) -> None:
    odd = [
        {"kind": "fault", "failure": "x"},
        {"kind": "resume", "step": "4", "time": 2.0},
        {"kind": "fault", "failure": "x", "time": None},
        {"kind": "fault", "failure": "x", "time": 3.0, "step": 1e400},
    ]
    write(tmp_path, *odd, RESUME, fault(), *odd)
    note_silent_end(tmp_path)
    recovery = find_recovery(tmp_path)
    assert recovery is not None
    assert recovery.begun == 5.0
    assert decide(tmp_path) == ""


@pytest.mark.parametrize("aside", ["../../mine.txt", ".mine", "step-00000010./../../mine.txt", 7])
def test_a_line_names_no_file_elsewhere(tmp_path: Path, aside: object) -> None:
    run = tmp_path / "run"
    (tmp_path / "mine.txt").write_text("mine")
    write(run, BACK | {"aside": aside}, *[RESUME, fault()] * 4, saves=(5,))
    with pytest.raises(GaveUpError):
        decide(run)
    assert (tmp_path / "mine.txt").exists()
    assert there(run) == ["step-00000005"]
