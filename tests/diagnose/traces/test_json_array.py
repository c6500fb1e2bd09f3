"""Events of whole, cut-off and damaged files; whatever is in them, nothing raises but NotATrace."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from scalewright.diagnose.traces.json_array import EventArray, NotATrace

EVENTS = [
    {"ph": "X", "name": f"k{number}", "ts": number, "args": {"dims": [{"a": 1}, {"b": [2]}]}} for number in range(200)
]
DOCUMENT = {"schemaVersion": 1, "traceEvents": EVENTS, "traceName": "t", "pg_config": [{"ranks": "[0]"}, {"x": 1}]}


def pieces(text: bytes, size: int) -> Iterator[bytes]:
    for place in range(0, len(text), size):
        yield text[place : place + size]


def read(text: bytes, size: int = 700) -> tuple[list[Any], EventArray[Any]]:
    array = EventArray(pieces(text, size), msgspec.json.Decoder(list[dict[str, Any]]).decode)
    return [event for chunk in array for event in chunk], array


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("size", [1, 13, 700, 1 << 20])
def test_events_and_what_stands_around_them(indent: int | None, size: int) -> None:
    events, array = read(json.dumps(DOCUMENT, indent=indent).encode(), size)
    assert events == EVENTS
    assert array.outside == {key: value for key, value in DOCUMENT.items() if key != "traceEvents"}
    assert array.damage == []


def test_a_bare_list_and_an_empty_one() -> None:
    assert read(json.dumps(EVENTS).encode())[0] == EVENTS
    events, array = read(b'{"traceEvents": [], "a": 1}')
    assert (events, array.outside, array.damage) == ([], {"a": 1}, [])


@pytest.mark.parametrize("text", [b"", b"{}", b'{"a": 1}', b"\x00" * 100, b'{"traceEvents": 3}'])
def test_what_has_no_events_is_not_a_trace(text: bytes) -> None:
    with pytest.raises(NotATrace):
        read(text)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_file_that_was_cut_off_keeps_the_events_before(share: float) -> None:
    text = json.dumps(DOCUMENT | {"pg_config": []}).encode()
    text = text[: int(share * text.rindex(b'"traceName"'))]
    events, array = read(text)
    assert events == EVENTS[: len(events)]
    assert len(events) >= share * len(EVENTS) - 2
    assert any("cut off" in line for line in array.damage)


def test_one_damaged_event_costs_that_event() -> None:
    text = json.dumps(DOCUMENT).encode().replace(b'"name": "k77"', b'"name": k77"')
    events, array = read(text)
    assert [event["ts"] for event in events] == [number for number in range(200) if number != 77]
    assert len(array.damage) == 1
    assert array.outside["traceName"] == "t"


@pytest.mark.parametrize("bad", [b'"k7\x017"', b'"k\xff77"', b'"k77", "bw": NaN', b'"k77", "bw": -inf'])
def test_what_json_forbids_but_profilers_write_is_repaired(bad: bytes) -> None:
    text = json.dumps(DOCUMENT).encode().replace(b'"k77"', bad)
    events, array = read(text)
    assert len(events) == len(EVENTS)
    assert array.damage == ["characters that JSON doesn't allow were replaced"]


@pytest.mark.parametrize("seed", range(150))
def test_random_damage_never_raises_and_never_invents_events(seed: int) -> None:
    source = random.Random(seed)
    text = bytearray(json.dumps(DOCUMENT, indent=source.choice([None, 1])).encode())
    for _ in range(source.randint(1, 12)):
        place = source.randrange(len(text))
        match source.randrange(4):
            case 0:
                text[place] = source.randrange(256)
            case 1:
                del text[place : place + source.randint(1, 60)]
            case 2:
                text[place:place] = bytes(source.randrange(256) for _ in range(source.randint(1, 20)))
            case _:
                text[place:place] = source.choice([b"{", b"}", b"[", b"]", b'"', b"},{", b"\\"])
    try:
        events, _ = read(bytes(text), source.choice([64, 700, 1 << 20]))
    except NotATrace:
        return
    assert len(events) <= 4 * len(EVENTS)
