"""A line before ten seconds are silent: what is under way, and none where something else was shown."""

from __future__ import annotations

import time

import pytest

from scalewright.spec.common.heartbeat import SILENT_S, Heartbeat


def wait_for(lines: list[str], count: int) -> None:
    end = time.monotonic() + 10
    while len(lines) < count:
        assert time.monotonic() < end, lines
        time.sleep(0.01)


def test_the_limit_leaves_room_for_a_busy_machine() -> None:
    assert SILENT_S <= 9


def test_lines_say_what_is_under_way_and_since_when() -> None:
    lines: list[str] = []
    with Heartbeat("reading", every_s=0.05, write=lines.append) as heart:
        wait_for(lines, 2)
        heart.now("writing")
        wait_for(lines, len(lines) + 2)
    assert lines[0] == "reading: 0 s so far"
    assert lines[-1] == "writing: 0 s so far"


def test_the_first_line_comes_earlier_since_loading_was_silent_too() -> None:
    lines: list[float] = []
    began = time.monotonic()
    with Heartbeat("reading", every_s=1.2, write=lambda _: lines.append(time.monotonic() - began)):
        while len(lines) < 2 and time.monotonic() < began + 20:
            time.sleep(0.01)
    assert lines[0] > 0.75  # 0.8 s
    assert lines[1] - lines[0] > 1.15


def test_none_while_others_are_heard_and_none_after() -> None:
    lines: list[str] = []
    with Heartbeat("reading", every_s=0.5, write=lines.append) as heart:
        for _ in range(14):
            time.sleep(0.05)
            heart.heard()
    time.sleep(0.6)
    assert lines == []


@pytest.mark.parametrize("quiet", [{"enabled": False}, {"what": ""}])
def test_none_where_nothing_is_to_be_said(quiet: dict[str, object]) -> None:
    lines: list[str] = []
    with Heartbeat(**{"what": "reading", "every_s": 0.01, "write": lines.append, **quiet}):  # type: ignore[arg-type]
        time.sleep(0.1)
    assert lines == []


def test_a_reader_that_left_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("scalewright.spec.common.heartbeat.print", gone, raising=False)
    with Heartbeat("reading", every_s=0.01):
        time.sleep(0.05)


def test_a_name_can_t_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    with Heartbeat("reading \x1b[2J", every_s=0.02):
        time.sleep(0.1)
    assert "\\x1b[2J: 0 s so far" in capsys.readouterr().err
