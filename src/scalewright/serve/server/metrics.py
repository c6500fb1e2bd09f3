"""Prometheus' page: what the engine holds at the moment it is asked, and how long tokens took.

time to the first token   from the request to its first token       per request
time per output token     (last token - first) / (tokens - 1)        per request that wrote two or more
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from scalewright.serve.engine import Stats
from scalewright.serve.request import Update
from scalewright.serve.server.runner import Ticket

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
EACH = "; each choice of each prompt of a call counts."
GAUGES = {
    "waiting": ("requests_waiting", f"Requests accepted and not begun{EACH}"),
    "running": ("requests_running", f"Requests in prefill or decode{EACH}"),
    "blocks": ("kv_blocks", "Blocks of the KV cache."),
    "blocks_used": ("kv_blocks_used", "Blocks that requests hold."),
    "blocks_cached": ("kv_blocks_cached", "Blocks that no request holds, kept for a prefix to come."),
}
COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Tokens of prompts, once for each of n choices."),
    "prefix_tokens": ("prefix_cache_hit_tokens", "Tokens of prompts that the prefix cache gave."),
    "generated_tokens": ("generated_tokens", "Tokens written."),
    "drafted_tokens": ("drafted_tokens", "Tokens that were guessed ahead."),
    "accepted_tokens": ("accepted_tokens", "Guesses that the model would have written."),
    "preempted": ("preemptions", "Times that a request lost its blocks, to be computed again."),
}


class Metrics:
    """All of one server's."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._dropped = 0  # tokens that scoring calls had written and don't give
        make: Any = {"registry": self._registry, "namespace": "scalewright"}
        self._first = Histogram("time_to_first_token_seconds", f"To the first token{EACH}", buckets=SECONDS, **make)
        self._token = Histogram("time_per_output_token_seconds", "A further token.", buckets=SECONDS, **make)
        self._ended = Counter("requests", f"Requests that ended, by reason{EACH}", ["reason"], **make)
        self._refused = Counter("refused", "Calls that were answered with an error.", ["status"], **make)

    def watch(self, stats: Callable[[], Stats]) -> None:
        """Reads the engine's numbers from `stats` when it is asked."""

        class Engine:
            def collect(_, /) -> Iterator[Metric]:
                now = replace(stats(), generated_tokens=stats().generated_tokens - self._dropped)
                for key, (name, text) in GAUGES.items():
                    yield GaugeMetricFamily(f"scalewright_{name}", text, value=getattr(now, key))
                for key, (name, text) in COUNTERS.items():
                    yield CounterMetricFamily(f"scalewright_{name}", text, value=getattr(now, key))

        self._registry.register(Engine())

    def observe(self, ticket: Ticket, index: int, update: Update) -> None:
        """An update that was delivered."""
        now = time.perf_counter()
        if ticket.scores:
            self._dropped += len(update.tokens)
        elif update.tokens and ticket.tokens[index] == len(update.tokens):
            self._first.observe(now - ticket.born)
        if update.finished:
            self._ended.labels(update.finished).inc()
            if ticket.tokens[index] > 1 and update.finished != "cancelled":
                self._token.observe((now - ticket.first[index]) / (ticket.tokens[index] - 1))

    def refuse(self, status: int) -> None:
        """An error that was answered."""
        self._refused.labels(str(status)).inc()

    def page(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
