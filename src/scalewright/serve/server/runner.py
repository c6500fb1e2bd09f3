"""The engine in a thread of its own, and the event loop that it works for.

    loop:    submit ──► inbox ──► thread: add, cancel, step, step, ...
             Ticket ◄── call_soon_threadsafe ◄── updates of a step

The thread alone touches the engine. It never waits for a reader: updates go into the ticket's queue, which the
request's `max_new_tokens` bound. A ticket that is closed is cancelled at the next step.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from scalewright.serve.engine import Engine, Stats
from scalewright.serve.request import Request, Update
from scalewright.serve.server.watch import Watch
from scalewright.spec.errors import RunError

LOOK_S = 0.5  # between looks at an idle engine's processes


class Full(Exception):
    """As many requests wait as may."""


class Broken(Exception):
    """The engine raised, or a second signal ended it; nothing more comes of it."""


class Ticket:
    """The requests of one call, and what comes of them: `async for index, update in ticket.updates()`."""

    def __init__(self, requests: Sequence[Request], scores: bool = False) -> None:
        self.requests, self.scores = requests, scores  # scores: the prompts' alone are asked for
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queue: asyncio.Queue[tuple[int, Update] | None] = asyncio.Queue()  # None: the engine broke
        self.numbers: list[int] = []  # the engine's, in the order of `requests`; the thread's alone
        self.born = time.perf_counter()
        self.first: dict[int, float] = {}  # when a request's first token came
        self.tokens = [0] * len(requests)
        self.unfinished = set(range(len(requests)))

    @property
    def waiting(self) -> int:
        """Requests that have no token yet."""
        return len(self.unfinished - self.first.keys())

    async def updates(self) -> AsyncIterator[tuple[int, Update]]:
        """(index of the request, update), until all have finished; raises Broken."""
        left = len(self.requests)
        while left:
            item = await self.queue.get()
            if item is None:
                raise Broken
            left -= item[1].finished is not None
            yield item


class Runner:
    """Starts the thread; made in the event loop's thread, and used there alone."""

    def __init__(self, engine: Engine, max_queue: int, observe: Callable[[Ticket, int, Update], None]) -> None:
        self.max_queue, self.draining, self.broken = max_queue, False, False
        self.why = ""  # it is broken, where that is known
        self.cut = 0  # requests that a second signal threw away
        self.tickets: set[Ticket] = set()
        self.stats = engine.stats()  # after the last step
        self._observe = observe  # is called with every update that is delivered
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None: stop
        self._engine = engine
        self._live: dict[int, tuple[Ticket, int]] = {}  # by the engine's number; the thread's alone
        self._prompts: dict[int, int] = {}  # tokens of each prompt
        self._watch = Watch()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def submit(self, requests: Sequence[Request], scores: bool = False) -> Ticket:
        """All of them, or none; raises Full, Broken, or the UserError of `Engine.add`."""
        if self.broken:
            raise Broken
        if sum(ticket.waiting for ticket in self.tickets) + len(requests) > self.max_queue:
            raise Full
        ticket = Ticket(requests, scores)
        self.tickets.add(ticket)
        self._inbox.put(lambda: self._add(ticket))
        try:
            await ticket.accepted
        except BaseException:  # refused, or the caller has gone
            self.close(ticket)
            raise
        return ticket

    def close(self, ticket: Ticket) -> None:
        """Ends what of it still runs; every ticket is closed once, finished or not."""
        if ticket in self.tickets:
            self.tickets.discard(ticket)
            for index in ticket.unfinished:
                self._observe(ticket, index, Update(0, finished="cancelled"))
            if ticket.unfinished:
                self._inbox.put(lambda: self._cancel(ticket))

    async def picture(self, since: float) -> dict[str, Any]:
        """What the engine holds between two steps, and the steps after `since` (watch.py)."""
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()

        def settle(picture: dict[str, Any]) -> None:
            if not answer.done():
                answer.set_result(picture)

        self._inbox.put(lambda: self._tell(settle, self._watch.picture(self._engine, since)))
        return await answer

    def cut_off(self) -> None:
        """Ends all that runs, unfinished."""
        self.cut, self.why = sum(len(ticket.unfinished) for ticket in self.tickets), "the server was stopped meanwhile"
        self._break()

    def stop(self) -> None:
        """Ends the thread after its step."""
        self._inbox.put(None)
        self._thread.join(timeout=60)

    def _run(self) -> None:
        try:
            while True:
                while self._engine.idle or not self._inbox.empty():
                    try:
                        job = self._inbox.get(timeout=LOOK_S)
                    except Empty:
                        self._engine.check()
                        continue
                    if job is None:
                        return
                    job()
                    self._tell(self._deliver, [], self._engine.stats())
                began = time.monotonic()
                updates = self._engine.step()
                self._watch.note(began, self._engine, self._prompts)
                self._tell(self._deliver, [(*self._owner(update), update) for update in updates], self._engine.stats())
        except RunError as error:  # known: no traceback
            self.why = str(error)
            self._tell(self._break)
        except BaseException:
            self._tell(self._break)
            raise  # its traceback goes to stderr: threading.excepthook

    def _owner(self, update: Update) -> tuple[Ticket, int]:
        if update.finished:
            del self._prompts[update.number]
            return self._live.pop(update.number)
        return self._live[update.number]

    def _add(self, ticket: Ticket) -> None:
        try:
            for index, request in enumerate(ticket.requests):
                number = self._engine.add(request)
                ticket.numbers.append(number)
                self._live[number], self._prompts[number] = (ticket, index), len(request.prompt)
        except Exception as error:  # a UserError: it can never run; any other is its alone, too
            self._cancel(ticket)
            self._tell(self._settle, ticket, error)
        else:
            self._tell(self._settle, ticket, None)

    def _cancel(self, ticket: Ticket) -> None:
        for number in ticket.numbers:
            if self._live.pop(number, None) is not None:
                del self._prompts[number]
                self._engine.cancel(number)

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _settle(self, ticket: Ticket, error: Exception | None) -> None:
        if ticket.accepted.done():  # its caller has gone
            return
        if error is None:
            ticket.accepted.set_result(None)
        else:
            ticket.unfinished.clear()
            ticket.accepted.set_exception(error)

    def _deliver(self, updates: list[tuple[Ticket, int, Update]], stats: Stats) -> None:
        self.stats = stats
        for ticket, index, update in updates:
            if update.tokens:
                ticket.first.setdefault(index, time.perf_counter())
                ticket.tokens[index] += len(update.tokens)
            if update.finished:
                ticket.unfinished.discard(index)
            self._observe(ticket, index, update)
            ticket.queue.put_nowait((index, update))

    def _break(self) -> None:
        self.broken = True
        for ticket in self.tickets:
            if not ticket.accepted.done():
                ticket.accepted.set_exception(Broken())
            ticket.queue.put_nowait(None)
