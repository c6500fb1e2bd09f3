"""The sizes and bandwidths of collectives, as nccl-tests define them.

    algorithm bandwidth = S / t            S: bytes, by the collective as below; t: seconds
    bus bandwidth       = S / t * factor   comparable with a link's rate, whatever the number of ranks n

collective       S                                    factor
all_reduce       the buffer of each rank              2 (n - 1) / n
all_gather       the gathered output                  (n - 1) / n
reduce_scatter   the whole input                      (n - 1) / n
all_to_all       all that a rank sends, its own part  (n - 1) / n
broadcast        the buffer                           1
send_recv        the message to the next rank         1

Source: nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Collective:
    """One collective: factor = passes * (n - 1) / n, or 1; on a ring, passes * (n - 1) messages in a row."""

    name: str
    passes: int
    shared: bool = True  # a rank keeps its own part, so that (n - 1) / n crosses its link

    def factor(self, ranks: int) -> float:
        """Bus bandwidth over algorithm bandwidth."""
        return self.passes * (ranks - 1) / ranks if self.shared else 1.0

    def hops(self, ranks: int) -> int:
        """Messages in a row on a ring of so many ranks."""
        return self.passes * (ranks - 1) if self.shared else 1


COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective("all_reduce", 2),
        Collective("all_gather", 1),
        Collective("reduce_scatter", 1),
        Collective("all_to_all", 1),
        Collective("broadcast", 1, shared=False),
        Collective("send_recv", 1, shared=False),
    )
}
