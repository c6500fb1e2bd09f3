"""The steps that the page draws: kept while somebody looks."""

from __future__ import annotations

from typing import Any

from scalewright.serve.request import Request
from scalewright.serve.server.watch import Watch
from serve.server.fake import FakeEngine


def test_steps_are_kept_while_somebody_looks() -> None:
    engine, watch = FakeEngine(), Watch()
    numbers = [engine.add(Request([1, 2, 3], 9)) for _ in range(9)]
    engine.step()
    watch.note(0.0, engine, {})
    first: Any = watch.picture(engine, 0.0)
    assert (first["steps"], len(first["requests"])) == ([], 9)  # nobody had looked
    engine.step()
    watch.note(first["now"], engine, dict.fromkeys(numbers, 3))
    second: Any = watch.picture(engine, first["now"])
    ((began, ended, rows, waiting),) = second["steps"]
    assert first["now"] == began <= ended
    assert rows == [(number, 1, 1) for number in numbers[:8]]  # the fake's second token: within three of a prompt
    assert waiting == [numbers[8]]
    assert watch.picture(engine, second["now"])["steps"] == []
