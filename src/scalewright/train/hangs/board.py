"""A side channel between the ranks' watchdogs: posts that all can read, and claims that one gets.

    local workers          files beside the launcher's store, in its temporary folder
    torchrun, srun, ...    the TCP store that the ranks met at, over a connection of the watchdog's own

Neither needs a process group, so it works while every group is stuck. A store whose host is stopped answers
nobody: then each call raises BoardSilent within PATIENCE_S.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from scalewright.launch.rank import RankContext

PATIENCE_S = 3.0  # that a store which lives answers within, whatever its host is busy with
CONNECT_S = 60.0  # for a connection: name resolution may be slow, and all ranks connect at once


class BoardSilent(Exception):
    """The store doesn't answer."""


class Board(Protocol):
    """Posts are JSON values; nothing is ever taken down."""

    def post(self, key: str, value: Any) -> None:
        """Makes a value readable for every rank."""

    def read(self, key: str) -> Any | None:
        """The posted value; None when nothing was posted. Never waits for a post."""

    def claim(self, key: str) -> bool:
        """True for the first rank that claims the key."""


def open_board(context: RankContext) -> Board:
    """The board of this rank's world; to be called after `join_world`."""
    if not context.rendezvous.startswith("tcp://"):
        return FolderBoard(Path(f"{unquote(urlparse(context.rendezvous).path)}-{context.attempt}.board"))
    host, _, port = context.rendezvous.removeprefix("tcp://").rpartition(":")
    return StoreBoard(host, int(port), f"hangs-{context.attempt}")


class FolderBoard:
    """Files in a folder that all ranks see, each written whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def post(self, key: str, value: Any) -> None:
        """Makes a value readable for every rank."""
        partial = self.folder / f".{key}.{os.getpid()}"
        partial.write_text(json.dumps(value), encoding="utf-8")
        os.replace(partial, self.folder / key)

    def read(self, key: str) -> Any | None:
        """The posted value; None when nothing was posted."""
        try:
            return json.loads((self.folder / key).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def claim(self, key: str) -> bool:
        """True for the first rank that claims the key."""
        try:
            os.close(os.open(self.folder / f"{key}.claim", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class StoreBoard:
    """Keys of a TCP store. Calls run in a thread, since a store whose host is stopped keeps its callers.

    The first call connects, and each later one tries again until one has: a slow connection costs a run
    nothing but its reports until then.
    """

    def __init__(self, host: str, port: int, prefix: str) -> None:
        self._address, self._prefix = (host, port), prefix
        self._caller: threading.Thread | None = None
        self._store: Any = None

    def _connect(self) -> Any:
        if self._store is None:
            timeout = timedelta(seconds=CONNECT_S)
            store = TCPStore(*self._address, is_master=False, wait_for_workers=False, timeout=timeout)
            store.set_timeout(timedelta(seconds=PATIENCE_S))
            self._store = PrefixStore(self._prefix, store)
        return self._store

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        answers: list[Any] = []

        def run() -> None:
            with suppress(Exception):  # torch has several for a connection; the caller raises BoardSilent
                answers.append(call(self._connect()))

        if self._caller is None or not self._caller.is_alive():
            self._caller = threading.Thread(target=run, name="scalewright-board", daemon=True)
            self._caller.start()
            self._caller.join(PATIENCE_S)
        if not answers:
            raise BoardSilent("the store doesn't answer")
        return answers[0]

    def post(self, key: str, value: Any) -> None:
        """Makes a value readable for every rank."""
        self._ask(lambda store: store.set(key, json.dumps(value)))

    def read(self, key: str) -> Any | None:
        """The posted value; None when nothing was posted."""
        data = self._ask(lambda store: store.get(key) if store.check([key]) else None)
        return None if data is None else json.loads(data)

    def claim(self, key: str) -> bool:
        """True for the first rank that claims the key."""
        return bool(self._ask(lambda store: store.add(f"{key}.claim", 1)) == 1)
