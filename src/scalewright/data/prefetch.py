"""The next batches made while the current one is used, by one thread, in order.

    consumer   step 0 ······· step 1 ······· step 2
    thread     │batch 1│batch 2│  waits      │batch 3│       at most AHEAD batches ahead

The order is that of the index ranges given; an error in the thread is raised where its batch would have come.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from scalewright.data.batch import Batch
from scalewright.data.dataset import Dataset

AHEAD = 2  # batches
_WAKE_S = 0.1  # how long a stopped thread may go on waiting for room in the queue


class Prefetcher:
    """An iterator over `dataset.batch(indices)` for each of `steps`; to be closed.

    >>> with closing(Prefetcher(data, (range(i * 8, i * 8 + 8) for i in range(100)))) as batches:
    ...     for batch in batches: ...
    """

    def __init__(self, dataset: Dataset, steps: Iterable[Sequence[int] | range]) -> None:
        self._dataset, self._steps = dataset, iter(steps)
        self._queue: queue.Queue[Batch | BaseException | None] = queue.Queue(maxsize=AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="scalewright-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._stop.is_set():
            raise StopIteration
        item = self._queue.get()
        if isinstance(item, Batch):
            return item
        self.close()
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        """Stops the thread and drops its batches; safe to call twice."""
        self._stop.set()
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        try:
            for indices in self._steps:
                if not self._put(self._dataset.batch(indices)):
                    return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: Batch | BaseException | None) -> bool:
        while not self._stop.is_set():
            with suppress(queue.Full):
                self._queue.put(item, timeout=_WAKE_S)
                return True
        return False
