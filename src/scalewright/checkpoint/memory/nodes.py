"""Which node keeps whose copies, and how the nodes' couriers reach each other.

    nodes    0 ─copy on─► 1 ─► 2 ─► 3 ─► 0     `buddy` 1; with 4 nodes a rack, 4: the copy lies in another rack
    ranks    the l-th of a node is copied by the l-th of its buddy

Two ranks are of one node where they have a host's name and a folder in memory in common.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewright.checkpoint.background import Background
from scalewright.launch.settings import gloo_interfaces
from scalewright.parallel.collectives import from_rank_zero, gather_json
from scalewright.parallel.mesh import Mesh


class Nodes:
    """The nodes of a run, and this rank's part in keeping another's steps. All ranks make one together."""

    def __init__(self, mesh: Mesh, root: Path, buddy: int | None, limit_s: float) -> None:
        """`root`: the run's folder in memory; `buddy`: how many nodes further a copy lies (null: on the next; 0: there
        are none); `limit_s`: of a rank that a courier waits for."""
        self.rank, self.root, self.limit_s = mesh.rank, root, limit_s
        keys = gather_json(f"{socket.gethostname()}:{root}", mesh)
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        self.of_rank = [numbers[key] for key in keys]
        self.count, self.index = len(numbers), self.of_rank[mesh.rank]
        self.hosts = [key.partition(":")[0] for key in numbers]
        self.here = [rank for rank, node in enumerate(self.of_rank) if node == self.index]
        self.stride = 0 if self.count == 1 or buddy == 0 else (buddy or 1) % self.count or 1
        self.trouble = ""  # of the newest copy
        self._addresses: list[list[list[Any]]] = []  # by rank
        self._listener: socket.socket | None = None
        if self.count > 1:
            dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual else socket.AF_INET
            self._listener = socket.create_server(("", 0), family=family, backlog=128, dualstack_ipv6=dual)
            self._addresses = gather_json(_addresses(self._listener.getsockname()[1]), mesh)
            self.secret = str(from_rank_zero(secrets.token_hex(16), mesh))
            self._courier = Background("memory.courier", self._listener.fileno())

    @property
    def is_first(self) -> bool:
        """Whether this is the node's first rank."""
        return self.here[0] == self.rank

    def address(self, node: int) -> list[list[Any]]:
        """Where one of a node's couriers listens; each rank of this node has its own to turn to."""
        ranks = [rank for rank, number in enumerate(self.of_rank) if number == node]
        return self._addresses[ranks[self.here.index(self.rank) % len(ranks)]]

    def sources(self) -> list[int]:
        """The ranks whose steps this one copies."""
        node, share = (self.index - self.stride) % self.count, len(self.here)
        theirs = [rank for rank, number in enumerate(self.of_rank) if number == node] if self.stride else []
        return theirs[self.here.index(self.rank) :: share]

    def copy(self, folder: Path, save: str, step: int) -> None:
        """Begins to copy a step; no rank waits for it. `busy` until all is there, or `trouble`."""
        pulls = [{"rank": rank, "addresses": self._addresses[rank]} for rank in self.sources()]
        if self.stride:
            self._begin({"folder": folder.name, "save": save, "step": step, "pulls": pulls})

    def serve(self) -> None:
        """Lets other nodes read this one's memory."""
        if self.count > 1 and not self.busy():
            self._begin({"pulls": []})

    def _begin(self, job: Mapping[str, Any]) -> None:
        about = {"root": str(self.root), "secret": self.secret, "limit_s": self.limit_s}
        try:
            self._courier.begin({**about, **job}, [])
        except OSError as error:
            self.trouble = f"no courier: {error}"
            self._courier.kill()

    def busy(self, wait_s: float = 0.0) -> bool:
        """Whether a copy is under way."""
        if self.count == 1 or not self._courier.busy:
            return False
        if (answer := self._courier.poll(wait_s)) is None:
            return True
        self._courier.busy = False
        self.trouble = str(answer.get("problem", ""))
        return False

    def stop(self) -> None:
        """Ends the courier, whatever it is at; the next copy starts another."""
        if self.count > 1:
            with suppress(OSError):
                self._courier.kill()

    def close(self) -> None:
        """Ends all of it."""
        self.stop()
        if self._listener is not None:
            self._listener.close()


def _addresses(port: int) -> list[list[Any]]:
    """(host, port) under which other nodes may reach this one: the interface that Gloo was told to use; else where the
    host's name leads, and then every other address of it."""
    import psutil  # late: what it imports differs from system to system

    families = (socket.AF_INET, socket.AF_INET6)  # in this order; of the latter no address of one link alone (%)
    of = {
        name: [e.address for family in families for e in entries if e.family == family and "%" not in e.address]
        for name, entries in psutil.net_if_addrs().items()
    }
    if chosen := gloo_interfaces():
        names = [name for name in of if name in chosen]
        return [[address, port] for name in names for address in of[name]]
    named: list[str] = []
    with suppress(OSError):
        named = [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    every = [*named, *(address for addresses in of.values() for address in addresses)]
    every = sorted(dict.fromkeys(every), key=lambda address: address.startswith("127.") or address == "::1")
    return [[address, port] for address in every]
