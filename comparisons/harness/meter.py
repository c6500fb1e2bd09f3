"""CPU time of named calls inside a loop, and of all that is not in them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

INSIDE = ("forward", "backward", "optimizer step")


class Meter:
    """Adds up this thread's CPU time inside named calls; nested ones count for the innermost."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = 0.0

    def wrap(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, timed."""

        def timed(*arguments: Any, **keywords: Any) -> Any:
            outer, self._inner, start = self._inner, 0.0, time.thread_time()
            try:
                return call(*arguments, **keywords)
            finally:
                spent = time.thread_time() - start
                self.seconds[part] += spent - self._inner
                self._inner = outer + spent

        return timed

    @contextmanager
    def attached(self, targets: list[tuple[str, object, str]]) -> Iterator[None]:
        """Times (part, owner, name of the method) while it lasts."""
        before = [(owner, name, vars(owner).get(name)) for _, owner, name in targets]
        for part, owner, name in targets:
            setattr(owner, name, self.wrap(part, getattr(owner, name)))
        try:
            yield
        finally:
            for owner, name, method in before:
                if method is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, method)

    def account(self, run: Callable[[], object], steps: int) -> dict[str, float]:
        """CPU seconds a step of every part, of all, and outside forward, backward and optimizer step."""
        start, own = time.process_time(), time.thread_time()
        run()
        everything, own = time.process_time() - start, time.thread_time() - own
        parts = {part: value / steps for part, value in self.seconds.items()}
        inside = sum(parts.get(part, 0.0) for part in INSIDE)
        helpers = (everything - own) / steps
        rest = own / steps - sum(parts.values())
        parts |= {"other threads (reading ahead)": helpers, "not in a part": rest}
        return {**parts, "outside": everything / steps - inside, "all": everything / steps}
