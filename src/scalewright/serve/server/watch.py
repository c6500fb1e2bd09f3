"""The engine's picture for the page, and the steps since it was last asked for.

    {"now": 12.40, "steps": [[12.310, 12.334, [[3, 64, 1], [5, 1, 0]], [8]], ...], "requests": [...], ...}
                              began   ended    request 3 had 64 tokens of its prompt read, 5 wrote one, 8 waited

Steps are kept while somebody looks, and for two seconds more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from scalewright.serve.engine import Engine

KEPT, LOOKS_S = 500, 2.0


class Watch:
    """Used by the engine's thread alone."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float, list[tuple[int, int, int]], list[int]]] = deque(maxlen=KEPT)
        self._until = 0.0

    def note(self, began: float, engine: Engine, prompts: Mapping[int, int]) -> None:
        """Keeps the step that `began` then; `prompts`: the length of every request's."""
        if began < self._until:
            picture, counts = engine.picture(), dict[int, list[int]]()
            for item in picture["batch"]:
                counts.setdefault(item["number"], [item["start"], 0])[1] += item["count"]
            rows = [(number, count, int(start < prompts.get(number, 0))) for number, (start, count) in counts.items()]
            waiting = [each["number"] for each in picture["requests"] if each["state"] == "waiting"]
            self._steps.append((began, time.monotonic(), rows, waiting))

    def picture(self, engine: Engine, since: float) -> dict[str, Any]:
        """What is now, and the steps that ended after `since`."""
        now = time.monotonic()
        if now > self._until:
            self._steps.clear()
        self._until = now + LOOKS_S
        steps = [step for step in self._steps if step[1] > since]
        return {"now": now, "steps": steps, "generated_tokens": engine.stats().generated_tokens, **engine.picture()}
